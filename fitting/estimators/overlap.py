"""Overlap (eta): how much of the gradient exchange data parallelism hides behind the backward.

iteration = others + backward + exchange - min(eta exchange, backward), eta in [0, 1] (formulas.md,
"overlap"; the paper has eta = 0, which is training without overlap). An exchange that runs beside the
backward may also slow it down, by more than is hidden: no eta in [0, 1] says that. Then eta is 0, and
the iteration is that without overlap times 1 + `slowdown_`.

Galvatron has it the other way round: its overlap_coefficient c >= 1 is by how much computing and
communicating slow each other down while they run together. Parts that take a and b alone then take
c min(a, b) + |a - b| = a + b - (2 - c) min(a, b). Where the exchange is the shorter part that is our
law with eta = 2 - c, and where it is the longer one it is not: no number is converted here.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from calib.fitting.estimators.affine import (
    mean_relative_error,
    medians_by_launch,
    moved_medians,
    widened_factor,
)
from calib.fitting.estimators.base import CheckedRows, Estimator, interval, weighted_medians
from calib.fitting.regression import UNCHECKED_FACTOR, error_factor
from calib.foundation.arrays import Floats
from calib.foundation.errors import InputError

# losses closer than this are one: eta cannot be told apart there
SAME_LOSS = 1e-12
OTHERS, BACKWARD, EXCHANGE = range(3)  # columns


class OverlapLaw(Estimator):
    """Seconds of an iteration with overlap, by X [n, 3] seconds of what it is without.

    Columns: what nothing hides (forward, pack, unpack, update), backward, exchange. Learned: `eta_`,
    `eta_low_`, `eta_high_` in [0, 1]; `slowdown_`, `slowdown_low_`, `slowdown_high_`; `error_` and
    `held_out_error_` (mean relative, leaving one x out; NaN of one x), `error_factor_`. Where no
    exchange is short enough to tell how much of it could be hidden, eta is the smallest that explains
    the times, and its interval ends at 1.
    """

    eta_: float
    eta_low_: float
    eta_high_: float
    slowdown_: float
    slowdown_low_: float
    slowdown_high_: float
    error_: float
    held_out_error_: float
    error_factor_: float

    def _fit(self, rows: CheckedRows) -> None:
        """Raises InputError for other columns, or for no exchange at all."""
        if rows.x.shape[1] != 3:
            raise InputError("overlap needs seconds of backward, exchange and all else")
        if not (rows.x[:, EXCHANGE] > 0).any():
            raise InputError("overlap needs an exchange that takes time")
        seconds, weight = weighted_medians(rows)
        self.eta_, last, self.slowdown_ = best_law(rows.points, seconds, weight)
        predicted = self._seconds(rows.points)
        self.error_ = mean_relative_error(predicted, seconds)
        moved = moved_medians(rows, seconds, predicted, 1, self.seed)
        draws = np.array([best_law(rows.points, times, weight) for times in moved])
        by_launch = medians_by_launch(rows, seconds)
        alone = np.array([best_law(rows.points, t, weight) for t in by_launch]).reshape(-1, 3).T
        low, _ = interval(self.eta_, draws[:, 0], alone[0].tolist())
        _, high = interval(last, draws[:, 1], alone[1].tolist())
        self.eta_low_, self.eta_high_ = low, min(max(high, self.eta_), 1.0)
        ends = interval(self.slowdown_, draws[:, 2], alone[2].tolist())
        self.slowdown_low_, self.slowdown_high_ = ends
        held_out = np.full(len(seconds), np.nan)
        for out in range(len(seconds) if len(seconds) > 1 else 0):
            keep = np.arange(len(seconds)) != out
            eta, _, slowdown = best_law(rows.points[keep], seconds[keep], weight[keep])
            held_out[out] = (1 + slowdown) * iteration(rows.points[out : out + 1], eta)[0]
        self.held_out_error_ = mean_relative_error(held_out, seconds)
        one = len(seconds) == 1  # nothing to leave out
        self.error_factor_ = UNCHECKED_FACTOR if one else error_factor(held_out, seconds)

    def _seconds(self, x: Floats) -> Floats:
        return (1 + self.slowdown_) * iteration(x, self.eta_)

    def _interval(self, x: Floats) -> tuple[Floats, Floats]:
        """(low [n], high [n]) seconds at 95%: of the law, and of what it left out of an x."""
        factor = widened_factor(self.error_factor_, x, self.range_)
        middle = self._seconds(x)
        # all hidden at most: no error makes an iteration shorter than its own parts
        least = x.sum(axis=1) - np.minimum(x[:, BACKWARD], x[:, EXCHANGE])
        first = (1 + self.slowdown_low_) * iteration(x, self.eta_high_)
        last = (1 + self.slowdown_high_) * iteration(x, self.eta_low_)
        low = np.minimum(first, np.maximum(middle / factor, least))
        return low, np.maximum(last, middle * factor)


def iteration(x: Floats, eta: float) -> Floats:
    """Seconds [n] of an iteration that hides min(eta exchange, backward) of X [n, 3]."""
    result: Floats = x.sum(axis=1) - np.minimum(eta * x[:, EXCHANGE], x[:, BACKWARD])
    return result


def best_law(x: Floats, seconds: Floats, weight: Floats) -> tuple[float, float, float]:
    """(smallest, largest) eta of `best_eta`; and where that is 0, the slowdown."""
    first, last = best_eta(x, seconds, weight)
    ratio = x.sum(axis=1) / seconds
    slower = float(np.sum(weight * ratio) / np.sum(weight * ratio * ratio))
    return first, last, max(slower - 1, 0.0) if first == 0 else 0.0


def best_eta(x: Floats, seconds: Floats, weight: Floats) -> tuple[float, float]:
    """(smallest, largest) eta in [0, 1] with the least sum w ((prediction - t) / t)^2.

    Exact: between the values of eta at which an exchange is as long as its backward, the sum is a
    parabola, whose lowest point is known.
    """
    backward, exchange, whole = x[:, BACKWARD], x[:, EXCHANGE], x.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        corners = np.where(exchange > 0, backward / exchange, np.inf)
    borders = np.unique(np.clip([0.0, *corners, 1.0], 0.0, 1.0))
    candidates = borders.tolist()
    for low, high in pairwise(borders.tolist()):
        active = corners > low  # the hidden part still grows with eta
        slope = weight * (exchange / seconds) * active
        bottom = float(np.sum(slope * exchange / seconds))
        if bottom > 0:
            rest = (whole - seconds) / seconds
            candidates.append(float(np.clip(np.sum(slope * rest) / bottom, low, high)))
    etas = np.unique(candidates)
    hidden = np.minimum(etas[:, None] * exchange, backward)
    losses = np.sum(weight * ((whole - hidden - seconds) / seconds) ** 2, axis=1)
    good = etas[losses <= losses.min() + SAME_LOSS * max(float(np.sum(weight)), 1.0)]
    return float(good[0]), float(good[-1])
