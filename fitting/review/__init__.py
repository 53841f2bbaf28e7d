"""Warnings for a reader of a parameter file."""
