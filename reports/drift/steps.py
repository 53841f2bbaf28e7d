"""Steps between the levels of a series: how large, and which are undone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtrit

from calib.foundation.arrays import Floats
from calib.reports.drift.baselines import Baselines, level_of

SURE = 2.6  # standard errors (99%): levels that are no further apart are the same


@dataclass(frozen=True)
class FoundStep:
    """Nights are indices into the series; changes have a 95% interval, `noise` is one deviation."""

    first: int
    seen: int
    change: float
    low: float
    high: float
    noise: float
    undone: bool = False


def belongs(accepted: int, first: int, seen: int) -> bool:
    """Whether accepting a night accepts this step: the night may have been read off a figure."""
    return first - 2 <= accepted <= seen


def steps_between(
    x: Floats,
    firsts: Sequence[int],
    alarms: Sequence[int],
    least_change: float,
    most: int,
    accepted: Sequence[int] = (),
    baseline: tuple[int, int] | None = None,
) -> list[FoundStep]:
    """The steps to each level but the first. `firsts` [levels], `alarms` [levels - 1] are nights.

    A change is from the last `most` nights before to the first `most` nights after; with a
    `baseline` (first, last), from its nights. A step is undone where a later level is again that
    before it, and so are the steps between and the return, which leaves nothing to explain. An
    accepted step makes a new normal: levels before it are forgotten.
    """
    if not alarms:
        return []
    ends = [*firsts[1:], len(x)]
    scatter = np.empty(0)
    starts: list[Baselines] = []
    lasts: list[Baselines] = []
    for number, (first, end) in enumerate(zip(firsts, ends, strict=True)):
        nights = x[first:end]
        if number == 0 and baseline is not None:
            nights = x[baseline[0] : baseline[1] + 1]
        starts.append(level_of(nights[:most], scatter))
        lasts.append(level_of(nights[-most:], scatter))
        scatter = np.concatenate([scatter, nights[-most:] - lasts[-1].location[0]])[-most:]
    steps = []
    for number, seen in enumerate(alarms, start=1):
        before = lasts[0 if baseline is not None else number - 1]
        steps.append(_step(before, starts[number], firsts[number], seen))
    return _undone(steps, starts, lasts, least_change, accepted)


def _error(level: Baselines) -> float:
    return float(level.scatter[0] / np.sqrt(level.nights[0]))


def _step(before: Baselines, after: Baselines, first: int, seen: int) -> FoundStep:
    change = float(after.location[0] - before.location[0])
    half = float(stdtrit(after.freedom[0], 0.975)) * float(np.hypot(_error(before), _error(after)))
    noise = float(after.scatter[0])
    return FoundStep(first, seen, change, change - half, change + half, noise)


def _undone(
    steps: Sequence[FoundStep],
    starts: Sequence[Baselines],
    lasts: Sequence[Baselines],
    least_change: float,
    accepted: Sequence[int],
) -> list[FoundStep]:
    """The steps, those that a later one took back marked."""
    undone: set[int] = set()
    standing = [0]  # levels from which the present one was reached by steps that stand
    for number, step in enumerate(steps, start=1):
        if any(belongs(night, step.first, step.seen) for night in accepted):
            standing = [number]
            continue
        for place in range(len(standing) - 2, -1, -1):
            old, left = lasts[standing[place]], steps[standing[place + 1] - 1]
            apart = abs(float(starts[number].location[0] - old.location[0]))
            near = max(least_change, SURE * float(np.hypot(_error(old), _error(starts[number]))))
            size = abs(float(starts[standing[place + 1]].location[0] - old.location[0]))
            if apart <= near and apart < 0.5 * size:
                undone.update(range(left.first, step.first + 1))
                standing = [*standing[: place + 1]]
                break
        else:
            standing.append(number)
    # steps between `left` and the return lie between their first nights
    return [replace(step, undone=step.first in undone) for step in steps]
