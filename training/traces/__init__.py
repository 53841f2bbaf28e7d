"""Traces of torch.profiler (Kineto), of all ranks of a run: what ran, when, and what waited for what."""
