"""A user's own module as a model to train."""
