"""Ordinary training scripts, which import nothing of calib: `make bench ARGS=plain_programs`."""
