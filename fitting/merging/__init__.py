"""Parameter files side by side: merged, compared, repeated."""
