"""Predictions on parameters that were changed by hand."""
