"""Steps in one series of numbers that its noise does not explain. Pure: no clock, no randomness.

A control chart with runs rules on robustly standardised values (limits.py says whose). A night's
normal is the level of the nights before those under test: their 10% trimmed mean, with the scatter
of their winsorised standard deviation (Tukey and McLaughlin, Sankhya A 25, 1963) or that which their
94% point tells, whichever is larger. A rule alarms when k of the last m nights lie beyond its limit
on one side, so that one night that is out, or two in a row, never do. Then the night on which the
new level began is sought by least squares, the level begins anew, and the search goes on.

Over all nights of a year, all series and all rules, both ways, the limits share one probability of a
false alarm (Bonferroni's bound, which holds however the series are correlated).
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calib.foundation.arrays import Floats
from calib.foundation.words import counted
from calib.reports.drift.baselines import Baselines, baselines, fixed_baseline
from calib.reports.drift.limits import limit_factors, night_share
from calib.reports.drift.steps import FoundStep, steps_between

NINE_OF_TEN = 1.82  # normal point which all of three nights are above with 90%: Phi(1.82)^3
MIDDLE_OF_THREE = 0.86  # and which the median of three is
WIDER = 1.2  # than the nights that were out
BACK = 5  # nights before those under test in which a step may have begun


class Rule(NamedTuple):
    """k of the last m nights beyond the limit, which gets `share` of the false alarms."""

    k: int
    m: int
    share: float


# the first finds a step on its third night; the second, too, where three nights in a row that are
# out happen by chance; the others find what is small beside the noise
RULES = (Rule(3, 3, 0.5), Rule(4, 5, 0.15), Rule(7, 9, 0.2), Rule(12, 14, 0.15))


@dataclass(frozen=True)
class StepSettings:
    """What a step is. Changes are of the logarithm: 0.02 is 2%."""

    false_alarms: float = 0.01  # probability of any, in a year of all series together
    nights_per_year: int = 365
    rules: tuple[Rule, ...] = RULES
    baseline_nights: int = 90  # at most
    least_nights: int = 10  # from which scatter is known
    least_level: int = 5  # nights of a new level before it is judged (scatter is that of before)
    least_change: float = 0.02  # nobody acts on less
    creep: float = 0.003  # by how much slow changes may move the level meanwhile

    def chance(self, rule: Rule, series_count: int) -> float:
        """Of a false alarm of the rule in one night of one series, on one side."""
        nights = self.nights_per_year * _rounded_up(series_count)
        return self.false_alarms * rule.share / (2 * nights)


def _rounded_up(count: int) -> int:
    """To a power of two, so that one more series does not change the steps of the others."""
    return 1 << max(0, count - 1).bit_length()


@dataclass(frozen=True)
class WatchedSeries:
    """All that a series says: its steps, and what would be found now.

    `sensitivity`: the smallest step that would be found within three nights in 9 of 10 cases; None
    where the series is not judged, and `why` says why.
    """

    steps: list[FoundStep] = field(default_factory=list)
    sensitivity: float | None = None
    why: str = ""


def watch(
    values: Sequence[float] | Floats,
    series_count: int = 80,
    settings: StepSettings | None = None,
    baseline: tuple[int, int] | None = None,
    accepted: Sequence[int] = (),
) -> WatchedSeries:
    """The steps of a series (logarithms, one per night, in order of time; gaps are left out).

    What was found in the first nights stays found when more nights follow; only the sizes of the
    steps are then better known. Raises ValueError for values that are not finite.

    `series_count`: the series that share the probability of a false alarm. `baseline` (first, last):
    the nights that are the normal of all later ones; earlier nights are not judged, and the changes
    are those from the normal. `accepted`: nights with which accepted steps begin; a return to the
    level before one is a step of its own.
    """
    of = settings or StepSettings()
    x = np.asarray(values, dtype=np.float64)
    if not np.isfinite(x).all():
        raise ValueError("a series has values that are not finite")
    start = 0 if baseline is None else baseline[1] + 1
    least = of.rules[0].m + (of.least_nights if baseline is None else 0)
    if len(x) - start < least:
        return WatchedSeries(why=f"{counted(len(x) - start, 'night')}; it takes {least}")
    chart = _Chart(x, series_count, of, baseline)
    chart.run()
    steps = steps_between(
        x, chart.firsts, chart.alarms, of.least_change, of.baseline_nights, accepted, baseline
    )
    waiting = of.least_level + of.rules[0].m
    last = len(x) - chart.firsts[-1]
    why = (
        f"{counted(last, 'night')} since its last step; it takes {waiting}"
        if last < waiting
        else ""
    )
    return WatchedSeries(
        steps, None if why and steps else chart.sensitivity(), why if steps else ""
    )


class _Chart:
    """One pass over a series, level by level: where levels begin, and when that was seen."""

    def __init__(
        self, x: Floats, series_count: int, of: StepSettings, baseline: tuple[int, int] | None
    ) -> None:
        self.x, self.of, self.baseline = x, of, baseline
        self.chances = [of.chance(rule, series_count) for rule in of.rules]
        self.firsts = [0 if baseline is None else baseline[0]]
        self.alarms: list[int] = []
        self.residuals = np.empty(0)  # of earlier levels, of at most baseline_nights
        self.out: list[float] = []  # distances of nights beyond the first rule's limit, in order
        self.nights = 0  # of how many
        self.level: Baselines | None = None
        self.normal: float | None = None  # the level of the fixed baseline
        self.limit = math.inf

    def run(self) -> None:
        """Find every step."""
        tested = 0
        while True:
            first = self.firsts[-1]
            self.level, judged = self._known(first)
            limits = self._limits(self.level)
            away, beyond = self._beyond(self.level, judged, limits[0])
            limits[0] = self._past_outliers(away, beyond, limits[0])
            self.limit = float(limits[0][:, -1].max())
            found = self._first_alarm(first, tested, self.level, judged, limits)
            if found is None:
                return
            rule, night = found
            base = night - rule.m - first
            begins = self._begin(first, night, rule, base)
            last = begins - first
            for distance in away[:last][beyond[:last]]:
                insort(self.out, float(distance))
            self.nights += last
            away_from_end = self.x[first:begins] - self.level.location[last - 1]
            kept = np.concatenate([self.residuals, away_from_end])
            self.residuals = kept[-self.of.baseline_nights :]
            self.firsts.append(begins)
            self.alarms.append(night)
            tested = night + 1

    def _known(self, first: int) -> tuple[Baselines, NDArray[np.bool_]]:
        """What is known after each night of the level, and for which nights that is enough to judge."""
        of, x = self.of, self.x[first:]
        order = np.arange(len(x))
        if self.baseline is not None:
            start, end = self.baseline
            if self.normal is None or self._is_back(first):
                fixed = fixed_baseline(self.x[start:], end - start + 1, of.baseline_nights)
                self.normal = float(fixed.location[-1])
                after = Baselines(*(column[: len(x)] for column in fixed))
                return after, order >= (end - first if first == start else 0)
        least = of.least_level if len(self.residuals) >= of.least_nights else of.least_nights
        return baselines(x, self.residuals, of.baseline_nights), order >= least - 1

    def _is_back(self, first: int) -> bool:
        """Whether the nights from `first` to the alarm are at the fixed baseline's level."""
        if self.normal is None or not self.alarms:
            return False
        after = float(np.median(self.x[first : self.alarms[-1] + 1]))
        return abs(after - self.normal) <= self.of.least_change

    def _limits(self, level: Baselines) -> list[Floats]:
        """Distance from the level [up and down, nights] beyond which a night counts, for each rule."""
        known = level.nights, level.freedom, level.correlation
        sides = np.stack([level.up, level.down])
        return [
            self.of.creep + sides * limit_factors(rule.k, rule.m, chance, *known)
            for rule, chance in zip(self.of.rules, self.chances, strict=True)
        ]

    def _beyond(
        self, level: Baselines, judged: NDArray[np.bool_], limits: Floats
    ) -> tuple[Floats, NDArray[np.bool_]]:
        """(distance of each night from the level before, whether it is over the first limit)."""
        m, x = self.of.rules[0].m, self.x[self.firsts[-1] :]
        away, known = np.zeros(len(x)), np.full((2, len(x)), np.inf)
        away[m:] = x[m:] - level.location[:-m]
        known[:, m:] = np.where(judged, limits, np.inf)[:, :-m]
        return np.abs(away), (away > known[0]) | (away < -known[1])

    def _past_outliers(self, away: Floats, beyond: NDArray[np.bool_], limits: Floats) -> Floats:
        """The first rule's limit, widened where more nights were out than the noise allows.

        Tails are as heavy as they are: the limit is to be one that no larger share of all nights so far
        was beyond than the rule was made for. One outlier is no tail.
        """
        share = 2.0 * night_share(self.of.rules[0].k, self.of.rules[0].m, self.chances[0])
        widened, out = limits.copy(), list(self.out)
        times = [int(at) for at in np.flatnonzero(beyond)]
        for number, at in enumerate(times):
            insort(out, float(away[at]))
            until = times[number + 1] if number + 1 < len(times) else len(away)
            nights = self.nights + np.arange(at + 1, until + 1)
            allowed = np.maximum(np.round(share * nights).astype(np.int64), 1)
            place = len(out) - 1 - allowed
            heavy = np.where(place >= 0, np.array(out)[np.maximum(place, 0)] * WIDER, 0.0)
            widened[:, at:until] = np.maximum(limits[:, at:until], heavy)
        return widened

    def _first_alarm(
        self,
        first: int,
        tested: int,
        level: Baselines,
        judged: NDArray[np.bool_],
        limits: Sequence[Floats],
    ) -> tuple[Rule, int] | None:
        """The first night from `tested` on with an alarm, and the first rule that gives it."""
        x = self.x[first:]
        found: tuple[int, int] | None = None
        for index, (rule, limit) in enumerate(zip(self.of.rules, limits, strict=True)):
            if len(x) <= rule.m:
                continue
            windows = np.lib.stride_tricks.sliding_window_view(x, rule.m)[1:]
            away = windows - level.location[: -rule.m, None]
            out = limit[:, : -rule.m, None]
            up, down = (away > out[0]).sum(axis=1), (away < -out[1]).sum(axis=1)
            alarms = (np.maximum(up, down) >= rule.k) & judged[: -rule.m]
            alarms[: max(0, tested - first - rule.m)] = False
            for at in np.flatnonzero(alarms):
                if abs(np.median(away[at])) >= self.of.least_change:
                    candidate = (int(at) + rule.m, index)
                    found = candidate if found is None else min(found, candidate)
                    break
        return None if found is None else (self.of.rules[found[1]], first + found[0])

    def _begin(self, first: int, night: int, rule: Rule, base: int) -> int:
        """The first night of the new level: the split with the least squares.

        The level before is known; that after is the median of its nights. No night weighs more than
        one that is three scatters out.
        """
        assert self.level is not None
        start = max(first + 1, night - rule.m - BACK + 1)
        x, before = self.x[start : night + 1], float(self.level.location[base])
        cap = max(9.0 * float(self.level.scatter[base]) ** 2, 1e-18)
        old = np.minimum((x - before) ** 2, cap)
        splits = range(len(x) - 2)
        costs = [
            old[:at].sum() + np.minimum((x[at:] - np.median(x[at:])) ** 2, cap).sum()
            for at in splits
        ]
        return start + int(np.argmin(costs))

    def sensitivity(self) -> float:
        """The smallest step, in the series' unit, found within three nights in 9 of 10 cases."""
        assert self.level is not None
        scatter = float(self.level.scatter[-1])
        least = self.of.least_change + MIDDLE_OF_THREE * scatter
        return max(self.limit + NINE_OF_TEN * scatter, least)
