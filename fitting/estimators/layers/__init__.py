"""Estimators of layer times: laws of work and their choice."""
