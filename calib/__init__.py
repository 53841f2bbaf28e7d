"""calib: measure a machine, fit its parameters, predict training, run it, report how right it was."""

__version__ = "0.1.0"
