"""Parallax, section 3.2: iteration time by the number of partitions of sparse variables.

time(P) = theta0 + theta1 / P + theta2 P, all >= 0 (equation 1): what does not change, what partitions
do side by side, what each of them costs. It is least at P = sqrt(theta1 / theta2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from calib.fitting.estimators.affine import NonNegativeLaw
from calib.fitting.estimators.base import CheckedRows, interval
from calib.foundation.arrays import Floats
from calib.foundation.errors import InputError


class PartitionsLaw(NonNegativeLaw):
    """Seconds of an iteration by X [n, 1] partitions, P >= 1.

    Learned: `constant_s_`, `parallel_s_`, `per_partition_s_` (theta0, theta1, theta2),
    `best_partitions_` >= 1 with `best_low_`, `best_high_` at 95%. A best P, or the end of its
    interval, is infinity where no cost of a partition shows (theta2 = 0): more of them were always
    faster, so measure larger P. With fewer than four numbers of partitions nothing is left to check
    the law with.
    """

    constant_s_: float
    parallel_s_: float
    per_partition_s_: float
    best_partitions_: float
    best_low_: float
    best_high_: float

    def _fit(self, rows: CheckedRows) -> None:
        """Raises InputError for other features than one, or fewer partitions than 1."""
        if rows.x.shape[1] != 1 or (rows.x < 1).any():
            raise InputError("one number of partitions, 1 or more, is needed for every time")
        super()._fit(rows)
        self.constant_s_, self.parallel_s_, self.per_partition_s_ = map(float, self.coefficients_)
        self.best_partitions_ = best(self.coefficients_)
        draws = [best(draw) for draw in self.solved_.draws]
        launches = [best(alone) for alone in self.solved_.launches]
        self.best_low_, self.best_high_ = _ends(self.best_partitions_, draws, launches)

    def _design(self, x: Floats) -> Floats:
        partitions = x[:, 0]
        return np.column_stack([np.ones(len(x)), 1.0 / partitions, partitions])


def best(theta: Floats) -> float:
    """sqrt(theta1 / theta2), 1 at least; infinity where a partition costs nothing but gains."""
    _, parallel, per_partition = map(float, theta)
    if parallel <= 0:
        return 1.0
    return max(1.0, math.sqrt(parallel / per_partition)) if per_partition > 0 else math.inf


def _ends(value: float, draws: list[float], launches: list[float]) -> tuple[float, float]:
    """The interval of the best P, in which infinity is larger than any number.

    In 1 / P it is finite, and order is all that quantiles need.
    """
    low, high = interval(1.0 / value, [1.0 / d for d in draws], [1.0 / v for v in launches])
    low_end, high_end = (1.0 / min(end, 1.0) if end > 0 else math.inf for end in (high, low))
    return low_end, high_end


def next_partitions(times: Mapping[int, float], start: int) -> int | None:
    """The next number of partitions to time, or None when enough was seen (section 3.2).

    `times` maps partitions to seconds; `start` is where to begin, in the paper the number of machines.
    P is doubled until the time rises, then halved from the start until it rises again: the best P is
    then between samples. Raises InputError for a start below 1.
    """
    if start < 1:
        raise InputError(f"partitions begin with {start}; 1 is the fewest")
    if start not in times:
        return start
    current = start
    while (following := 2 * current) in times and times[following] < times[current]:
        current = following
    if following not in times:
        return following
    current = start
    while current > 1 and (following := current // 2) in times:
        if times[following] >= times[current]:
            return None
        current = following
    return following if current > 1 else None
