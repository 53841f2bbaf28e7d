"""Training under a plan per layer: every layer cut as its Configuration says."""
