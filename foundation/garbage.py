"""Rarer garbage collection, for work that makes much and drops little."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

RARE = (100_000, 50, 100)  # Python's own thresholds are 700, 10, 10


@contextmanager
def rare_collections() -> Iterator[None]:
    """In the block, or the function so decorated, Python looks for garbage rarely.

    Records that are read and costs that are kept are no garbage: looking through them again and again
    takes a third to half of the time.
    """
    before = gc.get_threshold()
    gc.set_threshold(*RARE)
    try:
        yield
    finally:
        gc.set_threshold(*before)
