"""Laws t = D(x) c with c >= 0 and relative errors, among them affine laws of tensor passes.

Each law is solved by non-negative least squares on residuals relative to the time
(fitting/regression.py).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calib.fitting.estimators.base import (
    CheckedRows,
    Estimator,
    interval,
    launch_medians,
    resampled_medians,
    weighted_medians,
    widest,
)
from calib.fitting.estimators.draws import inflation
from calib.fitting.regression import (
    MIN_ROWS,
    UNCHECKED_FACTOR,
    error_factor,
    left_out,
    relative_nnls,
)
from calib.foundation.arrays import Floats
from calib.foundation.errors import InputError

# of a point with fewer repetitions, the residuals of all say how sure its median is
MIN_REPETITIONS = 3
# beyond the fitted range a law is trusted to this factor at most, and less by every decade (as
# oracle/costs/machine.py has it): a convention, not a measurement
EXTRAPOLATION_FACTOR = 1.1
MOST_PER_DECADE = 2.0


@dataclass(frozen=True)
class Solved:
    """A law of k coefficients on d points, and how sure they are.

    `draws` [n, k] are the coefficients of bootstrap samples, `launches` [l, k] those of each launch
    alone (none for one launch), `held_out` [d] the times predicted from the other points.
    """

    coefficients: Floats
    draws: Floats
    launches: Floats
    seconds: Floats
    predicted: Floats
    held_out: Floats

    @property
    def error(self) -> float:
        """Mean relative error of the points that were fitted."""
        return mean_relative_error(self.predicted, self.seconds)

    @property
    def held_out_error(self) -> float:
        """Mean relative error of points that were left out; NaN where none could be."""
        return mean_relative_error(self.held_out, self.seconds)

    @property
    def factor(self) -> float:
        """95% of the points that were left out lie within the prediction / and * this."""
        if len(self.seconds) < MIN_ROWS:
            return UNCHECKED_FACTOR
        return error_factor(self.held_out, self.seconds)

    def estimate(self, index: int) -> tuple[float, float, float]:
        """(value, low, high) of one coefficient at 95%."""
        value = float(self.coefficients[index])
        return value, *interval(value, self.draws[:, index], self.launches[:, index].tolist())

    def band(self, design: Floats) -> tuple[Floats, Floats]:
        """(low [n], high [n]) of the law itself at 95%, for D [n, k]."""
        draws, launches = ((design @ each.T).T for each in (self.draws, self.launches))
        return widest(design @ self.coefficients, [draws], launches)


def mean_relative_error(predicted: Floats, seconds: Floats) -> float:
    """Mean of |predicted - t| / t."""
    return float(np.mean(np.abs(predicted / seconds - 1.0)))


def solve(design: Floats, rows: CheckedRows, seed: int) -> Solved:
    """Fit D [d, k] of the rows' points to their medians; held out are the points of a name at a time.

    Intervals: `moved_medians`.
    """
    seconds, weight = weighted_medians(rows)
    coefficients = relative_nnls(design, seconds, weight)
    predicted = design @ coefficients
    draws = moved_medians(rows, seconds, predicted, design.shape[1], seed)
    return Solved(
        coefficients=coefficients,
        draws=np.array([relative_nnls(design, draw, weight) for draw in draws]),
        launches=np.array(
            [relative_nnls(design, alone, weight) for alone in medians_by_launch(rows, seconds)]
        ).reshape(-1, design.shape[1]),
        seconds=seconds,
        predicted=predicted,
        held_out=left_out(design, seconds, weight, rows.names),
    )


def moved_medians(
    rows: CheckedRows, seconds: Floats, predicted: Floats, coefficients: int, seed: int
) -> Floats:
    """Medians [n, d] of bootstrap samples of launches and repetitions.

    The median of a point with few repetitions is moved by a residual of the law instead (Davison and
    Hinkley 1997, 6.3), widened for the coefficients that were fitted (`inflation`).
    """
    draws = resampled_medians(rows, seed)
    thin = np.bincount(rows.point, minlength=len(seconds)) < MIN_REPETITIONS
    if thin.any():
        residuals = (seconds / predicted - 1.0) * inflation(len(seconds), coefficients)
        picks = np.random.default_rng(seed).choice(residuals, size=draws.shape)
        # never to nothing: a time is positive
        moved = predicted * np.maximum(1.0 + picks, 0.01)
        draws[:, thin] = moved[:, thin]
    return draws


def medians_by_launch(rows: CheckedRows, seconds: Floats) -> Floats:
    """Medians [l, d] as each launch alone has them; [0, d] of one launch.

    A point that a launch lacks has that of all launches.
    """
    alone = launch_medians(rows)
    return np.where(np.isnan(alone), seconds, alone) if len(alone) > 1 else alone[:0]


def widened_factor(factor: float, x: Floats, limits: Floats) -> Floats:
    """The error factor [n] of rows of X [n, k]; outside `limits` [2, k] larger, by every decade."""
    low, high = limits
    with np.errstate(divide="ignore", invalid="ignore"):
        over = np.log10(x / np.where(high > 0, high, 1.0))
        under = np.log10(np.where(low > 0, low, 1.0) / x)
    beyond = np.where(x > high, np.maximum(over, 0.0), -np.inf)
    below = np.where(x < low, np.maximum(under, 0.0), -np.inf)
    decades = np.minimum(np.maximum(beyond, below).max(axis=1), 6.0)  # -inf inside
    base = max(factor, EXTRAPOLATION_FACTOR)
    outside = base * min(base, MOST_PER_DECADE) ** np.maximum(decades, 0.0)
    result: Floats = np.where(np.isfinite(decades), outside, factor)
    return result


class NonNegativeLaw(Estimator):
    """Base of the laws t = D(x) c, c >= 0; a subclass gives `_design`.

    Learned, beside what every estimator has: `coefficients_`, `low_`, `high_` [k] with 95%
    intervals, `error_` and `held_out_error_` (mean relative errors, in sample and leaving one point
    out; NaN of one point), `error_factor_` of points that were left out.
    """

    solved_: Solved
    coefficients_: Floats
    low_: Floats
    high_: Floats
    error_: float
    held_out_error_: float
    error_factor_: float

    def _fit(self, rows: CheckedRows) -> None:
        self.solved_ = solve(self._design(rows.points), rows, self.seed)
        self.coefficients_ = self.solved_.coefficients
        estimates = [self.solved_.estimate(i) for i in range(len(self.coefficients_))]
        self.low_ = np.array([low for _, low, _ in estimates])
        self.high_ = np.array([high for _, _, high in estimates])
        self.error_ = self.solved_.error
        self.held_out_error_ = self.solved_.held_out_error
        self.error_factor_ = self.solved_.factor

    def _interval(self, x: Floats) -> tuple[Floats, Floats]:
        """(low [n], high [n]) seconds at 95%: of the law, and of what it left out of a point."""
        low, high = self.solved_.band(self._design(x))
        factor = widened_factor(self.error_factor_, x, self.range_)
        middle = self._seconds(x)
        return np.minimum(low, middle / factor), np.maximum(high, middle * factor)

    def _seconds(self, x: Floats) -> Floats:
        result: Floats = self._design(x) @ self.coefficients_
        return result

    @abstractmethod
    def _design(self, x: Floats) -> Floats:
        """D(x) [n, k]."""


class AffineInBytes(NonNegativeLaw):
    """A pass over a list of tensors: t = call + s_per_tensor * ntensors + s_per_byte * nbytes.

    X [n, 2] is (number of tensors, bytes of all). For update, pack, unpack, split, concat.
    """

    call_s_: float
    s_per_tensor_: float
    s_per_byte_: float

    def _fit(self, rows: CheckedRows) -> None:
        """Raises InputError for other features than two."""
        if rows.x.shape[1] != 2:
            raise InputError("a pass over tensors is fitted on their number and their bytes")
        super()._fit(rows)
        self.call_s_, self.s_per_tensor_, self.s_per_byte_ = map(float, self.coefficients_)

    def _design(self, x: Floats) -> NDArray[np.float64]:
        return np.column_stack([np.ones(len(x)), x])
