"""Order statistics that measuring, fitting and reporting share. Pure Python: no numpy to import."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache


def quantile(values: Sequence[float], q: float) -> float:
    """The q-quantile (0..1) by linear interpolation between order statistics (type 7)."""
    if not values:
        raise ValueError("quantile of no values")
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def median(values: Sequence[float]) -> float:
    """The median."""
    return quantile(values, 0.5)


@lru_cache(maxsize=4096)
def median_ranks(n: int, confidence: float) -> tuple[int, int] | None:
    """0-based order statistics (low, high) between which the median lies with `confidence`.

    The binomial interval (David and Nagaraja, Order Statistics, 7.1): the number of values below
    the median is Binomial(n, 1/2), whatever the distribution. None where n is too small (under 6
    for 95%): then no interval exists, and none is invented.
    """
    tail = (1.0 - confidence) / 2.0
    cumulative = 0.0
    low = -1
    for k in range(n // 2 + 1):
        log_term = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        cumulative += math.exp(log_term - n * math.log(2.0))
        if cumulative > tail:
            break
        low = k
    if low < 0:
        return None
    return low, n - 1 - low


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Distribution-free interval (low, high) of the median; (min, max) when n is under 6.

    Fewer than six values cannot give 95%; callers that stop on the interval use
    `median_half_width`, which says infinity there.
    """
    ordered = sorted(values)
    ranks = median_ranks(len(ordered), confidence)
    if ranks is None:
        return ordered[0], ordered[-1]
    return ordered[ranks[0]], ordered[ranks[1]]


def median_half_width(values: Sequence[float], confidence: float = 0.95) -> float:
    """Half the interval of the median relative to the median; infinity when there is none yet."""
    ranks = median_ranks(len(values), confidence)
    if ranks is None:
        return math.inf
    ordered = sorted(values)  # once: this stands in the measurement loop
    half = len(ordered) // 2
    middle = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2.0
    return math.inf if middle <= 0 else (ordered[ranks[1]] - ordered[ranks[0]]) / (2.0 * middle)
