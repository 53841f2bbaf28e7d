"""Predictions of collectives on more ranks than were measured, against the simulated ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, linear_regression
from typing import cast

from benchmarks.twin.platforms import PER_NODE
from benchmarks.twin.tables import LARGEST, Timed
from calib.fitting.parameters.algorithms import steps_and_volume
from calib.fitting.parameters.file import Parameters
from calib.foundation.collectives import Operation
from calib.oracle.cost import Cost
from calib.oracle.costs.collectives import CollectiveCosts
from calib.oracle.layout.traffic import Message

LARGE = 2**20  # bytes from which on the figures count


@dataclass(frozen=True)
class Scored:
    """A simulated collective and what was said of it before: by calib, and by two simple rules."""

    row: Timed
    cost: Cost
    by_hand_s: float
    log_log_s: float

    @property
    def seconds(self) -> float:
        """Simulated."""
        return self.row.microseconds * 1e-6

    def error(self, predicted_s: float | None = None) -> float:
        """|predicted / simulated - 1|, of calib's if none is given."""
        predicted_s = self.cost.seconds if predicted_s is None else predicted_s
        return abs(predicted_s / self.seconds - 1.0)

    def held(self, level: float) -> bool:
        """Whether the interval of that level has the simulated time in it."""
        low, high = self.cost.record().interval(level)
        return low <= self.seconds <= high


def scored(rows: Sequence[Timed], fit: Parameters, most: int = LARGEST) -> list[Scored]:
    """All rows of one platform with more ranks than `most`, predicted from a fit to the others."""
    measured = [row for row in rows if row.ranks <= most]
    costs = CollectiveCosts(fit)
    return [
        Scored(
            row,
            costs.time(Message(cast("Operation", row.operation), row.nbytes, row.ranks)),
            by_hand(measured, row),
            log_log(measured, row),
        )
        for row in rows
        if row.ranks > most
    ]


def by_hand(measured: Sequence[Timed], row: Timed) -> float:
    """Seconds by scaling the largest run with the steps and the volume of the default algorithm.

    What the smallest message takes grows with the steps, the rest with the volume.
    """
    runs = [each for each in measured if each.operation == row.operation]
    largest = max(runs, key=lambda each: (each.ranks, -each.nodes))
    times = {each.nbytes: each.microseconds for each in runs if each[2:4] == largest[2:4]}
    start = times[min(times)]
    (steps, volume), (more, wider) = (
        steps_and_volume(row.operation, ranks) for ranks in (largest.ranks, row.ranks)
    )
    bytes_s = max(0.0, times[row.nbytes] - start)
    return 1e-6 * (start * more / steps + bytes_s * wider / volume)


def log_log(measured: Sequence[Timed], row: Timed) -> float:
    """Seconds by a straight line through log t over log p at this size, of full nodes."""
    found = [
        (math.log(each.ranks), math.log(each.microseconds))
        for each in measured
        if (each.operation, each.nbytes) == (row.operation, row.nbytes)
        and each.nodes > 1
        and each.ranks == PER_NODE * each.nodes
    ]
    slope, start = linear_regression(*zip(*found, strict=True))
    return 1e-6 * math.exp(start + slope * math.log(row.ranks))


HEAD = (
    f"{'platform':12s} {'operation':15s}  n   mean  worst   95%   90%   by hand  log-log   "
    "1 MiB+:  mean  worst  by hand  log-log"
)


def table(found: Sequence[Scored]) -> list[str]:
    """Errors in %, by platform and operation, by ranks, and of all."""
    groups: dict[tuple[str, str], list[Scored]] = {}
    for each in found:
        groups.setdefault((each.row.platform, each.row.operation), []).append(each)
    for name in dict.fromkeys(each.row.platform for each in found):
        groups[name, "all"] = [each for each in found if each.row.platform == name]
    for ranks in sorted({each.row.ranks for each in found}):
        groups["all", f"{ranks} ranks"] = [each for each in found if each.row.ranks == ranks]
    groups["all", "all"] = list(found)
    return [HEAD, *(_line(*names, of) for names, of in groups.items() if of)]


def _line(name: str, operation: str, of: Sequence[Scored]) -> str:
    large = [each for each in of if each.row.nbytes >= LARGE]
    held = [100 * fmean(each.held(level) for each in of) for level in (0.95, 0.90)]
    mean, worst, hand, log = _errors(of)
    line = (
        f"{name:12s} {operation:15s} {len(of):3d} {mean:6.1f} {worst:6.0f} {held[0]:5.0f} "
        f"{held[1]:5.0f} {hand:9.1f} {log:8.1f}"
    )
    if not large:
        return line
    mean, worst, hand, log = _errors(large)
    return f"{line}            {mean:5.1f} {worst:6.0f} {hand:8.1f} {log:8.1f}"


def _errors(of: Sequence[Scored]) -> tuple[float, float, float, float]:
    """In %: mean, worst, mean by hand, mean by log-log."""
    own = [100 * each.error() for each in of]
    others = [
        [100 * each.error(seconds) for each, seconds in zip(of, those, strict=True)]
        for those in ([each.by_hand_s for each in of], [each.log_log_s for each in of])
    ]
    return fmean(own), max(own), fmean(others[0]), fmean(others[1])


def words(found: Sequence[Scored]) -> list[str]:
    """What the law itself says of its predictions: basis and notes, and how often."""
    counts: dict[str, int] = {}
    for each in found:
        text = f"{each.row.operation}: {'; '.join((each.cost.basis, *each.cost.notes))}"
        counts[text] = counts.get(text, 0) + 1
    return [f"{count:4d} x {text}" for text, count in counts.items()]
