"""Clocks, repetitions and cache state, on a host and on a GPU."""
