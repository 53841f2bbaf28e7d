"""Bytes per rank: the naive sum, memory reuse, and the count of live bytes."""
