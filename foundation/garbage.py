"""Rarer garbage collection, for work that makes much and drops little, and none of what is imported."""

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


@contextmanager
def lasting() -> Iterator[None]:
    """In the block, which imports a library, nothing is garbage, and none of it will ever be.

    Python would look through all that PyTorch makes again and again, and at the end of the process
    once more: that takes a rank more than a second.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
