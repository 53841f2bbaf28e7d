"""Published runs and logs, predicted again."""
