"""Predictions against measurements: pairs, scores, causes, choices."""
