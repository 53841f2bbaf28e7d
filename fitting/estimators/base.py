"""What all estimators of this room share: checked rows, a cluster bootstrap, intervals, warnings.

Conventions of scikit-learn: the constructor only stores, `fit` validates and returns self, what was
learned ends in an underscore. One row is one repetition: X [n, k] says what was timed (bytes,
operations, ranks, ...), y [n] its seconds, `groups` [n] the launch it belongs to. An estimator
summarises the rows of one x by their median (of the launches' pooled rows), so its law is that of the
typical repetition, and draws its intervals by a bootstrap over launches and repetitions.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin

from fitting.estimate import launch_margin
from foundation.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]

CONFIDENCE = 0.95
BOOTSTRAPS = 200
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class ExtrapolationWarning(UserWarning):
    """A prediction outside the range of what was fitted; its interval is widened."""


@dataclass(frozen=True)
class Rows:
    """Checked rows, sorted so that the order in which they came cannot matter.

    `x` [n, k], `seconds` [n] > 0, `weight` [n] > 0, `launch` [n]; `point` [n] is the index of the row's
    distinct x in `points` [d, k].
    """

    x: Floats
    seconds: Floats
    weight: Floats
    launch: NDArray[np.int64]
    points: Floats
    point: NDArray[np.int64]

    @property
    def repeated(self) -> bool:
        """Whether any x was timed more than once."""
        return len(self.points) < len(self.x)


def checked(
    features: ArrayLike,
    seconds: ArrayLike,
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
) -> Rows:
    """Rows of X [n, k] and y [n] seconds. A one-dimensional X is one feature.

    Raises InputError for no rows, NaN, infinity, lengths that differ, times or weights that are not
    positive, and features that are negative.
    """
    x, t = np.asarray(features, dtype=float), np.asarray(seconds, dtype=float)
    x = x[:, None] if x.ndim == 1 else x
    if x.ndim != 2 or t.shape != (len(x),) or not len(t):
        raise InputError(f"{t.shape} times for features of shape {x.shape}")
    if not (np.isfinite(x).all() and np.isfinite(t).all()):
        raise InputError("a feature or a time is NaN or infinite")
    if (t <= 0).any() or (x < 0).any():
        raise InputError("a time is not positive, or a feature is negative")
    weight = np.ones(len(t)) if sample_weight is None else np.asarray(sample_weight, dtype=float)
    launch = np.zeros(len(t), dtype=np.int64) if groups is None else np.asarray(groups)
    if weight.shape != t.shape or launch.shape != t.shape:
        raise InputError("as many weights and groups as times are needed")
    if not np.isfinite(weight).all() or (weight <= 0).any():
        raise InputError("a weight is NaN, infinite or not positive")
    order = np.lexsort((weight, t, launch, *x.T[::-1]))
    x, t, weight, launch = x[order], t[order], weight[order], launch[order]
    points, point = np.unique(x, axis=0, return_inverse=True)
    return Rows(x, t, weight, launch, points, point.reshape(-1))


def medians(rows: Rows) -> tuple[Floats, Floats]:
    """(median seconds [d], summed weight [d]) of every distinct point; the median is weighted."""
    order = np.lexsort((rows.seconds, rows.point))
    point, seconds, weight = rows.point[order], rows.seconds[order], rows.weight[order]
    if (weight == weight[0]).all():
        counts = np.bincount(point, minlength=len(rows.points))
        first = np.concatenate([[0], np.cumsum(counts)[:-1]])
        middle = 0.5 * (seconds[first + (counts - 1) // 2] + seconds[first + counts // 2])
        return middle, counts * weight[0]
    result, total = np.empty(len(rows.points)), np.empty(len(rows.points))
    for index in range(len(rows.points)):
        mine = point == index
        cumulated = np.cumsum(weight[mine])
        total[index] = cumulated[-1]
        result[index] = seconds[mine][np.searchsorted(cumulated, 0.5 * cumulated[-1])]
    return result, total


def resampled_medians(rows: Rows, seed: int, n: int = BOOTSTRAPS) -> Floats:
    """Medians [n, d] of every point in n bootstrap samples.

    Launches are drawn with replacement, then the repetitions of each point within the drawn launches (a
    cluster bootstrap; Davison and Hinkley 1997, 3.8), so that the difference between launches is in the
    interval. A point that the drawn launches lack is taken from those that have it.
    """
    generator = np.random.default_rng(seed)
    numbers = np.unique(rows.launch)
    cells: dict[tuple[int, int], Floats] = {}
    order = np.lexsort((rows.launch, rows.point))
    point, launch, seconds = rows.point[order], rows.launch[order], rows.seconds[order]
    borders = np.flatnonzero(np.diff(point) | np.diff(launch)) + 1
    starts = np.concatenate([[0], borders])
    for start, piece in zip(starts, np.split(seconds, borders), strict=True):
        cells[int(point[start]), int(launch[start])] = piece
    having = [[int(k) for k in numbers if (i, int(k)) in cells] for i in range(len(rows.points))]
    drawn = generator.choice(numbers, size=(n, len(numbers)))
    result = np.empty((n, len(rows.points)))
    for index, mine in enumerate(having):
        if len(mine) == 1:
            values = cells[index, mine[0]]
            picks = generator.integers(0, len(values), size=(n, len(values)))
            result[:, index] = np.median(values[picks], axis=1)
            continue
        for draw in range(n):
            chosen = [int(k) for k in drawn[draw] if (index, int(k)) in cells] or mine
            parts = [cells[index, k] for k in chosen]
            picked = [v[generator.integers(0, len(v), size=len(v))] for v in parts]
            result[draw, index] = np.median(np.concatenate(picked))
    return result


def interval(value: float, draws: ArrayLike, launches: Sequence[float] = ()) -> tuple[float, float]:
    """(low, high) at 95%: the draws' quantiles, widened to hold `value` and how `launches` differ.

    `launches` are the value as each launch alone gives it: a bootstrap over few launches is too sure of
    them (fitting/estimate.py, `launch_margin`).
    """
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(np.asarray(draws, dtype=float), [tail, 1.0 - tail])
    margin = launch_margin(list(launches))
    ends = (low, high, value - margin, value + margin, *launches)
    return max(float(min(ends)), 0.0), float(max(ends))


def residual_quantiles(predicted: ArrayLike, seconds: ArrayLike) -> Floats:
    """Quantiles (QUANTILES) of the relative residuals t / predicted - 1."""
    relative = np.asarray(seconds, dtype=float) / np.asarray(predicted, dtype=float) - 1.0
    result: Floats = np.quantile(relative, QUANTILES)
    return result


class Estimator(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """Base of the estimators that predict seconds from features.

    Learned by `fit`: `range_` [2, k] smallest and largest features, `n_` rows,
    `residual_quantiles_` [5]. A subclass gives fit(X, y, sample_weight=None,
    groups=None) -> self, `_seconds(X)` -> [n] and
    `predict_interval(X)` -> (low [n], high [n]) at 95%.
    """

    range_: Floats
    n_: int
    residual_quantiles_: Floats

    def _learned(self, rows: Rows) -> None:
        """Keep what every estimator says of its rows. Call at the end of `fit`."""
        self.range_ = np.stack([rows.x.min(axis=0), rows.x.max(axis=0)])
        self.n_ = len(rows.seconds)
        self.residual_quantiles_ = residual_quantiles(self._seconds(rows.x), rows.seconds)

    def predict(self, features: ArrayLike) -> Floats:
        """Seconds [n]. Warns with ExtrapolationWarning outside `range_`. Raises InputError for NaN."""
        x = np.asarray(features, dtype=float)
        x = x[:, None] if x.ndim == 1 else x
        if not np.isfinite(x).all():
            raise InputError("a feature is NaN or infinite")
        if self.outside(x).any():
            warnings.warn(
                f"{type(self).__name__}: {int(self.outside(x).sum())} of {len(x)} predictions are "
                "outside what was fitted",
                ExtrapolationWarning,
                stacklevel=2,
            )
        return self._seconds(x)

    def outside(self, x: Floats) -> NDArray[np.bool_]:
        """Which rows of X [n, k] are beyond the fitted range."""
        low, high = self.range_
        result: NDArray[np.bool_] = ((x < low) | (x > high)).any(axis=1)
        return result

    def _seconds(self, x: Floats) -> Floats:
        raise NotImplementedError
