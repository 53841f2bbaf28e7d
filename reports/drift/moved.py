"""Checks that have all moved one way: the machine, or a part of it, has another speed than before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from calib.foundation.statistics import binomial_at_most, median
from calib.foundation.words import percent
from calib.reports.drift.detector import StepSettings
from calib.reports.night import Check
from calib.reports.scoring.accuracy import CheckKind

CHANCE = 0.01  # of the sign test; a night is judged every day
ONE_WAY = 0.9  # share of the cases that have moved the same way
LEAST = StepSettings().least_change
QUIET = 0.5  # share of the checks that nobody disturbed, under which nothing is said


@dataclass(frozen=True)
class Moved:
    """Time tonight over that of the parameters, `ratio`: the median of `cases`, `same` of them one way.

    `kinds` are those that moved; all that there are: the machine.
    """

    kinds: tuple[CheckKind, ...]
    whole: bool
    ratio: float
    cases: int
    same: int

    @property
    def words(self) -> str:
        """`the machine took 18.0% less time than when it was calibrated (51 of 52 checks)`."""
        what = "the machine" if self.whole else " and ".join(self.kinds)
        way = "more" if self.ratio > 1 else "less"
        return (
            f"{what} took {percent(abs(self.ratio - 1))} {way} time than when it was calibrated "
            f"({self.same} of {self.cases} checks)"
        )


def moved(checks: Sequence[Check]) -> Moved | None:
    """What has moved one way, of the checks that nobody disturbed; None where nothing has.

    A kind has where ONE_WAY of its cases have, by LEAST or more in the median; the machine has where
    every kind has. The sign test is over all cases of these kinds: where only its own error moves a
    case, it moves either way alike. Of kinds that moved apart, those with the most cases are told.
    """
    quiet = [of for of in checks if not of.disturbed_by_others]
    if not quiet or len(quiet) < QUIET * len(checks):
        return None
    ratios: dict[CheckKind, list[float]] = {}
    for of in quiet:
        if of.expected.value > 0 and of.measured.value > 0:
            ratios.setdefault(of.kind, []).append(of.measured.value / of.expected.value)
    ways = [_one_way(ratios, slower) for slower in (True, False)]
    found = max(ways, key=lambda of: of.cases if of else 0)
    return found if found and _by_no_chance(found) else None


def _one_way(ratios: dict[CheckKind, list[float]], slower: bool) -> Moved | None:
    """The kinds whose cases take more time, or less."""
    kinds, same = [], 0
    for kind in (kind for kind in get_args(CheckKind) if kind in ratios):
        there = sum((ratio > 1) == slower and ratio != 1 for ratio in ratios[kind])
        change = median(ratios[kind]) - 1
        if there >= ONE_WAY * len(ratios[kind]) and (change if slower else -change) >= LEAST:
            kinds.append(kind)
            same += there
    every = [ratio for kind in kinds for ratio in ratios[kind]]
    if not every:
        return None
    return Moved(tuple(kinds), len(kinds) == len(ratios), median(every), len(every), same)


def _by_no_chance(of: Moved) -> bool:
    """The sign test, of both sides: `cases` fair coins of which `same` or more fall one way."""
    return 2 * binomial_at_most(of.cases - of.same, of.cases, 0.5) < CHANCE
