"""Traced runs beside their predictions: where the difference is, and what would be faster."""
