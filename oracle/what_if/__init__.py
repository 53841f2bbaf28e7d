"""Predictions on parameters changed by hand."""
