"""Clocks, repetitions and the state that timing needs, on a host and on a GPU."""
