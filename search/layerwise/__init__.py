"""OptCNN: a configuration for each layer."""
