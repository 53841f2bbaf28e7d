"""What a reader of a parameter file must be warned of."""
