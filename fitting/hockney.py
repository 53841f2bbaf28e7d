"""Hockney's law t = a + b m, and the alpha and beta of one message that follow from it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.fitting.parameters.collectives import interpolate
from calib.fitting.regression import RelativeNonNegativeRegression, error_factor
from calib.foundation.errors import InputError


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
