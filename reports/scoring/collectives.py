"""Collectives that were asked for, beside times that were measured: is a number normal?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from statistics import median
from typing import Literal, NamedTuple

from calib.fitting.parameters.algorithms import GroupShape
from calib.foundation.collectives import bus_factor
from calib.foundation.records import Estimate
from calib.foundation.words import counted, exact_bytes, seconds_words, signed_percent
from calib.oracle.costs.asked import CollectiveTime

# intervals that go farther up than this say of hardly any time that it is too long
MOST_REACH = 2.0
Verdict = Literal["inside", "slower", "faster"]


class CollectiveRow(NamedTuple):
    """One size: what the parameters expect, and the median that was measured, if any."""

    expected: CollectiveTime
    measured: Estimate | None = None

    @property
    def measured_busbw(self) -> float | None:
        """busbw of what was measured, B/s; None where there is none."""
        of = self.expected
        factor = bus_factor(of.operation, of.shape.ranks)
        if self.measured is None or factor is None or self.measured.value <= 0:
            return None
        return factor * of.nbytes / self.measured.value

    @property
    def off(self) -> float | None:
        """measured / expected - 1; None where nothing was measured, or nothing expected."""
        expected = self.expected.cost.seconds
        return self.measured.value / expected - 1 if self.measured and expected > 0 else None

    @property
    def verdict(self) -> Verdict | None:
        """Where the measured median lies: inside the expected 95% interval, above or below it."""
        if self.measured is None:
            return None
        expected, seconds = self.interval, self.measured.value
        return (
            "slower"
            if seconds > expected.high
            else "faster"
            if seconds < expected.low
            else "inside"
        )

    @property
    def interval(self) -> Estimate:
        """What is expected, s; of what was measured with how far a single launch may be off."""
        return self.expected.seconds if self.measured is None else self.expected.of_one_launch


def place_words(operation: str, shape: GroupShape) -> str:
    """`allreduce on 128 ranks of 32 nodes`, `p2p on 2 ranks`; of uneven nodes the fullest, too."""
    uneven = "" if shape.is_even else f", up to {shape.ranks_per_node} on one"
    return f"{operation} on {shape.words}{uneven}"


def by_place(rows: Sequence[CollectiveRow]) -> list[list[CollectiveRow]]:
    """The rows of each operation, library and layout, in their order."""
    groups = groupby(rows, lambda row: row.expected[:4])
    return [list(group) for _, group in groups]


def summary_of(rows: Sequence[CollectiveRow]) -> str:
    """One line: are the measured times normal, and which is the farthest off?"""
    known = [row for row in rows if row.verdict]
    slower = [row for row in known if row.verdict == "slower"]
    faster = [row for row in known if row.verdict == "faster"]
    below = f"; {_are(len(faster))} below it" if faster else ""
    if not slower:
        none = f"none of {counted(len(known), 'measured time')} is above its expected 95% interval"
        reach = _reach(known)
        if reach <= MOST_REACH:
            return f"normal: {none}{below}"
        return (
            f"cannot tell: {none}{below}, but half of these intervals go to {reach:.1f} times the "
            "expected time or beyond; what was measured is too far from this"
        )
    worst = max(slower, key=lambda row: row.off or 0.0)
    expected, measured = worst.expected, worst.measured
    assert measured is not None
    low, value, high = (
        seconds_words(x) for x in (worst.interval.low, worst.interval.value, worst.interval.high)
    )
    off = f" ({signed_percent(worst.off)})" if worst.off is not None else ""
    return (
        f"slower than expected: {len(slower)} of {counted(len(known), 'measured time')} "
        f"{_are(len(slower)).partition(' ')[2]} above the expected 95% interval{below}; farthest: "
        f"{exact_bytes(expected.nbytes)} of {place_words(expected.operation, expected.shape)} took "
        f"{seconds_words(measured.value)}, expected {value} [{low}, {high}]{off}"
    )


def _reach(rows: Sequence[CollectiveRow]) -> float:
    """How far intervals go up, as a factor of what is expected: of the middle one."""
    found = [row.interval for row in rows]
    return median(of.high / of.value if of.value > 0 else math.inf for of in found)


def _are(n: int) -> str:
    """`1 is`, `2 are`."""
    return f"{n} {'is' if n == 1 else 'are'}"
