"""Turns samples into parameters with uncertainty. A pure function: no clock, device or MPI."""
