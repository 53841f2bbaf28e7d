"""A twin of known truth: clusters simulated by SimGrid, where what is extrapolated can be looked up."""
