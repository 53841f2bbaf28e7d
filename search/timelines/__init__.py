"""Timelines of pipelines: schedules as data (schedules.py) and one exact simulator (simulation.py)."""
