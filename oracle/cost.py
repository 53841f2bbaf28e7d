"""Seconds with a basis and with errors by source; a prediction is a sum of them.

Errors of one source (the measured times of one machine, one regression, one law of a collective; of a
law of layers what a model's have in common, and each layer's own) are fully correlated, so within a
source they add up; different sources are independent and add in quadrature.
`PhaseTime` is the record of a Cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import repeat
from typing import NamedTuple

from calib.foundation.quantities import LEAST_SECONDS
from calib.foundation.records import Estimate
from calib.oracle.projection import BASIS_ORDER, Basis, PhaseTime
from calib.oracle.sources import LAUNCH, MACHINE, SPEED

TIMED_ONCE = (
    "some times come from a single run, which has no error estimate: the interval leaves it out"
)
RANK = {basis: rank for rank, basis in enumerate(BASIS_ORDER)}
NO_ERROR = (0.0, 0.0)


class Cost(NamedTuple):
    """Seconds with a basis, 95% errors as (source, seconds below, seconds above), and notes."""

    seconds: float
    basis: Basis = "exact"
    errors: tuple[tuple[str, float, float], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def low(self) -> float:
        """Lower end of the 95% interval; negative only for a deduction (overlap)."""
        low = self.seconds - math.sqrt(sum([e[1] * e[1] for e in self.errors]))
        return low if self.seconds < 0 or low >= LEAST_SECONDS else 0.0

    @property
    def high(self) -> float:
        """Upper end of the 95% interval."""
        return self.seconds + math.sqrt(sum([e[2] * e[2] for e in self.errors]))

    def times(self, factor: float) -> Cost:
        """This cost scaled by a factor >= 0; the errors are fully correlated."""
        if factor == 1:
            return self
        errors = tuple([(s, d * factor, u * factor) for s, d, u in self.errors])
        return Cost(self.seconds * factor, self.basis, errors, self.notes)

    def in_one_launch(self, factor: float, speed: float = 1.0) -> Cost:
        """This cost in one launch, when 95% of them are within `factor` of many, and of its `speed`."""
        if self.seconds <= 0:
            return self
        more = tuple(
            (of, self.seconds - self.seconds / by, self.seconds * by - self.seconds)
            for of, by in ((LAUNCH, factor), (SPEED, speed))
            if by > 1
        )
        return self._replace(errors=(*self.errors, *more))

    @property
    def launch_factor(self) -> float:
        """95% of launches are within it of many (`in_one_launch`); 1: that is in none of its errors."""
        more = sum([up for source, _, up in self.errors if source == LAUNCH])
        return 1.0 + more / self.seconds if self.seconds > 0 else 1.0

    def at_best(self, basis: Basis) -> Cost:
        """This cost with a basis no surer than `basis`."""
        if RANK[self.basis] >= RANK[basis]:
            return self
        return Cost(self.seconds, basis, self.errors, self.notes)

    def noted(self, *notes: str) -> Cost:
        """This cost with more notes."""
        return Cost(self.seconds, self.basis, self.errors, (*self.notes, *notes))

    def record(self) -> PhaseTime:
        """The record that predictions.json holds."""
        if self is NOTHING:
            return NO_TIME
        return PhaseTime(value=self.seconds, low=self.low, high=self.high, basis=self.basis)


NOTHING = Cost(0.0)
NO_TIME = PhaseTime(value=0.0, low=0.0, high=0.0, basis="exact")


def total(costs: Iterable[Cost]) -> Cost:
    """The sum of costs; its basis is that of the least sure part."""
    parts = [cost for cost in costs if cost is not NOTHING]
    if len(parts) < 2:
        return parts[0] if parts else NOTHING
    return counted(zip(parts, repeat(1), strict=False))


def counted(costs: Iterable[tuple[Cost, float]]) -> Cost:
    """The sum of (cost, count) pairs."""
    seconds: list[float] = []
    errors: dict[str, tuple[float, float]] = {}
    basis: Basis = "exact"
    notes: tuple[str, ...] = ()
    for cost, count in costs:
        if cost is NOTHING:
            continue
        time, of, sources, about = cost
        seconds.append(count * time)
        for source, down, up in sources:
            before = errors.get(source, NO_ERROR)
            errors[source] = before[0] + count * down, before[1] + count * up
        if of != basis and RANK[of] > RANK[basis]:
            basis = of
        if about is not notes and about != notes:
            notes = tuple(dict.fromkeys(notes + about))
    if not seconds:
        return NOTHING
    found = tuple([(source, down, up) for source, (down, up) in errors.items()])
    return Cost(math.fsum(seconds), basis, found, notes)


def measured(estimate: Estimate, source: str = MACHINE, basis: Basis = "measured") -> Cost:
    """The cost of an estimate in the parameter file."""
    value = estimate.value
    notes = () if estimate.has_interval else (TIMED_ONCE,)
    return Cost(value, basis, ((source, value - estimate.low, estimate.high - value),), notes)


def within_factor(seconds: float, factor: float, basis: Basis, source: str) -> Cost:
    """Seconds known within a factor >= 1."""
    return Cost(seconds, basis, ((source, seconds - seconds / factor, seconds * factor - seconds),))


def widened(factor: float, value: float, largest: float) -> float:
    """The error factor at `value`, which may lie beyond the `largest` fitted value.

    Each decade beyond multiplies it by itself, or by 2 if that is less: a convention, not a measurement.
    """
    beyond = math.log10(value / largest) if largest > 0 and value > largest else 0.0
    return float(factor * min(factor, 2.0) ** beyond)
