"""Hockney's law of collectives: t = a + b m, and what alpha and beta of one message follow from it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fitting.regression import RelativeNonNegativeRegression, error_factor
from foundation.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

BOOTSTRAPS = 200


def steps_and_volume(operation: str, ranks: int) -> tuple[float, float]:
    """(messages in a row, whole-buffer multiples sent) of one operation on p ranks.

    formulas.md, "Collectives": p2p alpha + m beta; allreduce (ring) 2 (p-1) (alpha + m beta / p);
    allgather, reduce-scatter, all-to-all (p-1) (alpha + m beta / p); broadcast ceil(log2 p) (alpha
    + m beta). A halo exchange posts all its messages at once: one step of m. "hierarchical_allreduce
    inner=q" is a ring of q and one of p / q. Raises InputError for another operation.
    """
    name, _, detail = operation.partition(" ")
    if name in ("p2p", "p2p_both", "halo"):
        return 1.0, 1.0
    if name == "allreduce":
        return 2.0 * (ranks - 1), 2.0 * (ranks - 1) / ranks
    if name in ("allgather", "allgatherv", "reduce_scatter", "all_to_all"):
        return float(ranks - 1), (ranks - 1) / ranks
    if name == "broadcast":
        return (float(math.ceil(math.log2(ranks))),) * 2
    if name == "hierarchical_allreduce":
        inner = int(detail.removeprefix("inner="))
        rings = [p for p in (inner, ranks // inner) if p > 1]
        parts = [steps_and_volume("allreduce", p) for p in rings]
        return sum(part[0] for part in parts), sum(part[1] for part in parts)
    raise InputError(f"no cost model for the operation {operation!r}")


class HockneyLine:
    """t = intercept_ + slope_ m, relative residuals, both non-negative."""

    intercept_: float
    slope_: float

    def fit(self, nbytes: ArrayLike, seconds: ArrayLike) -> HockneyLine:
        """Learn from m [n] bytes and t [n] seconds. Raises InputError as the regression does."""
        m = np.asarray(nbytes, dtype=float)
        if (m <= 0).any():
            raise InputError("a collective of no bytes")
        features = np.column_stack([np.ones_like(m), m])
        model = RelativeNonNegativeRegression().fit(features, seconds)
        self.intercept_, self.slope_ = map(float, model.coefficients_)
        return self

    def predict(self, nbytes: ArrayLike) -> NDArray[np.float64]:
        """Seconds [n]."""
        result: NDArray[np.float64] = self.intercept_ + self.slope_ * np.asarray(nbytes, float)
        return result


def bootstrap_lines(
    launches: dict[int, dict[int, NDArray[np.float64]]], seed: int, n: int = BOOTSTRAPS
) -> NDArray[np.float64]:
    """(intercept, slope) [n, 2] of lines through resampled medians.

    `launches`: launch -> bytes -> repetitions in seconds. Launches are drawn with replacement, then
    the repetitions of each size within the drawn launches (a cluster bootstrap; Davison and Hinkley
    1997, 3.8), so that the difference between launches is in the interval.
    """
    generator = np.random.default_rng(seed)
    numbers = sorted(launches)
    sizes = sorted({m for rows in launches.values() for m in rows})
    lines = np.empty((n, 2))
    for index in range(n):
        drawn = generator.choice(numbers, size=len(numbers))
        medians = []
        for m in sizes:
            # a size that the drawn launches lack (one was interrupted) comes from those that have it
            having = [launch for launch in drawn if m in launches[launch]]
            having = having or [launch for launch in numbers if m in launches[launch]]
            pieces = [
                generator.choice(launches[launch][m], size=len(launches[launch][m]))
                for launch in having
            ]
            medians.append(float(np.median(np.concatenate(pieces))))
        line = HockneyLine().fit(sizes, medians)
        lines[index] = line.intercept_, line.slope_
    return lines


def interpolate(nbytes: float, sizes: list[int], seconds: list[float]) -> float:
    """Seconds at `nbytes` on the straight line in log-log between the two neighbours."""
    logs = np.interp(np.log(nbytes), np.log(sizes), np.log(seconds))
    return float(np.exp(logs))


def interpolation_error(sizes: list[int], seconds: list[float]) -> float:
    """error_factor of every inner size when it is interpolated from the others."""
    if len(sizes) < 3:
        return 2.0  # nothing to check it with: between two sizes the time may be anywhere
    predicted = [
        interpolate(sizes[i], sizes[:i] + sizes[i + 1 :], seconds[:i] + seconds[i + 1 :])
        for i in range(1, len(sizes) - 1)
    ]
    return error_factor(predicted, seconds[1:-1])
