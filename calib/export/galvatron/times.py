"""Galvatron's sp_time, and the line that Galvatron fits through it.

galvatron/utils/config_utils.py of PKU-DAIR/Hetu-Galvatron 2.4, remap_config: of each operation and p it
takes eight sizes or more, all in whole MB of 2^20 bytes, and fits time = slope MB + start by least
squares, of seconds and not of shares. core/cost_model looks a tensor up by its bytes, and takes the line
where that size is not there; so the large sizes say what a small tensor costs, and a line through
times that bend upwards begins below 0. Allreduce times are halved first, for an allgather or a
reduce-scatter.

So the sizes that are written lie among the measured ones, or are those of --bytes; where they are fewer
than eight, they go on to twice the largest and half the smallest. Of these, from the smallest on, as
many are written as give a line that is nowhere below 0 and near the oracle; where none is, a line that
is above 0 down to a quarter of the smallest size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean

import numpy as np

from calib.export.collapse import collapse_of
from calib.export.measured import sizes_in_words
from calib.export.reference import Reference, steps
from calib.export.target import Collapse, ExportPoint
from calib.foundation.words import bytes_words, number

MIB = 1 << 20
LEAST_SIZES = 8  # that remap_config asserts
MOST_MEBIBYTES = 1024  # to which Galvatron's own profile goes
# a line with at most this mean error is near enough: no sizes are given up for a nearer one
NEAR = 0.5
LEAST_PART = 4  # of the smallest size: a tensor smaller than that may cost less than nothing
MOST_HALVINGS = 11  # of what lies between two powers of two
ROUNDING = 1e-9
HALVES = {"allreduce"}  # of whose times Galvatron takes half


@dataclass(frozen=True)
class GalvatronLine:
    """slope and start in ms, of sizes in MB, as Galvatron's popt."""

    slope_ms: float
    start_ms: float

    def seconds(self, nbytes: float) -> float:
        return (self.slope_ms * nbytes / MIB + self.start_ms) / 1e3


@dataclass(frozen=True)
class Chosen:
    """The times that are written for one operation on so many ranks; or none, and why.

    `line` is Galvatron's through them, before it halves anything; `measured` the oracle's times that
    it is compared with.
    """

    operation: str
    ranks: int
    groups: int
    points: tuple[ExportPoint, ...] = ()
    line: GalvatronLine = GalvatronLine(0.0, 0.0)
    measured: tuple[ExportPoint, ...] = ()
    why: str = ""

    def collapse(self, name: str) -> Collapse:
        """The error for a size that is not in the file."""
        half = 0.5 if self.operation in HALVES else 1.0
        start, slope = (number(half * ms) for ms in (self.line.start_ms, self.line.slope_ms))
        found = [self.line.seconds(point.nbytes) for point in self.measured]
        return collapse_of(
            f"{self.operation} on {self.ranks}, by Galvatron's own line",
            f"{name}_size_{self.ranks}_*MB_time",
            f"{start} ms + {slope} ms/MB",
            self.measured,
            found,
        )


def times_of(reference: Reference, operation: str, ranks: int, groups: int) -> Chosen:
    """The times of `groups` groups of so many adjacent ranks at once."""
    ends, asked = reference.nbytes(operation), reference.request.nbytes is not None
    if not asked and ends[0] < MOST_MEBIBYTES * MIB:
        ends = ends[0], min(ends[1], MOST_MEBIBYTES * MIB)

    @cache
    def at(nbytes: int) -> ExportPoint:
        return reference.seconds(operation, nbytes, ranks, 1, groups)

    sizes = spread(*whole_mebibytes(ends, asked))
    if len(sizes) < LEAST_SIZES:
        known = "--bytes has" if asked else f"{sizes_in_words(ends)} were measured, which have"
        why = (
            f"none, as {known} fewer sizes of whole MB than the {LEAST_SIZES} that Galvatron wants"
        )
        return Chosen(operation, ranks, groups, why=why)
    measured = tuple(map(at, steps((max(ends[0], min(ends[1], MIB)), ends[1]))))
    tried = []
    for chosen in choices(sizes):
        points = tuple(at(mebibytes * MIB) for mebibytes in chosen)
        line = line_through(points)
        if line.slope_ms < 0 or line.seconds(points[0].nbytes / LEAST_PART) <= 0:
            continue
        error = fmean(abs(line.seconds(p.nbytes) / p.seconds - 1) for p in measured)
        tried.append(((line.start_ms < 0, max(error, NEAR)), points, line))
        if tried[-1][0] == (False, NEAR):
            break
    if not tried:
        why = (
            f"none, as the line that Galvatron fits is below 0 for small tensors, through the times of "
            f"{sizes[0]} to {sizes[-1]} MB as through fewer of them"
        )
        return Chosen(operation, ranks, groups, why=why)
    _, points, line = min(tried, key=lambda one: one[0])
    most, remarks = points[-1].nbytes // MIB, []
    if most < sizes[-1]:
        remarks.append(
            f"none over {most} MB: with those to {sizes[-1]} MB the line that Galvatron fits is below 0 "
            "or far off for small tensors"
        )
    if line.start_ms < 0:
        none = -line.start_ms / line.slope_ms * MIB
        remarks.append(f"the line that Galvatron fits is below 0 under {bytes_words(round(none))}")
    return Chosen(operation, ranks, groups, points, line, measured, "; ".join(remarks))


def line_through(points: Sequence[ExportPoint]) -> GalvatronLine:
    """Galvatron's fit: least squares of the milliseconds by the MB."""
    mebibytes = [point.nbytes // MIB for point in points]
    slope, start = np.polyfit(mebibytes, [point.seconds * 1e3 for point in points], 1).tolist()
    none = ROUNDING * points[-1].seconds * 1e3
    return GalvatronLine(slope if abs(slope) > none else 0.0, start if abs(start) > none else 0.0)


def whole_mebibytes(ends: tuple[int, int], asked: bool) -> tuple[int, int]:
    """(first, last) whole MB of these bytes; unless they were `asked` for, widened to eight sizes.

    To twice the largest and half the smallest at most.
    """
    low, high = max(1, -(-ends[0] // MIB)), ends[1] // MIB
    if not asked:
        high = max(high, min(2 * ends[1] // MIB, low + LEAST_SIZES - 1))
        low = min(low, max(1, -(-ends[0] // (2 * MIB)), high - LEAST_SIZES + 1))
    return low, high


def spread(low: int, high: int) -> list[int]:
    """The powers of two between these; where they are too few, also the halves between, and so on."""
    for parts in (1 << k for k in range(MOST_HALVINGS)):
        found = [
            (parts + part << k) // parts
            for k in range(high.bit_length())
            for part in range(parts)
            if not (parts + part << k) % parts and low <= (parts + part << k) // parts <= high
        ]
        if len(found) >= LEAST_SIZES:
            return found
    return found


def choices(sizes: Sequence[int]) -> Iterator[list[int]]:
    """All sizes, then ever shorter ranges with closer sizes, as long as they are enough."""
    for most in reversed(sizes):
        found = spread(sizes[0], most)
        if len(found) >= LEAST_SIZES:
            yield found
