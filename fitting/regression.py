"""Non-negative regression with relative errors, used by every affine law here.

Times span six decades, so residuals count relative to the time: minimise sum ((o + D c - t) / t)^2
subject to c >= 0 (Lawson and Hanson's NNLS, from SciPy), where the offset o is the part of t that is
known already.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import nnls

from calib.foundation.arrays import Floats

CONFIDENCE = 0.95
# with fewer rows a law of three coefficients is checked on nothing, and worth this factor
MIN_ROWS = 4
UNCHECKED_FACTOR = 10.0


def relative_nnls(
    design: Floats, seconds: Floats, weight: Floats | None = None, offset: Floats | float = 0.0
) -> Floats:
    """c [k] >= 0 with the least sum w ((o + D c - t) / t)^2, of D [n, k], t [n] > 0, w and o [n]."""
    root = np.ones(len(seconds)) if weight is None else np.sqrt(weight / weight.max())
    rows = design * (root / seconds)[:, None]
    # columns differ by twelve decades (1 against bytes): scale before, undo after
    scale = np.abs(rows).max(axis=0)
    scale[scale == 0] = 1.0
    solution, _ = nnls(rows / scale, root * (1.0 - offset / seconds))
    result: Floats = solution / scale
    return result


def hockney_line(nbytes: ArrayLike, seconds: ArrayLike) -> tuple[float, float]:
    """(intercept, slope), both non-negative, of Hockney's law t = a + b m: m [n] bytes, t [n] s."""
    m, t = np.asarray(nbytes, dtype=float), np.asarray(seconds, dtype=float)
    intercept, slope = relative_nnls(np.column_stack([np.ones_like(m), m]), t).tolist()
    return intercept, slope


def left_out(
    design: Floats,
    seconds: Floats,
    weight: Floats,
    labels: Sequence[object],
    offset: Floats | None = None,
) -> Floats:
    """Times [d] of the points of each label, from the law of all others; NaN where there are none."""
    known = np.zeros(len(seconds)) if offset is None else offset
    found = np.full(len(seconds), np.nan)
    for label in dict.fromkeys(labels):
        out = np.array([other == label for other in labels])
        if not out.all():
            law = relative_nnls(design[~out], seconds[~out], weight[~out], known[~out])
            found[out] = known[out] + design[out] @ law
    return found


def error_factor(predicted: ArrayLike, seconds: ArrayLike) -> float:
    """f >= 1 such that at least 95% of the times lie within [predicted / f, predicted * f].

    Capped at 1e6.
    """
    p, t = np.asarray(predicted, dtype=float), np.asarray(seconds, dtype=float)
    with np.errstate(divide="ignore"):
        off = np.abs(np.log(p) - np.log(t))
    return float(min(math.exp(min(bound_of(off), 50.0)), 1e6))


def bound_of(values: Floats) -> float:
    """The order statistic that bounds 95% of values [n] and one more, as conformal prediction takes it.

    Of fewer than 20 values that is the largest.
    """
    rank = min(len(values) - 1, math.ceil(CONFIDENCE * (len(values) + 1)) - 1)
    return float(np.sort(values)[rank])
