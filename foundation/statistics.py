"""Order statistics that measuring, fitting and reporting share. Pure Python, to start fast."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from operator import mul


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


def weighted_median(values: Sequence[float], weights: Sequence[float]) -> float:
    """The value with half of the weight on either side; between two values, their middle."""
    if not values:
        raise ValueError("median of no values")
    pairs = sorted(zip(values, weights, strict=True))
    half, below = 0.5 * math.fsum(weights), 0.0
    for index, (value, weight) in enumerate(pairs):
        below += weight
        if math.isclose(below, half, rel_tol=1e-9) and index + 1 < len(pairs):
            return 0.5 * (value + pairs[index + 1][0])
        if below > half:
            return value
    return pairs[-1][0]


def median_of_groups(groups: Sequence[Sequence[float]]) -> float:
    """The median of all values, with the same weight for every group, however many values it has.

    Measuring stops when a median is known well enough, so one launch may have twenty times the
    repetitions of another: the pooled median would be that launch's.
    """
    values = [value for group in groups for value in group]
    if len({len(group) for group in groups}) == 1:
        return median(values)
    return weighted_median(values, [1.0 / len(group) for group in groups for _ in group])


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

    Fewer than six values cannot give 95%; callers that stop on the interval use `serial_half_width`,
    which is infinite there.
    """
    ordered = sorted(values)
    ranks = median_ranks(len(ordered), confidence)
    if ranks is None:
        return ordered[0], ordered[-1]
    return ordered[ranks[0]], ordered[ranks[1]]


def effective_number(values: Sequence[float], level: float | None = None) -> int:
    """How many independent values would say as much about the median as these, in order of time.

    n / (1 + 2 sum r_k) over the lags k before the first whose r_k is not positive (the initial
    positive sequence of Geyer, Statistical Science 7, 1992), where r_k is the autocorrelation of
    "lies above the median": that, not the values themselves, is what the interval of a median
    rests on (Heidelberger and Lewis, Operations Research 32, 1984), and outliers do not bend it.
    With a `level`, as many say as much about whether the median lies above it.
    """
    n = len(values)
    if n < 2:
        return n
    middle = median(values) if level is None else level
    above = [1.0 if value > middle else 0.0 for value in values]
    mean = sum(above) / n
    signs = [value - mean for value in above]
    variance = sum(map(mul, signs, signs))
    correlation = 0.0
    for lag in range(1, n // 2 if variance > 0 else 1):
        product = sum(map(mul, signs, signs[lag:]))
        if product <= 0:
            break
        correlation += product / variance
    return int(n / (1.0 + 2.0 * correlation))


def serial_interval(
    values: Sequence[float], confidence: float = 0.95
) -> tuple[float, float] | None:
    """Interval (low, high) of the median of values in order of time, which may be autocorrelated.

    The order statistics that stand as far out among n as those of `median_ranks` do among the effective
    number; never inside the interval for independent values. None while there are too few: under 6
    effective values for 95%.
    """
    n = len(values)
    number = max(effective_number(values), 1) if n else 0
    ranks, widest = median_ranks(number, confidence), median_ranks(n, confidence)
    if ranks is None or widest is None:
        return None
    low = min(ranks[0] * n // number, widest[0])
    ordered = sorted(values)
    return ordered[low], ordered[n - 1 - low]


def serial_half_width(values: Sequence[float], confidence: float = 0.95) -> float:
    """Half of `serial_interval` relative to the median; infinity when there is none yet."""
    interval = serial_interval(values, confidence)
    if interval is None:
        return math.inf
    middle = median(values)
    return math.inf if middle <= 0 else (interval[1] - interval[0]) / (2.0 * middle)


def binomial_at_most(k: int, n: int, share: float) -> float:
    """Probability of `k` or fewer of `n` independent cases, each of which happens with `share`."""
    terms = (math.comb(n, i) * share**i * (1.0 - share) ** (n - i) for i in range(k + 1))
    return min(1.0, math.fsum(terms))
