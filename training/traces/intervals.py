"""Sets of times: disjoint intervals [start, stop) in order, as an array [n, 2]. All vectorised."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Starts = NDArray[np.float64]
NONE: Starts = np.empty((0, 2))


def union(*sets: Starts) -> Starts:
    """All times in any of `sets`, whose intervals may overlap and be in any order."""
    every = np.concatenate(sets) if sets else NONE
    every = every[every[:, 1] > every[:, 0]]
    if not len(every):
        return NONE
    every = every[np.argsort(every[:, 0], kind="stable")]
    reached = np.maximum.accumulate(every[:, 1])
    begins = np.concatenate(([True], every[1:, 0] > reached[:-1]))
    first = np.flatnonzero(begins)
    last = np.concatenate((first[1:] - 1, [len(every) - 1]))
    return np.stack((every[first, 0], reached[last]), axis=1)


def complement(of: Starts) -> Starts:
    """The times that are not in a set."""
    starts = np.concatenate(([-np.inf], of[:, 1]))
    return np.stack((starts, np.concatenate((of[:, 0], [np.inf]))), axis=1)


def both(a: Starts, b: Starts) -> Starts:
    """The times in both sets."""
    if not len(a) or not len(b):
        return NONE
    first = np.searchsorted(b[:, 1], a[:, 0], side="right")
    stop = np.maximum(np.searchsorted(b[:, 0], a[:, 1], side="left"), first)
    counts = stop - first
    of_a = np.repeat(np.arange(len(a)), counts)
    offsets = np.arange(len(of_a)) - np.repeat(np.cumsum(counts) - counts, counts)
    of_b = first[of_a] + offsets
    found = np.stack(
        (np.maximum(a[of_a, 0], b[of_b, 0]), np.minimum(a[of_a, 1], b[of_b, 1])), axis=1
    )
    kept: Starts = found[found[:, 1] > found[:, 0]]
    return kept


def minus(a: Starts, b: Starts) -> Starts:
    """The times of `a` that are not in `b`."""
    return both(a, complement(b))


def length_until(of: Starts, when: Starts) -> Starts:
    """How much of a set lies before each time of `when`."""
    if not len(of):
        return np.zeros(len(when))
    lengths = of[:, 1] - of[:, 0]
    before = np.concatenate(([0.0], np.cumsum(lengths)))
    index = np.searchsorted(of[:, 0], when, side="right")
    current = np.maximum(index - 1, 0)
    part = np.clip(when - of[current, 0], 0.0, lengths[current])
    return np.where(index > 0, before[current] + part, 0.0)


def lengths_within(of: Starts, windows: Starts) -> Starts:
    """How much of a set lies in each of `windows`."""
    return length_until(of, windows[:, 1]) - length_until(of, windows[:, 0])


def index_at(of: Starts, when: Starts) -> NDArray[np.intp]:
    """The interval in which each time of `when` lies, or -1."""
    index = np.searchsorted(of[:, 0], when, side="right") - 1
    inside = (index >= 0) & (when < of[np.maximum(index, 0), 1]) if len(of) else index >= 0
    return np.where(inside, index, -1)
