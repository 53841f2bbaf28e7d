"""Cold caches: evict them by working through a large buffer."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
MULTIPLE = 2  # caches replace lines only nearly in order of use: once their size is not enough
FALLBACK_BYTES = 64 << 20
CAP_BYTES = 256 << 20


def parse_size(text: str) -> int:
    """Bytes of a size as Linux writes it ("48K", "32M", "512"). Raises ValueError."""
    text = text.strip()
    unit = UNITS.get(text[-1:], 1)
    return int(text[:-1] if unit > 1 else text) * unit


def last_level_bytes(caches: Path = CACHES) -> int | None:
    """Bytes of the largest cache that the first core sees; None where the system does not say."""
    sizes = []
    for path in caches.glob("index*/size"):
        try:
            sizes.append(parse_size(path.read_text()))
        except (OSError, ValueError):
            continue  # a virtual machine may have the file and no size in it
    return max(sizes, default=None)


def scratch_bytes(last_level: int | None) -> int:
    """How much to work through: twice the last level, or 64 MiB, and 256 MiB at most.

    The cap keeps many ranks from filling the memory, and a repetition from taking long. Where the
    last level is larger than that (a virtual machine that shows its host's), what is evicted for
    certain are the levels below it, which are this core's own.
    """
    if last_level is None:
        return FALLBACK_BYTES
    return min(MULTIPLE * last_level, CAP_BYTES)


@cache
def scratch() -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The buffer, made by the first call and kept by this process."""
    return np.zeros(scratch_bytes(last_level_bytes()) // 8, dtype=np.uint64)


def evict() -> None:
    """Read and write the whole buffer, so that what was in the caches no longer is.

    Adding in place loads every line; filling would not do, since a large fill writes past the
    caches. The first call also has the system map the pages.
    """
    buffer = scratch()
    buffer += 1
