"""Repetitions -> Estimate: a median whose interval includes the scatter between launches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from scipy.special import betaincinv

from calib.foundation.records import Estimate
from calib.foundation.statistics import median, median_interval, median_of_groups
from calib.microbench.records.samples import Samples


def hull(groups: Iterable[list[float]], resolution: float = 0.0) -> Estimate:
    """Median of all values, groups (launches) weighing alike, with an interval of how they differ.

    It is never narrower than the `resolution` of the clock to both sides.

    Two launches of the ranks differ by more than the repetitions within one (placement, memory
    layout), so the interval of the pooled values would be too narrow: the interval spans those of
    every group's median, and of few groups more (see `launch_margin`). In groups of few values one that
    was disturbed is the end of an interval: there all say together how far a value is off (`_ends`). One
    of six launches that took over FAR times as long as the others was disturbed and does not count.
    """
    lists = [values for values in groups if values]
    medians = [median(values) for values in lists]
    far = FAR * median(medians)
    if len(medians) > max(LORD) and sum(value > far for value in medians) == 1:
        lists = [values for values in lists if median(values) <= far]
        medians = [value for value in medians if value <= far]
    middle = median_of_groups(lists)
    ends = _ends(lists, medians)
    margin = max(launch_margin(medians), resolution)
    low = min(*(low for low, _ in ends), middle - margin)
    high = max(*(high for _, high in ends), middle + margin)
    return Estimate(value=middle, low=max(low, 0.0), high=high)


# a launch of fewer values says too little of its own median
FEW = 30


def _ends(lists: Sequence[list[float]], medians: Sequence[float]) -> list[tuple[float, float]]:
    """95% intervals of the medians of groups.

    The median of n values lies at the quantile of their distribution that is Beta((n+1)/2, (n+1)/2)
    (David and Nagaraja, Order Statistics, 2.3). Where every group has FEW values, and there are more
    groups than LORD has, that distribution is the one of all values over the medians of their groups.
    """
    if len(lists) <= max(LORD) or max(map(len, lists)) >= FEW or min(medians) <= 0:
        return [median_interval(each) for each in lists]
    pairs = zip(lists, medians, strict=True)
    off = np.sort([value / middle for values, middle in pairs for value in values])
    found = []
    for values, middle in zip(lists, medians, strict=True):
        half = (len(values) + 1) / 2
        low, high = np.quantile(off, betaincinv(half, half, (0.025, 0.975)))
        found.append((middle * float(low), middle * float(high)))
    return found


# 95% critical values of |mean - truth| / range (Lord, Biometrika 34, 1947); from 6 groups on, the
# truth lies between the smallest and the largest in 1 - 2 (1/2)^6 = 97% whatever the distribution
LORD = {2: 6.353, 3: 1.304, 4: 0.717, 5: 0.507}
# a launch whose median is over this many times that of all launches: another program had the cores
FAR = 4.0


def launch_margin(medians: list[float]) -> float:
    """Half-width that covers the truth at 95% when launches differ; 0 where their span suffices."""
    return LORD[len(medians)] * (max(medians) - min(medians)) if len(medians) in LORD else 0.0


def together(samples: Samples) -> Estimate:
    """A collective: the time of a repetition is the maximum over ranks."""
    # sorted here, where it is fast: the medians and their intervals are of sorted values
    rows = (np.sort(rows["seconds"]).tolist() for rows in samples.groups("launch").values())
    return hull(rows, resolution_of(samples))


def of_ranks(samples: Samples) -> list[Estimate]:
    """Time of each rank that appears in every row."""
    launches = [np.sort(rows.rank_seconds, axis=0).T for rows in samples.groups("launch").values()]
    step = resolution_of(samples)
    return [hull(map(np.ndarray.tolist, ranks), step) for ranks in zip(*launches, strict=False)]


def resolution_of(samples: Samples) -> float:
    """Seconds that the clock of these rows cannot tell; 0 where that is next to nothing."""
    known = samples["resolution_s"]
    return float(np.nanmax(known)) if np.isfinite(known).any() else 0.0


def slowest_rank(samples: Samples) -> Estimate:
    """Work that ranks do side by side without waiting: the median of the slowest rank.

    The sum over layers of each layer's maximum over ranks is more than any rank's sum; the median
    of one rank is what adds up. The interval spans the launches of that rank.
    """
    return max(of_ranks(samples), key=lambda estimate: estimate.value)
