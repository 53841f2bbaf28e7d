"""From a PyTorch module to a ModelSpec."""
