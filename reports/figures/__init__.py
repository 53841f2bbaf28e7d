"""Plotly figures as JSON values."""
