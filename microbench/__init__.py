"""Measures and never fits: probe, collectives, layers -> Cluster and Samples."""
