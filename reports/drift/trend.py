"""Trend of a history: a line of numbers per night, a line of marks per strategy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import fmean

from calib.reports.drift.records import Drift, Step
from calib.reports.history.records import Past, PastNight, PastPoint
from calib.reports.history.rows import moment
from calib.reports.scoring.intervals import interval_score

BARS = "▁▂▃▄▅▆▇█"
GAP = "·"
NARROWEST = (
    0.02  # of accuracy: less than this from bottom to top would make noise look like a trend
)
WIDEST = 100  # marks in a line


@dataclass(frozen=True)
class Trend:
    """What a night scored: means of accuracy over the points that count, as in a report's summary.

    `night` is an index into Past.nights. `scored` are all points that have an accuracy; the means are
    None, and `worst` too, where none of them counts. `mean_at_speed`: the mean of strategy means at the
    speed of the calibration; a point of which that is not known counts as it is.
    """

    night: int
    of: PastNight
    scored: int
    strategy_means: dict[str, float]
    strategy_points: dict[str, int]
    mean_of_strategy_means: float | None
    worst: PastPoint | None
    coverage: float | None  # of the 95% intervals
    half_width: float | None
    interval_score: float | None  # also where an interval reaches down to 0
    disturbed: int  # points that count, and that others disturbed
    mean_at_speed: float | None


def trend(past: Past) -> list[Trend]:
    """One Trend per night, the oldest first; strategies in the order of a night's points."""
    points: list[list[PastPoint]] = [[] for _ in past.nights]
    for point in past.points:
        points[point.night].append(point)
    return [_of_night(index, night, points[index]) for index, night in enumerate(past.nights)]


def _of_night(index: int, night: PastNight, points: Sequence[PastPoint]) -> Trend:
    by_strategy: dict[str, list[float]] = {}
    at_speed: dict[str, list[float]] = {}
    counting: list[PastPoint] = []
    worst: tuple[float, PastPoint] | None = None
    scored = 0
    for point in points:
        accuracy = point.accuracy
        if accuracy is None:
            continue
        scored += 1
        if not point.counts:
            continue
        counting.append(point)
        by_strategy.setdefault(point.strategy, []).append(accuracy)
        other = point.accuracy_at_speed
        at_speed.setdefault(point.strategy, []).append(accuracy if other is None else other)
        if worst is None or accuracy < worst[0]:
            worst = accuracy, point
    means = {strategy: fmean(of) for strategy, of in by_strategy.items()}
    return Trend(
        night=index,
        of=night,
        scored=scored,
        strategy_means=means,
        strategy_points={strategy: len(of) for strategy, of in by_strategy.items()},
        mean_of_strategy_means=fmean(means.values()) if means else None,
        worst=worst[1] if worst else None,
        coverage=_mean(x.predicted_low_s <= x.measured_s <= x.predicted_high_s for x in counting),
        half_width=_mean(map(_half_width, counting)),
        interval_score=_mean(
            interval_score(x.predicted_low_s, x.predicted_high_s, x.measured_s) for x in counting
        ),
        disturbed=sum(point.disturbed_by_others for point in counting),
        mean_at_speed=fmean(map(fmean, at_speed.values()))
        if any(point.at_speed_s is not None for point in counting)
        else None,
    )


def _half_width(of: PastPoint) -> float:
    """Of the 95% interval, over the predicted time."""
    width = of.predicted_high_s - of.predicted_low_s
    return width / (2.0 * of.predicted_s) if of.predicted_s > 0 else 0.0


def _mean(values: Iterable[float]) -> float | None:
    """None where there is none, or an infinite one."""
    found = list(values)
    mean = fmean(found) if found else math.inf
    return mean if math.isfinite(mean) else None


def steps_at(night: int, drift: Drift) -> tuple[list[Step], list[Step]]:
    """Steps that begin with a night, and older ones that are open to this day."""
    begin = [step for step in drift.steps if step.first == night]
    return begin, [step for step in drift.steps if step.first < night and step.is_open]


def clock(started: str) -> str:
    """A start as 2026-11-03 01:00, UTC."""
    return datetime.fromtimestamp(moment(started, "started"), UTC).strftime("%Y-%m-%d %H:%M")


def strategies(nights: Sequence[Trend]) -> list[str]:
    """All strategies of these nights, in the order in which they appear."""
    return list(dict.fromkeys(name for night in nights for name in night.strategy_means))


def marks(values: Sequence[float | None]) -> str:
    """A bar per value between the lowest and the highest of them, a dot where there is none.

    The scale spans at least NARROWEST. Of more than WIDEST values, a mark is the mean of several.
    """
    each = -(-len(values) // WIDEST)
    groups = [values[k : k + max(each, 1)] for k in range(0, len(values), max(each, 1))]
    found = [[value for value in group if value is not None] for group in groups]
    means = [fmean(group) if group else None for group in found]
    known = [mean for mean in means if mean is not None]
    if not known:
        return GAP * len(means)
    low, high = min(known), max(known)
    spare = max(0.0, NARROWEST - (high - low)) / 2
    low, high = low - spare, high + spare

    span = (high - low) or 1.0  # of very large ones, the spare is lost in rounding

    def mark(mean: float) -> str:
        return BARS[min(len(BARS) - 1, int((mean - low) / span * len(BARS)))]

    return "".join(GAP if mean is None else mark(mean) for mean in means)
