"""The `paper` form: the equations of ParaDL on one alpha and beta per level."""
