"""Summary of scores: means, worst point, intervals, noise ceiling; as it is, and at another speed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from statistics import fmean, median

from pydantic import Field

from calib.foundation.names import LayoutWords, ModelName, StrategyLabel
from calib.foundation.records import Record
from calib.microbench.records.looks import DISTURBANCES, Disturbance
from calib.reports.scoring.accuracy import Accuracy, occurring, score
from calib.reports.scoring.intervals import IntervalSummary, interval_summary


class Worst(Record):
    """The point with the lowest accuracy."""

    model: ModelName
    strategy: StrategyLabel
    layout: LayoutWords = ""
    p: int = Field(description="number of ranks")
    batch_per_rank: int | float = Field(description="samples per rank")
    accuracy: float = Field(description="1 - |predicted - measured| / measured")


class NoiseCeiling(Record):
    """How well one launch predicts the next of the same work; of single launches no oracle is better.

    Each of `pairs` is scored both ways, as the accuracy is relative to the launch that is predicted.
    """

    pairs: int = Field(ge=1, description="launches of the same work and the next one of it")
    mean: float = Field(description="of the scores")
    worst: float = Field(description="the lowest of the scores")


class MemorySummary(Record):
    """Peak memory of a rank, over all points that have one: too many ranks for the cores change none."""

    points: int = Field(ge=1, description="how many points")
    mean: float = Field(description="of the points' accuracy")
    worst: Worst = Field(description="the point with the lowest accuracy")
    coverage: float = Field(description="share of measured peaks inside the predicted interval")


class SpeedSummary(Record):
    """The points that count at the speed that the machine had when it was calibrated.

    A point of which that is not known counts as it is.
    """

    points: int = Field(ge=1, description="points whose speed is known")
    waited: float | None = Field(
        description="median share of its iterations in which a point's ranks waited for a core"
    )
    slowdown: float | None = Field(
        description="median of how many times as long a point's work takes as when it was calibrated, "
        "by the references"
    )
    strategy_means: dict[str, float] = Field(description="unweighted mean over a strategy's points")
    mean_of_strategy_means: float = Field(description="mean of these")
    worst: Worst = Field(description="the point with the lowest accuracy")
    intervals: IntervalSummary = Field(description="coverage and width, over all points")


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
    intervals: IntervalSummary | None = Field(
        description="coverage and width of the predicted intervals, and their score"
    )
    strategy_intervals: dict[str, IntervalSummary] = Field(
        default_factory=dict, description="the same of each strategy's points"
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
    at_speed: SpeedSummary | None = Field(
        default=None,
        description="at the speed of the calibration; null where no point's speed is known",
    )
    disturbances: dict[Disturbance, int] = Field(
        default_factory=dict, description="points that count and that each of these disturbed"
    )

    @property
    def coverage(self) -> float | None:
        """Share of points whose measured median lies inside the predicted 95% interval."""
        return self.intervals.coverage if self.intervals else None

    @property
    def coverage_90(self) -> float | None:
        """The same of the predicted 90% interval."""
        return self.intervals.coverage_90 if self.intervals else None


def noise_ceiling(accuracies: Iterable[Accuracy]) -> NoiseCeiling | None:
    """Score the measured medians of launches of the same work against each other.

    A pair is a launch and the next one of the same work, by the time of start of the training: what a
    launch tells about the one that follows. All pairs would be quadratic in the nights of a year, and
    would count a slow drift over the year as noise. The same work: `Accuracy.work`; data parallelism on
    one rank is the serial run. Oversubscribed runs are left out. None where no work was run twice.
    """
    runs: dict[object, list[Accuracy]] = {}
    for accuracy in accuracies:
        if accuracy.counts:
            runs.setdefault(accuracy.work, []).append(accuracy)
    scores: list[float] = []
    for of in runs.values():
        of.sort(key=lambda accuracy: accuracy.started)
        for one, other in pairwise(chain.from_iterable(accuracy.launch_s for accuracy in of)):
            both = score(one, other), score(other, one)
            scores += [value for value in both if value is not None]
    if not scores:
        return None
    return NoiseCeiling(pairs=len(scores) // 2, mean=fmean(scores), worst=min(scores))


def summary(accuracies: Sequence[Accuracy]) -> Summary:
    """The summary of scored points; strategies in the order in which they first appear."""
    points = [accuracy for accuracy in accuracies if accuracy.counts]
    values = _values(points)
    by_strategy = _by_strategy(points)
    means = {strategy: fmean(_values(of)) for strategy, of in by_strategy.items()}
    return Summary(
        points=len(points),
        oversubscribed=sum(accuracy.oversubscribed for accuracy in accuracies),
        strategy_means=means,
        mean_of_strategy_means=fmean(means.values()) if means else None,
        mean_over_points=fmean(values) if values else None,
        worst=_worst(points, values) if values else None,
        intervals=interval_summary(points),
        strategy_intervals={
            strategy: found
            for strategy, of in by_strategy.items()
            if (found := interval_summary(of))
        },
        noise_ceiling=noise_ceiling(points),
        strategy_points={strategy: len(of) for strategy, of in by_strategy.items()},
        phase_means=_phase_means(points),
        overlap=fmean(point.total.overlap for point in points) if points else None,
        memory=_memory(accuracies),
        at_speed=_at_speed(points),
        disturbances={
            word: n for word in DISTURBANCES if (n := sum(word in of.disturbed for of in points))
        },
    )


def _by_strategy(points: Sequence[Accuracy]) -> dict[str, list[Accuracy]]:
    found: dict[str, list[Accuracy]] = {}
    for point in points:
        found.setdefault(point.strategy, []).append(point)
    return found


def _values(points: Sequence[Accuracy], at_speed: bool = False) -> list[float]:
    """The accuracy of each point; all that count have one."""
    each = [point.compared(at_speed).accuracy for point in points]
    return [value for value in each if value is not None]


def _at_speed(points: Sequence[Accuracy]) -> SpeedSummary | None:
    # one without any time left beside its waiting has no accuracy at that speed
    known = [point for point in points if point.compared(at_speed=True).accuracy is not None]
    intervals = interval_summary(known, at_speed=True)
    waits = [point.waited for point in known if point.waited is not None]
    slower = [point.slowdown.value for point in known if point.slowdown is not None]
    counted = sum(point.at_speed is not None for point in known)
    if not counted or intervals is None:
        return None
    means = {name: fmean(_values(of, True)) for name, of in _by_strategy(known).items()}
    return SpeedSummary(
        points=counted,
        waited=median(waits) if waits else None,
        slowdown=median(slower) if slower else None,
        strategy_means=means,
        mean_of_strategy_means=fmean(means.values()),
        worst=_worst(known, _values(known, True)),
        intervals=intervals,
    )


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
