"""Non-negative regression with relative errors, used by every affine law here.

Conventions of scikit-learn: the constructor only stores, `fit` validates and returns self, what was
learned ends in an underscore. Times span six decades, so residuals count relative to the time:
minimise sum ((o + X c - t) / t)^2 subject to c >= 0 (Lawson and Hanson's NNLS, from SciPy), where
the offset o is the part of t that is known already.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls

from calib.foundation.errors import InputError

CONFIDENCE = 0.95
# with fewer rows a law of three coefficients is checked on nothing, and worth this factor
MIN_ROWS = 4
UNCHECKED_FACTOR = 10.0


def relative_nnls(
    design: NDArray[np.float64],
    seconds: NDArray[np.float64],
    weight: NDArray[np.float64] | None = None,
    offset: NDArray[np.float64] | float = 0.0,
) -> NDArray[np.float64]:
    """c [k] >= 0 with the least sum w ((o + D c - t) / t)^2, of D [n, k], t [n] > 0, w and o [n]."""
    root = np.ones(len(seconds)) if weight is None else np.sqrt(weight / weight.max())
    rows = design * (root / seconds)[:, None]
    # columns differ by twelve decades (1 against bytes): scale before, undo after
    scale = np.abs(rows).max(axis=0)
    scale[scale == 0] = 1.0
    solution, _ = nnls(rows / scale, root * (1.0 - offset / seconds))
    result: NDArray[np.float64] = solution / scale
    return result


class RelativeNonNegativeRegression:
    """t = o + X c with c >= 0, relative residuals. X [n, k], t [n] seconds > 0, o [n] seconds."""

    coefficients_: NDArray[np.float64]

    def fit(
        self, features: ArrayLike, seconds: ArrayLike, offset: ArrayLike = 0.0
    ) -> RelativeNonNegativeRegression:
        """Learn `coefficients_` [k]. Raises InputError for NaN, infinity or times <= 0."""
        x, t = np.asarray(features, dtype=float), np.asarray(seconds, dtype=float)
        if x.ndim != 2 or t.shape != (x.shape[0],) or not len(t):
            raise InputError(f"regression of {t.shape} times on features {x.shape}")
        if not (np.isfinite(x).all() and np.isfinite(t).all()) or (t <= 0).any():
            raise InputError("regression on a time that is NaN, infinite or not positive")
        known = np.broadcast_to(np.asarray(offset, dtype=float), t.shape)
        if not np.isfinite(known).all():
            raise InputError("regression with an offset that is NaN or infinite")
        self.coefficients_ = relative_nnls(x, t, offset=known)
        return self

    def predict(self, features: ArrayLike) -> NDArray[np.float64]:
        """Seconds [n] for features [n, k], without the offset."""
        result: NDArray[np.float64] = np.asarray(features, dtype=float) @ self.coefficients_
        return result


def leave_one_out(
    features: ArrayLike, seconds: ArrayLike, offset: ArrayLike = 0.0
) -> NDArray[np.float64]:
    """Predictions [n] of each row, offset included, from a fit on the other rows (n >= 2)."""
    x, t = np.asarray(features, dtype=float), np.asarray(seconds, dtype=float)
    o = np.broadcast_to(np.asarray(offset, dtype=float), t.shape)
    predicted = np.empty(len(t))
    for row in range(len(t)):
        others = np.arange(len(t)) != row
        model = RelativeNonNegativeRegression().fit(x[others], t[others], o[others])
        predicted[row] = o[row] + model.predict(x[row : row + 1])[0]
    return predicted


def error_factor(predicted: ArrayLike, seconds: ArrayLike) -> float:
    """f >= 1 such that at least 95% of the times lie within [predicted / f, predicted * f].

    The order statistic that bounds 95% of the rows and one more (as conformal prediction takes it);
    with fewer than 20 rows that is the worst of them. Capped at 1e6.
    """
    p, t = np.asarray(predicted, dtype=float), np.asarray(seconds, dtype=float)
    with np.errstate(divide="ignore"):
        off = np.sort(np.abs(np.log(p) - np.log(t)))
    rank = min(len(off) - 1, math.ceil(CONFIDENCE * (len(off) + 1)) - 1)
    return float(min(math.exp(min(off[rank], 50.0)), 1e6))
