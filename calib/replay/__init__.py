"""Published runs and logs, put through the program again."""
