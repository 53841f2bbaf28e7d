"""Galvatron's hardware profile."""
