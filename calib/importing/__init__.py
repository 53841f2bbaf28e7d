"""Measurements and trainings logged by other tools."""
