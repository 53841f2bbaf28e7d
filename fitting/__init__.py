"""Samples -> parameters with uncertainty. Pure: no clock, device or MPI."""
