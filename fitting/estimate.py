"""Repetitions -> Estimate: a median whose interval includes the scatter between launches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from calib.fitting.launches import (
    ALONE,
    NO_OTHERS,
    Launches,
    Spread,
    factor_of,
    in_order,
    log_median,
)
from calib.foundation.arrays import Floats
from calib.foundation.records import Estimate
from calib.foundation.statistics import median, serial_interval
from calib.microbench.records.samples import Samples


def across_launches(
    launches: Mapping[int, Sequence[float]], resolution: float = 0.0, spread: Spread = ALONE
) -> Estimate:
    """What a case takes, of its repetitions in each launch, in order of time.

    The value is the center of the launches' log medians, with a 95% interval of how launches differ
    (launches.py): as its own do and as those of all cases of its kind do, their `spread`. It is never
    narrower than the `resolution` of the clock to both sides.
    """
    medians = [median(values) for values in launches.values()]
    if len(medians) > 1 and min(medians) <= 0:  # below the clock's resolution: no logs, and no law
        value, low, high = median(medians), min(medians), max(medians)
    else:
        value, low, high = _in_logs(launches, spread)
    return Estimate(
        value=value, low=max(min(low, value - resolution), 0.0), high=max(high, value + resolution)
    )


def _in_logs(launches: Mapping[int, Sequence[float]], spread: Spread) -> tuple[float, float, float]:
    """(value, low, high)."""
    if len(launches) == 1:
        [values] = launches.values()
        value = median(values)
        if value <= 0 or not spread.cases:
            low, high = serial_interval(values) or (min(values), max(values))
            return value, low, high
    center = spread.center({number: log_median(of) for number, of in launches.items()})
    middle = median([median(of) for of in launches.values()])
    # launches that are alike give their median itself, not what is left of it after two roundings
    value = middle * math.exp(center.log_median - math.log(middle))
    factor = factor_of(center.margin)
    return value, value / factor, value * factor


def estimated(samples: Samples, seconds: Floats, among: Launches = NO_OTHERS) -> Estimate:
    """The median of `seconds` [rows], one for each row of a case; `among` is how launches differ."""
    return _columns(samples, seconds[:, None], among)[0]


def _columns(samples: Samples, seconds: Floats, among: Launches) -> list[Estimate]:
    """The median of each column of `seconds` [rows, k]."""
    resolution, spread = resolution_of(samples), among.like(samples)
    return [across_launches(in_order(samples, of), resolution, spread) for of in seconds.T]


def together(samples: Samples, among: Launches = NO_OTHERS) -> Estimate:
    """A collective: the time of a repetition is the maximum over ranks."""
    return estimated(samples, samples["seconds"], among)


def of_ranks(samples: Samples, among: Launches = NO_OTHERS) -> list[Estimate]:
    """Time of each rank that appears in every row."""
    return _columns(samples, samples.rank_seconds, among)


def resolution_of(samples: Samples) -> float:
    """Seconds that the clock of these rows cannot tell; 0 where that is next to nothing."""
    known = samples["resolution_s"]
    return float(np.nanmax(known)) if np.isfinite(known).any() else 0.0


def slowest_rank(samples: Samples, among: Launches = NO_OTHERS) -> Estimate:
    """Work that ranks do side by side without waiting: the median of the slowest rank.

    The sum over layers of each layer's maximum over ranks is more than any rank's sum; the median
    of one rank is what adds up. The interval spans the launches of that rank.
    """
    return max(of_ranks(samples, among), key=lambda estimate: estimate.value)
