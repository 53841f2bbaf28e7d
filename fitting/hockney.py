"""Hockney's law of collectives: t = a + b m, and what alpha and beta of one message follow from it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.fitting.parameters.algorithms import ALGORITHMS, POINT_TO_POINT, shape_named
from calib.fitting.parameters.collectives import interpolate
from calib.fitting.regression import RelativeNonNegativeRegression, error_factor
from calib.foundation.errors import InputError


def steps_and_volume(operation: str, ranks: int) -> tuple[float, float]:
    """(messages in a row, whole-buffer multiples sent) of one operation on p ranks.

    formulas.md, "Collectives": p2p alpha + m beta; allreduce (ring) 2 (p-1) (alpha + m beta / p);
    allgather, reduce-scatter, all-to-all (p-1) (alpha + m beta / p); broadcast ceil(log2 p) (alpha
    + m beta). A halo exchange posts all its messages at once: one step of m. "hierarchical_allreduce
    inner=q" is a ring of q and one of p / q; "allreduce algorithm=tree ..." a tree. Raises
    InputError for another operation.
    """
    name, _, detail = operation.partition(" ")
    if name in POINT_TO_POINT:
        return 1.0, 1.0
    if name in ALGORITHMS:
        return shape_named(name, detail, float(ranks))
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


def interpolation_error(sizes: list[int], seconds: list[float]) -> float:
    """error_factor of every inner size when it is interpolated from the others."""
    if len(sizes) < 3:
        return 2.0  # nothing to check it with: between two sizes the time may be anywhere
    predicted = [
        interpolate(sizes[i], sizes[:i] + sizes[i + 1 :], seconds[:i] + seconds[i + 1 :])
        for i in range(1, len(sizes) - 1)
    ]
    return error_factor(predicted, seconds[1:-1])
