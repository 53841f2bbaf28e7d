"""What a list of accuracies says as a whole: means, worst point, coverage, noise ceiling."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import fmean

from pydantic import Field

from reports.accuracy import Accuracy, Record, score


class Worst(Record):
    """The point with the lowest accuracy."""

    model: str
    strategy: str
    p: int
    batch_per_pe: int | float
    accuracy: float


class NoiseCeiling(Record):
    """How well one run predicts another run of the same work; no oracle can be expected to beat it.

    Each of `pairs` is scored both ways, as the accuracy is relative to the run that is predicted.
    """

    pairs: int = Field(ge=1)
    mean: float
    worst: float


class Summary(Record):
    """Over the points that count: scored, and not oversubscribed. None where there is no point."""

    points: int = Field(ge=0, description="points that count")
    oversubscribed: int = Field(ge=0, description="points that were scored and left out")
    strategy_means: dict[str, float] = Field(description="unweighted mean over a strategy's points")
    mean_of_strategy_means: float | None = Field(description="as the ParaDL paper's 86.74%")
    mean_over_points: float | None
    worst: Worst | None
    coverage: float | None = Field(
        description="share of points whose measured median lies inside the predicted interval"
    )
    noise_ceiling: NoiseCeiling | None = Field(description="None where no work was run twice")


def noise_ceiling(accuracies: Sequence[Accuracy]) -> NoiseCeiling | None:
    """Score the measured medians of runs of the same work against each other.

    The same work: `Accuracy.work`; data parallelism on one PE is the serial run. Oversubscribed
    runs are left out. None where no work was run twice.
    """
    scores: list[float] = []
    pairs = 0
    for one, other in combinations([a for a in accuracies if a.counts], 2):
        if one.work != other.work:
            continue
        pairs += 1
        times = one.total.measured.seconds, other.total.measured.seconds
        both = score(times[0], times[1]), score(times[1], times[0])
        scores += [value for value in both if value is not None]
    if not scores:
        return None
    return NoiseCeiling(pairs=pairs, mean=fmean(scores), worst=min(scores))


def summary(accuracies: Sequence[Accuracy]) -> Summary:
    """The summary of scored points; strategies in the order in which they first appear."""
    by_strategy: dict[str, list[float]] = {}
    points = [accuracy for accuracy in accuracies if accuracy.counts]
    values: list[float] = []
    worst: Worst | None = None
    for point in points:
        value = point.total.accuracy
        assert value is not None  # counts
        values.append(value)
        by_strategy.setdefault(point.strategy, []).append(value)
        if worst is None or value < worst.accuracy:
            worst = Worst(
                model=point.model,
                strategy=point.strategy,
                p=point.p,
                batch_per_pe=point.batch_per_pe,
                accuracy=value,
            )
    means = {strategy: fmean(of) for strategy, of in by_strategy.items()}
    return Summary(
        points=len(points),
        oversubscribed=sum(accuracy.oversubscribed for accuracy in accuracies),
        strategy_means=means,
        mean_of_strategy_means=fmean(means.values()) if means else None,
        mean_over_points=fmean(values) if values else None,
        worst=worst,
        coverage=fmean(point.total.covered for point in points) if points else None,
        noise_ceiling=noise_ceiling(accuracies),
    )
