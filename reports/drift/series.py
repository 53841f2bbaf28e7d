"""Nights of a history as series, in which a missing point makes no step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from calib.foundation.arrays import Floats
from calib.foundation.execution import unusual
from calib.reports.drift.records import Of, Series
from calib.reports.history.records import Past, PastCheck, PastPoint

JOINS_AFTER = 5  # nights beside the others, from which a new point's level is taken
FORGOTTEN_AFTER = 30  # nights without it, a point is no longer filled in
COMPARED = 30  # nights of which the level of a missing point beside the others is taken
LEAST_SHARE = 0.05  # of an iteration, under which a phase group of a point is nobody's concern

# label in a series' name, what a step in it says, phases
PHASE_GROUPS: tuple[tuple[str, Of, tuple[str, ...]], ...] = (
    ("forward and backward", "kernels", ("forward", "backward")),
    ("communication", "network", ("exchange", "halo", "layerwise")),
    ("packing and update", "memory", ("pack", "update")),
)


def series_of(past: Past) -> list[Series]:
    """All series of a history: of each strategy's training in each execution, and of each thing that is
    checked.

    Values are means of logarithms over the points (or cases) of a night, each beside its own level.
    Checks are of measured seconds alone, and not of measured over expected: what the parameter file
    expects changes with it, and is a series of the predictions. Oversubscribed runs are left out, and so
    are times that others disturbed, which say nothing about the machine: no step begins there, and they
    are no part of a baseline. Predictions and peaks of memory are the same on a disturbed night.
    """
    points: dict[str, list[PastPoint]] = defaultdict(list)
    for point in past.points:
        if point.counts and point.predicted_s > 0:
            name = ", ".join(filter(None, (point.strategy, unusual(point.execution))))
            points[name].append(point)
    sources = [(night.parameters_id, night.program_version) for night in past.nights]
    found: list[Series] = []
    for strategy, of in points.items():
        found += _training(strategy, of, sources)
    return [*found, *_checks(past)]


def _training(
    strategy: str, points: Sequence[PastPoint], sources: Sequence[object]
) -> list[Series]:
    """The series of one strategy and execution; `sources`: what predicted, by night."""
    table = _Table([point.night for point in points], [point.work for point in points])
    quiet = np.array([not point.disturbed_by_others for point in points])
    measured = np.array([point.measured_s for point in points])
    predicted = np.array([point.predicted_s for point in points])
    name = f"accuracy of training, {strategy}"
    nights, grid = table.grid(np.where(quiet, measured / predicted, 0.0))
    made = []
    if nights:
        made.append(Series(name, "accuracy", *level(nights, grid), "accuracy", strategy))
    for label, of, phases in PHASE_GROUPS:
        seconds = np.array([sum(p.phases.get(x, (0.0, 0.0))[1] for x in phases) for p in points])
        kept = quiet & table.large(seconds / measured)
        nights, grid = table.grid(np.where(kept, seconds, 0.0))
        if nights:
            name = f"{label} in training, {strategy}"
            made.append(Series(name, of, *level(nights, grid), "phase", strategy))
    peaks = np.array([float(point.memory_measured_bytes or 0) for point in points])
    nights, grid = table.grid(peaks)
    if nights:
        name = f"peak memory of training, {strategy}"
        made.append(Series(name, "memory", *level(nights, grid), "peak", strategy))
    name = f"predicted time, {strategy}"
    exact = exact_level(*table.grid(predicted), sources)
    return [*made, Series(name, "oracle", *exact, "predicted", strategy)]


def _checks(past: Past) -> list[Series]:
    """One series for each thing that is checked, of its cases."""
    cases: dict[tuple[Of, str], list[PastCheck]] = defaultdict(list)
    kinds: dict[str, set[Of]] = defaultdict(set)
    for check in past.checks:
        if check.measured_s > 0 and not check.disturbed_by_others:
            cases[check.kind, check.what].append(check)
            kinds[check.what].add(check.kind)
    made = []
    for (kind, what), of in cases.items():
        table = _Table([check.night for check in of], [check.case for check in of])
        grid = table.grid(np.array([check.measured_s for check in of]))
        name = what if len(kinds[what]) == 1 else f"{what}, {kind}"
        made.append(Series(name, kind, *level(*grid)))
    return made


class _Table:
    """The grid [night, point] of the values of points; points in the order of their names."""

    def __init__(self, nights: Sequence[int], names: Sequence[str]) -> None:
        known, self.row = np.unique(nights, return_inverse=True)
        self.nights = [int(night) for night in known]
        order = {name: number for number, name in enumerate(sorted(set(names)))}
        self.column = np.array([order[name] for name in names])
        self.shape = len(self.nights), len(order)

    def grid(self, values: Floats) -> tuple[list[int], Floats]:
        """(nights, logarithms [night, point]), NaN where there is none or it is 0.

        A point that ran twice in a night counts once. Nights without any value are left out.
        """
        total, count = np.zeros(self.shape), np.zeros(self.shape)
        there = values > 0
        at = self.row[there], self.column[there]
        np.add.at(total, at, np.log(values[there]))
        np.add.at(count, at, 1.0)
        mean = np.divide(total, count, out=np.full(self.shape, np.nan), where=count > 0)
        some = np.flatnonzero(count.any(axis=1))
        return [self.nights[row] for row in some], mean[some]

    def large(self, shares: Floats) -> NDArray[np.bool_]:
        """[n] Whether a value is of a point whose shares were large in its first nights."""
        first: dict[int, list[float]] = defaultdict(list)
        for column, share in zip(self.column.tolist(), shares.tolist(), strict=True):
            if len(first[column]) < JOINS_AFTER:
                first[column].append(share)
        large = {column for column, found in first.items() if median(found) >= LEAST_SHARE}
        return np.isin(self.column, list(large))


def level(nights: Sequence[int], grid: Floats) -> tuple[list[int], list[float]]:
    """(nights, values) of a grid [night, point]: the mean, as if all points had been there always.

    A point that is missing is taken to lie beside those that are there as it did in its last nights; a
    new one joins at the level that the others have, after some nights; one that has not come for long
    is forgotten. None of these moves the level. A night without any known point is left out, until
    JOINS_AFTER such nights in a row had the same points: another plan, which goes on at the level of
    before. The value of a night rests on it and on those before it.
    """
    filled = np.full(grid.shape, np.nan)  # of known points, with what was missing
    there = np.zeros(grid.shape, dtype=bool)  # known, and measured
    measured = ~np.isnan(grid)
    known: NDArray[np.bool_] = np.zeros(grid.shape[1], dtype=bool)
    offset = np.zeros(grid.shape[1])  # is taken from a point, so that it joins at the others' level
    seen = np.zeros(grid.shape[1], dtype=np.int64)
    joining: dict[int, list[float]] = defaultdict(list)
    shift = 0.0
    fresh: list[int] = []  # nights in a row without any known point
    kept: list[int] = []
    values: list[float] = []
    for number, night in enumerate(nights):
        if not known.any():
            known = measured[number].copy()
        here, at = known & measured[number], len(kept)
        if not here.any():
            fresh = _same_points(measured, [*fresh, number])
            if len(fresh) < JOINS_AFTER:
                continue
            known = here = np.asarray(measured[fresh].all(axis=0))
            offset[known], there[:at, known] = 0.0, False
            joining.clear()
            means = [float(grid[row, known].mean()) for row in fresh]
            shift = median(values[-JOINS_AFTER:]) - median(means)
        fresh = []
        if here.all():  # as on most nights: nothing to fill in, nothing new
            filled[at], there[at], seen = grid[number] - offset, True, np.full(len(here), at)
            kept.append(night)
            values.append(shift + float(filled[at].mean()))
            continue
        filled[at, here] = grid[number, here] - offset[here]
        there[at], seen[here] = here, at
        for column in np.flatnonzero(known & ~here):
            filled[at, column] = _missing(filled, there, at, int(column), here)
        mean = float(filled[at, known].mean())
        kept.append(night)
        values.append(shift + mean)
        for column in np.flatnonzero(measured[number] & ~known):
            joining[int(column)].append(float(grid[number, column]) - mean)
            if len(joining[int(column)]) >= JOINS_AFTER:
                offset[column] = median(joining.pop(int(column)))
                known[column], seen[column] = True, at
                there[:at, column] = False  # where it lay before it was forgotten tells nothing
        gone = known & (at - seen >= FORGOTTEN_AFTER)
        if gone.any():
            known &= ~gone
            shift = values[-1] - float(np.nanmean(filled[at, known]))
    return kept, values


def _same_points(measured: NDArray[np.bool_], nights: list[int]) -> list[int]:
    """The last of these nights, as far back as one point was there in all of them; at least one."""
    while len(nights) > 1 and not measured[nights].all(axis=0).any():
        nights = nights[1:]
    return nights


def _missing(
    filled: Floats, there: NDArray[np.bool_], at: int, column: int, here: NDArray[np.bool_]
) -> float:
    """The value of a missing point, from its usual distance to the points that are `here`."""
    past = np.flatnonzero(there[:at, column])[-COMPARED:]
    others = filled[past][:, here]
    counts = (~np.isnan(others)).sum(axis=1)
    beside = np.nansum(others, axis=1) / np.maximum(counts, 1)
    apart = (filled[past, column] - beside)[counts > 0]
    now = float(filled[at, here].mean())
    return now + (float(np.median(apart)) if len(apart) else 0.0)


def exact_level(
    nights: Sequence[int], grid: Floats, sources: Sequence[object] = ()
) -> tuple[list[int], list[float]]:
    """(nights, values) of what has no noise.

    A night's change is the mean over the points that were there before, each against its last time.
    `sources` (of all nights of the history): on nights with the same one, a point that is missing is
    what it is when it is back, so that it changes with the others and not a night later.
    """
    grid = grid.copy()
    for at in reversed(range(len(nights) - 1 if sources else 0)):
        if sources[nights[at]] == sources[nights[at + 1]]:
            grid[at] = np.where(np.isnan(grid[at]), grid[at + 1], grid[at])
    last = np.full(grid.shape[1], np.nan)
    value = 0.0
    values: list[float] = []
    for row in grid:
        changes = row - last
        both = ~np.isnan(changes)
        value += float(changes[both].mean()) if both.any() else 0.0
        last = np.where(np.isnan(row), last, row)
        values.append(value)
    return list(nights), values
