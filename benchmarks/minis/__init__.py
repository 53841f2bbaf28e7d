"""Minis of ten published networks, and how well calib predicts them: `python -m benchmarks.minis`."""
