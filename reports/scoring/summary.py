"""Summary of scores: means, worst point, coverage, noise ceiling."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean

from pydantic import Field

from calib.foundation.names import LayoutWords, ModelName, StrategyLabel
from calib.foundation.records import Record
from calib.reports.scoring.accuracy import Accuracy, occurring, score


class Worst(Record):
    """The point with the lowest accuracy."""

    model: ModelName
    strategy: StrategyLabel
    layout: LayoutWords = ""
    p: int = Field(description="number of ranks")
    batch_per_rank: int | float = Field(description="samples per rank")
    accuracy: float = Field(description="1 - |predicted - measured| / measured")


class NoiseCeiling(Record):
    """How well one run predicts the next run of the same work; no oracle can be expected to beat it.

    Each of `pairs` is scored both ways, as the accuracy is relative to the run that is predicted.
    """

    pairs: int = Field(ge=1, description="runs of the same work and the next one of it")
    mean: float = Field(description="of the scores")
    worst: float = Field(description="the lowest of the scores")


class MemorySummary(Record):
    """Peak memory of a rank, over all points that have one: too many ranks for the cores change none."""

    points: int = Field(ge=1, description="how many points")
    mean: float = Field(description="of the points' accuracy")
    worst: Worst = Field(description="the point with the lowest accuracy")
    coverage: float = Field(description="share of measured peaks inside the predicted interval")


class Summary(Record):
    """Over the points that count: scored, and not oversubscribed. None where there is no point."""

    points: int = Field(ge=0, description="points that count")
    oversubscribed: int = Field(ge=0, description="points that were scored and left out")
    strategy_means: dict[str, float] = Field(description="unweighted mean over a strategy's points")
    mean_of_strategy_means: float | None = Field(description="as the ParaDL paper's 86.74%")
    mean_over_points: float | None = Field(description="mean accuracy; null where no point counts")
    worst: Worst | None = Field(
        description="the point with the lowest accuracy; null without a point"
    )
    coverage: float | None = Field(
        description="share of points whose measured median lies inside the predicted interval"
    )
    coverage_90: float | None = Field(
        default=None, description="the same of the predicted 90% interval"
    )
    noise_ceiling: NoiseCeiling | None = Field(description="null where no work was run twice")
    strategy_points: dict[str, int] = Field(
        default_factory=dict, description="points that count, of each strategy"
    )
    phase_means: dict[str, float] = Field(
        default_factory=dict,
        description="mean accuracy of each phase, over the points where it was measured",
    )
    overlap: float | None = Field(
        default=None, description="share of points whose two intervals have a point in common"
    )
    memory: MemorySummary | None = Field(
        default=None, description="null where no peak was both predicted and measured"
    )


def noise_ceiling(accuracies: Iterable[Accuracy]) -> NoiseCeiling | None:
    """Score the measured medians of runs of the same work against each other.

    A pair is a run and the next one of the same work, by the time of start: what a run tells about
    the one that follows. All pairs would be quadratic in the nights of a year, and would count a
    slow drift over the year as noise. The same work: `Accuracy.work`; data parallelism on one rank is
    the serial run. Oversubscribed runs are left out. None where no work was run twice.
    """
    runs: dict[object, list[Accuracy]] = {}
    for accuracy in accuracies:
        if accuracy.counts:
            runs.setdefault(accuracy.work, []).append(accuracy)
    scores: list[float] = []
    for of in runs.values():
        of.sort(key=lambda accuracy: accuracy.started)
        for one, other in pairwise(accuracy.total.measured.value for accuracy in of):
            both = score(one, other), score(other, one)
            scores += [value for value in both if value is not None]
    if not scores:
        return None
    return NoiseCeiling(pairs=len(scores) // 2, mean=fmean(scores), worst=min(scores))


def summary(accuracies: Sequence[Accuracy]) -> Summary:
    """The summary of scored points; strategies in the order in which they first appear."""
    points = [accuracy for accuracy in accuracies if accuracy.counts]
    scored = [(point, point.total.accuracy) for point in points]
    values = [value for _, value in scored if value is not None]
    by_strategy: dict[str, list[float]] = {}
    for point, value in zip(points, values, strict=True):  # all that count have an accuracy
        by_strategy.setdefault(point.strategy, []).append(value)
    means = {strategy: fmean(of) for strategy, of in by_strategy.items()}
    return Summary(
        points=len(points),
        oversubscribed=sum(accuracy.oversubscribed for accuracy in accuracies),
        strategy_means=means,
        mean_of_strategy_means=fmean(means.values()) if means else None,
        mean_over_points=fmean(values) if values else None,
        worst=_worst(points, values) if values else None,
        coverage=fmean(point.total.covered for point in points) if points else None,
        coverage_90=fmean(map(_in_90, points)) if points else None,
        noise_ceiling=noise_ceiling(points),
        strategy_points={strategy: len(of) for strategy, of in by_strategy.items()},
        phase_means=_phase_means(points),
        overlap=fmean(point.total.overlap for point in points) if points else None,
        memory=_memory(accuracies),
    )


def _in_90(point: Accuracy) -> bool:
    """Whether the measured median lies inside the predicted 90% interval."""
    low, high = point.total.predicted.interval(0.90)
    return low <= point.total.measured.value <= high


def _worst(points: Sequence[Accuracy], values: Sequence[float]) -> Worst:
    """The point with the lowest value, the first of several."""
    index = min(range(len(values)), key=values.__getitem__)
    point = points[index]
    return Worst(
        model=point.model,
        strategy=point.strategy,
        layout=point.layout,
        p=point.p,
        batch_per_rank=point.batch_per_rank,
        accuracy=values[index],
    )


def _phase_means(points: Sequence[Accuracy]) -> dict[str, float]:
    found = {}
    for phase in occurring(points):
        each = (point.phases[phase].accuracy for point in points)
        values = [value for value in each if value is not None]
        if values:
            found[phase] = fmean(values)
    return found


def _memory(accuracies: Sequence[Accuracy]) -> MemorySummary | None:
    points = [accuracy for accuracy in accuracies if accuracy.memory is not None]
    found = [accuracy.memory for accuracy in points if accuracy.memory is not None]
    if not found:
        return None
    values = [memory.accuracy for memory in found]
    return MemorySummary(
        points=len(found),
        mean=fmean(values),
        worst=_worst(points, values),
        coverage=fmean(memory.covered for memory in found),
    )
