"""Every number of a parameter file in one tidy table."""
