"""The `paper` form of the oracle: the equations of ParaDL on one alpha and beta per level."""
