"""Logs of whole trainings: start-up, seconds of each epoch and of each validation."""
