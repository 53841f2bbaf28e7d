"""Rarer garbage collection, for work that makes much and drops little, and none of what is imported."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

RARE = (1_000_000, 50, 100)  # Python's own thresholds are 700, 10, 10


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


def loaded(name: str) -> ModuleType:
    """A module, imported if it is not yet: nothing that this makes is ever looked through for garbage.

    Of PyTorch that takes a second and a half: while it is imported, and at the end of the process.
    """
    if name in sys.modules:
        return import_module(name)
    enabled = gc.isenabled()
    gc.disable()
    try:
        return import_module(name)
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
