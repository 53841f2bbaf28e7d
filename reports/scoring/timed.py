"""What a training took: medians of its launches, as it was and at the speed of the calibration.

A training of several launches of the ranks, whose turns lie minutes apart, takes the mean of their
medians: launches of the same work differ by more than the iterations of one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from calib.foundation.records import Estimate
from calib.foundation.statistics import median, median_interval, quantile
from calib.microbench.records.looks import DISTURBANCES, Disturbance, Look
from calib.training.run.lines import SHARED_PHASES, TIMED_PHASES
from calib.training.run.record import TrainingRun

# Of the time of a run, from which a disturbance counts. Under it, the median of all iterations lies in
# the middle half of the undisturbed ones, at most at their quantile 0.5 / (1 - share) = 0.67.
LEAST_DISTURBED = 0.25
NO_TIME = Estimate.exactly(0.0)


@dataclass(frozen=True)
class Timed:
    """The timed iterations of one launch; s.

    `waited` and `alone`, the iteration without what was waited for a core, are None where nobody
    counted that. `sent` is the share of the iterations that is messages.
    """

    totals: list[float]
    total: Estimate
    phases: dict[str, Estimate]
    sent: float
    waited: float | None
    alone: Estimate | None

    @classmethod
    def of(cls, run: TrainingRun) -> Timed:
        """Of the launch of a run that is scored."""
        times = [iteration.times for iteration in run.timed]
        totals = [seconds for seconds, _ in times]
        waits, alone = _waits(run), None
        if waits is not None:
            pairs = zip(totals, waits, strict=True)
            alone = _measured([max(0.0, total - wait) for total, wait in pairs])
        return cls(
            totals=totals,
            total=_measured(totals),
            phases={
                name: _measured([phases[name] for _, phases in times]) for name in TIMED_PHASES
            },
            sent=_sent_share(times),
            waited=None if waits is None else math.fsum(waits),
            alone=alone,
        )

    @property
    def spread(self) -> float | None:
        """(q75 - q25) / median of the iterations; None where the median is 0."""
        middle, totals = self.total.value, self.totals
        return (quantile(totals, 0.75) - quantile(totals, 0.25)) / middle if middle > 0 else None


def looks_of(run: TrainingRun) -> list[Look]:
    """How the machine was during a run."""
    return run.end.looks if run.end else []


def mean_of(launches: Iterable[Estimate]) -> Estimate:
    """The mean of estimates whose errors are independent: what these launches took, not others."""
    found = list(launches)
    n, value = len(found), fmean(of.value for of in found)
    below = math.hypot(*(of.value - of.low for of in found)) / n
    above = math.hypot(*(of.high - of.value for of in found)) / n
    return Estimate(value=value, low=max(0.0, value - below), high=value + above)


def at_speed(launches: Sequence[Timed], slowdown: Estimate | None) -> Estimate | None:
    """Seconds of an iteration without waiting, at the speed of the calibration; None: nothing is known.

    The relative errors of the mean and of the slowdown are independent of one another.
    """
    if slowdown is None and all(launch.alone is None for launch in launches):
        return None
    alone = mean_of(launch.alone or launch.total for launch in launches)
    if slowdown is None or slowdown.low <= 0 or alone.low <= 0:
        return alone
    value = alone.value / slowdown.value
    down = math.hypot(math.log(alone.value / alone.low), math.log(slowdown.high / slowdown.value))
    up = math.hypot(math.log(alone.high / alone.value), math.log(slowdown.value / slowdown.low))
    return Estimate(value=value, low=value * math.exp(-down), high=value * math.exp(up))


def share_waited(launches: Sequence[Timed]) -> float | None:
    """Share of the iterations in which a rank waited for a core; None unless all counted it."""
    waits = [launch.waited for launch in launches if launch.waited is not None]
    if len(waits) < len(launches):
        return None
    return min(1.0, math.fsum(waits) / math.fsum(sum(launch.totals) for launch in launches))


def disturbed_by(looks: Sequence[Look]) -> list[Disturbance]:
    """What disturbed at least LEAST_DISTURBED of the time of these looks."""
    seconds = math.fsum(look.window_s for look in looks)
    return [
        word
        for word in DISTURBANCES
        if (found := [look.window_s for look in looks if word in look.disturbed])
        and math.fsum(found) >= LEAST_DISTURBED * seconds
    ]


def _measured(values: Sequence[float]) -> Estimate:
    if not any(values):
        return NO_TIME
    low, high = median_interval(values)
    return Estimate(value=median(values), low=low, high=high)


def _sent_share(times: Sequence[tuple[float, dict[str, float]]]) -> float:
    """Share of the iterations' time in the phases that are messages."""
    sent = math.fsum(phases[name] for _, phases in times for name in SHARED_PHASES)
    return min(1.0, sent / math.fsum(total for total, _ in times))


def _waits(run: TrainingRun) -> list[float] | None:
    """The most that a rank waited for a core, s, in each timed iteration; None where nobody counted.

    Nothing where nobody else was seen on the cores: threads of the ranks wait for one another, too.
    """
    looks = looks_of(run)
    if looks and "cores" not in disturbed_by(looks):
        return [0.0] * len(run.timed)
    found = [max(each.waited) for each in run.timed if each.waited]
    return found if found and len(found) == len(run.timed) else None
