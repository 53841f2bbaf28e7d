"""What a sum of isolated parts misses of an in-place iteration: t = sum + a layers + b bytes.

a may be negative: a loop over one layer's backward starts autograd's engine for each, an iteration once.
Which of the laws (nothing, a, b, both) is taken is decided by leaving one model out; so is its error.
With one model there is nothing to leave out: the law repeats it, per layer where it has layers, and is
trusted as little as the sum.
"""

from __future__ import annotations

import numpy as np

from calib.fitting.estimators.affine import widened_factor
from calib.fitting.estimators.base import (
    BOOTSTRAPS,
    CheckedRows,
    Estimator,
    held_by_launches,
    interval,
    launch_medians,
    medians,
    resampled_medians,
    widest,
)
from calib.fitting.parameters.file import LEAST_LEFT
from calib.fitting.regression import error_factor, left_out, relative_nnls
from calib.foundation.arrays import Floats
from calib.foundation.errors import InputError

COEFFICIENTS = ("s_per_layer", "s_per_byte")
FORMS = {  # the signs of the coefficients that a law has
    (0.0, 0.0): "sum",
    (1.0, 0.0): "layers",
    (0.0, 1.0): "bytes",
    (1.0, 1.0): "layers + bytes",
    (-1.0, 0.0): "-layers",
    (-1.0, 1.0): "-layers + bytes",
}


class SumInPlace(Estimator):
    """Seconds in place from X [n, 3]: seconds of the sum, layers, bytes. A model is a distinct row.

    Learned: `s_per_layer_`, `s_per_byte_`, `intervals_` {name: (low, high)}, `form_` and `runner_up_`
    (words of FORMS), `error_factor_` of models left out, `sum_error_factor_` of the sum alone.

    >>> SumInPlace()
    SumInPlace()
    """

    s_per_layer_: float
    s_per_byte_: float
    intervals_: dict[str, tuple[float, float]]
    form_: str
    runner_up_: str
    error_factor_: float
    sum_error_factor_: float

    def __init__(self, seed: int = 0, bootstraps: int = BOOTSTRAPS) -> None:
        self.seed = seed
        self.bootstraps = bootstraps

    def _fit(self, rows: CheckedRows) -> None:
        """Raises InputError for other features than three. Weights say which repetition is typical;
        models weigh alike.
        """
        if rows.x.shape[1] != 3:
            raise InputError(f"{rows.x.shape[1]} features; a sum in place has 3")
        t, _ = medians(rows)
        offset, columns = rows.points[:, 0], rows.points[:, 1:]
        used, predicted = self._choose(columns, t, offset)
        self._used = used
        self._prices = _solve(columns, t, offset, used)
        self.s_per_layer_, self.s_per_byte_ = map(float, self._prices)
        self.error_factor_ = error_factor(predicted, t)
        self.sum_error_factor_ = error_factor(offset, t)
        self._draw(rows, columns, offset)

    def _choose(self, columns: Floats, t: Floats, offset: Floats) -> tuple[Floats, Floats]:
        """(signs of the prices, seconds [d] of each model left out)."""
        if len(t) == 1:
            chosen = (float(columns[0, 0] > 0), float(columns[0, 0] == 0))
            self.form_, self.runner_up_ = FORMS[chosen], ""
            return np.array(chosen), offset
        found = []
        for candidate in FORMS:
            used, predicted = columns * np.array(candidate), offset
            if any(candidate):
                if not used.any():
                    continue
                predicted = left_out(used, t, np.ones_like(t), range(len(t)), offset)
                predicted = np.maximum(predicted, LEAST_LEFT * offset)
            found.append((float(np.mean(np.log(predicted / t) ** 2)), candidate, predicted))
        found.sort(key=lambda each: each[0])  # stable: of equals the one of fewer prices
        self.form_ = FORMS[found[0][1]]
        self.runner_up_ = FORMS[found[1][1]] if len(found) > 1 else ""
        return np.array(found[0][1]), found[0][2]

    def _draw(self, rows: CheckedRows, columns: Floats, offset: Floats) -> None:
        """Prices [b, 2] of launches and repetitions drawn again, and of each launch alone."""

        def solved(times: Floats) -> Floats:
            return np.array([_solve(columns, each, offset, self._used) for each in times])

        drawn = resampled_medians(rows, self.seed, self.bootstraps) if rows.repeated else None
        self._draws = self._prices[None] if drawn is None else solved(drawn)
        by_launch = launch_medians(rows)
        by_launch = by_launch[np.isfinite(by_launch).all(axis=1)]
        self._launches = solved(by_launch) if len(by_launch) > 1 else self._prices[None]
        self.intervals_ = {}
        for i, name in enumerate(COEFFICIENTS):
            sign = -1.0 if self._used[i] < 0 else 1.0
            ends = sign * self._prices[i], sign * self._draws[:, i], sign * self._launches[:, i]
            low, high = interval(ends[0], ends[1], ends[2].tolist())
            self.intervals_[name] = (low, high) if sign > 0 else (-high, -low)

    def _interval(self, x: Floats) -> tuple[Floats, Floats]:
        """(low [n], high [n]) at 95%: the prices' own spread, and the error of models left out.

        Outside of the sums, layers and bytes of the models it grows as those of other laws do.
        """
        expected = self._seconds(x)
        factor = widened_factor(self.error_factor_, x, self.range_)
        each = x[:, 0] + self._draws @ x[:, 1:].T
        low, high = widest(expected, [each], self._launches[:0])
        launches = x[:, 0] + self._launches @ x[:, 1:].T
        return held_by_launches(low / factor, high * factor, expected, launches)

    def _seconds(self, x: Floats) -> Floats:
        result: Floats = np.maximum(x[:, 0] + x[:, 1:] @ self._prices, LEAST_LEFT * x[:, 0])
        return result


def _solve(columns: Floats, t: Floats, offset: Floats, used: Floats) -> Floats:
    """Prices [2] of relative least squares, of the signs `used`; 0 where that is 0."""
    if not used.any():
        return np.zeros(2)
    result: Floats = relative_nnls(columns * used, t, offset=offset) * used
    return result
