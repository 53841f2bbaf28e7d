"""Whole iterations of a model, timed for the calibration."""
