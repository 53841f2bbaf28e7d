"""From repetitions to an Estimate: median, with an interval that holds the launches' differences."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from fitting.parameters import Alpha, Estimate
from foundation.statistics import median, median_interval
from microbench.samples import Sample

Repetitions = dict[int, list[list[float]]]  # launch -> repetition -> seconds of each rank


def group(samples: Iterable[Sample]) -> dict[tuple[str, str], list[Sample]]:
    """(case_id, operation) -> its samples, in the order given."""
    groups: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[sample.case_id, sample.operation].append(sample)
    return groups


def by_launch(samples: Iterable[Sample]) -> dict[int, list[Sample]]:
    """launch -> its samples."""
    launches: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        launches[sample.launch].append(sample)
    return launches


def hull(groups: Iterable[list[float]]) -> Estimate:
    """Median of all values; the interval spans the intervals of every group's median.

    Two launches of the ranks differ by more than the repetitions within one (placement, memory
    layout), so the interval of the pooled values would be too narrow.
    """
    lists = [values for values in groups if values]
    middle = median([value for values in lists for value in values])
    intervals = [median_interval(values) for values in lists]
    low = min(interval[0] for interval in intervals)
    high = max(interval[1] for interval in intervals)
    return Estimate(value=middle, low=min(low, middle), high=max(high, middle))


def together(samples: list[Sample]) -> Estimate:
    """A collective: the time of a repetition is the maximum over ranks."""
    return hull([s.seconds for s in rows] for rows in by_launch(samples).values())


def slowest_rank(samples: list[Sample]) -> Estimate:
    """Work that ranks do side by side without waiting: the median of the slowest rank.

    The sum over layers of each layer's maximum over ranks is more than any rank's sum; the median
    of one rank is what adds up. The interval spans the launches of that rank.
    """
    launches = by_launch(samples)
    ranks = range(min(len(s.rank_seconds) for s in samples))
    estimates = [
        hull([s.rank_seconds[rank] for s in rows] for rows in launches.values()) for rank in ranks
    ]
    return max(estimates, key=lambda estimate: estimate.value)


def quantile_estimate(value: float, draws: Iterable[float], alpha: bool = False) -> Estimate:
    """`value` with the 2.5% and 97.5% quantiles of bootstrap draws, widened to hold it."""
    from foundation.statistics import quantile

    values = list(draws)
    low, high = quantile(values, 0.025), quantile(values, 0.975)
    record = Alpha if alpha else Estimate
    return record(value=value, low=min(low, value), high=max(high, value))
