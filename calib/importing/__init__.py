"""Measurements and trainings that other tools have logged."""
