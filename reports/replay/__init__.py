"""Published runs predicted again, and scored."""
