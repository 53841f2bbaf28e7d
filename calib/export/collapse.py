"""One set of numbers for many sizes and ranks: the least mean relative error.

A target with one alpha and one beta has times that are linear in its few numbers. Those that minimise
mean |target / oracle - 1| >= 0 over the stated sizes and ranks are the solution of a linear program
(least absolute deviations: Charnes, Cooper and Ferguson, Management Science 1, 1955).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.export.target import Collapse, ExportPoint
from calib.foundation.errors import InputError
from calib.oracle.projection import BASIS_ORDER

# a bandwidth that no time depends on would be infinite: bytes take at least this share of the largest
# buffer's time
LEAST_SHARE = 1e-3


def least_relative(
    features: ArrayLike,
    seconds: ArrayLike,
    least: ArrayLike | None = None,
    fixed: ArrayLike | None = None,
    any_will_do: bool = False,
) -> NDArray[np.float64]:
    """c [k] >= least [k] (default 0) with the least sum |(F c + fixed) / t - 1|.

    F [n, k] >= 0, t [n] > 0, `fixed` [n] a known part of the times (default 0). Raises InputError where
    the times cannot tell the coefficients apart (unless `any_will_do`), or where the numbers are so far
    apart that no solution is found.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_array, eye_array, hstack

    design, t = np.asarray(features, dtype=float), np.asarray(seconds, dtype=float)
    rows = design / t[:, None]
    n, k = rows.shape
    scale = np.abs(rows).max(axis=0)
    scale[scale == 0] = 1.0
    if not any_will_do and np.linalg.matrix_rank(rows / scale) < k:
        raise InputError(
            "one size on one number of ranks cannot tell a start-up time from a bandwidth: give --bytes "
            "two ends, as 64KiB:64MiB"
        )
    lower = np.zeros(k) if least is None else np.asarray(least, dtype=float) * scale
    given = np.zeros(n) if fixed is None else np.asarray(fixed, dtype=float) / t
    # unknowns: scaled c, and of each row how much it is over 1 and under it
    equal = hstack([csr_array(rows / scale), -eye_array(n), eye_array(n)], format="csr")
    cost = np.concatenate([np.zeros(k), np.ones(2 * n)])
    bounds = [(low, None) for low in lower] + [(0.0, None)] * (2 * n)
    found = linprog(cost, A_eq=equal, b_eq=1 - given, bounds=bounds, method="highs")
    if found.x is None or not np.isfinite(found.x).all():
        raise InputError(f"no numbers describe these times: {' '.join(str(found.message).split())}")
    result: NDArray[np.float64] = np.maximum(found.x[:k], lower) / scale
    return result


def least_by_bytes(points: Sequence[ExportPoint]) -> float:
    """The smallest seconds per byte of a whole buffer that a target is given (LEAST_SHARE)."""
    return min(LEAST_SHARE * point.seconds / point.nbytes for point in points if point.nbytes)


def bounded(what: str, s_per_byte: float, points: Sequence[ExportPoint]) -> tuple[str, ...]:
    """A note where the time per byte is no more than `least_by_bytes`, else nothing."""
    if s_per_byte > least_by_bytes(points) * (1 + 1e-6):
        return ()
    return (
        f"no time of {what} depends on its bytes: its bandwidth is a bound, not a measurement (the "
        f"bytes are {LEAST_SHARE:.1%} of the largest buffer's time)",
    )


def interval_of(points: Sequence[ExportPoint]) -> tuple[float, float] | None:
    """(low, high) of the oracle's own 95% intervals over its times, the medians of all points.

    None where most points have none: a time of one run has no error of its own to tell.
    """
    said = [(p.interval, p.seconds) for p in points if p.interval is not None]
    known = [(ends, seconds) for ends, seconds in said if ends[0] < ends[1]]
    if not known or 2 * len(known) < len(said):
        return None
    low, high = (float(np.median([ends[k] / seconds for ends, seconds in known])) for k in (0, 1))
    return low, min(high, sys.float_info.max)


def collapse_of(
    what: str, into: str, written: str, points: Sequence[ExportPoint], found: Sequence[float]
) -> Collapse:
    """The record of oracle times that became `found` seconds [n] in the target."""
    errors = [abs(value / point.seconds - 1) for point, value in zip(points, found, strict=True)]
    worst = max(range(len(points)), key=errors.__getitem__)
    sizes = [point.nbytes for point in points]
    interval = interval_of(points)
    return Collapse(
        what=what,
        into=into,
        written=written,
        ranks=tuple(sorted({point.ranks for point in points})),
        nbytes=(min(sizes), max(sizes)),
        points=len(points),
        mean_error=float(np.mean(errors)),
        worst_error=errors[worst],
        worst_nbytes=points[worst].nbytes,
        worst_ranks=points[worst].ranks,
        basis=max((point.basis for point in points), key=BASIS_ORDER.index),
        oracle_interval=interval,
        one_run=interval is None and any(point.interval is not None for point in points),
    )
