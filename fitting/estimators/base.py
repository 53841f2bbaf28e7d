"""What all estimators of this room share: checked rows, a cluster bootstrap, intervals, warnings.

Conventions of scikit-learn: the constructor only stores, `fit` validates and returns self, what was
learned ends in an underscore. One row is one repetition: X [n, k] says what was timed (bytes,
operations, ranks, ...), y [n] its seconds, `groups` [n] the launch it belongs to. An estimator
summarises the rows of one x by their median (launches weighing alike), so its law is that of the
typical repetition, and draws its intervals by a bootstrap over launches and repetitions.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from calib.fitting.estimators.draws import drawn_medians, equal
from calib.fitting.launches import quantile_of_t
from calib.fitting.regression import CONFIDENCE
from calib.foundation.arrays import Floats
from calib.foundation.errors import InputError

TAILS = (1.0 - CONFIDENCE) / 2.0, 1.0 - (1.0 - CONFIDENCE) / 2.0
BOOTSTRAPS = 200
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class ExtrapolationWarning(UserWarning):
    """A prediction outside the range of what was fitted; its interval is widened."""


@dataclass(frozen=True)
class CheckedRows:
    """Checked rows, sorted so that the order in which they came cannot matter.

    `x` [n, k], `seconds` [n] > 0, `weight` [n] > 0, `launch` [n]; `point` [n] is the index of the row's
    distinct x in `points` [d, k], and `names` [d] say which points are left out together.
    """

    x: Floats
    seconds: Floats
    weight: Floats
    launch: NDArray[np.int64]
    points: Floats
    point: NDArray[np.int64]
    names: list[str]

    @property
    def repeated(self) -> bool:
        """Whether any x was timed more than once."""
        return len(self.points) < len(self.x)


def checked(
    features: ArrayLike,
    seconds: ArrayLike,
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    names: Sequence[str] | None = None,
) -> CheckedRows:
    """Rows of X [n, k] and y [n] seconds. A one-dimensional X is one feature.

    Without `names` [n] each distinct x has its own; one x of several names is several points.

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
    if names is not None and len(names) != len(t):
        raise InputError(f"{len(names)} names for {len(t)} rows")
    order = np.lexsort((weight, t, launch, *x.T[::-1]))
    x, t, weight, launch = x[order], t[order], weight[order], launch[order]
    if names is None:
        points, inverse = np.unique(x, axis=0, return_inverse=True)
        named = [str(index).zfill(9) for index in range(len(points))]
    else:
        known, of = np.unique(list(names), return_inverse=True)
        keyed, inverse = np.unique(np.column_stack([x, of[order]]), axis=0, return_inverse=True)
        points, named = keyed[:, :-1], known[keyed[:, -1].astype(int)].tolist()
    return CheckedRows(x, t, weight, launch, points, inverse.reshape(-1), named)


def medians(rows: CheckedRows) -> tuple[Floats, Floats]:
    """(median seconds [d], summed weight [d]) of every distinct point.

    The median is weighted, and the launches of a point weigh alike: measuring stops when a median is
    known, so that one launch may hold most of a point's repetitions.
    """
    order = np.lexsort((rows.seconds, rows.point))
    point, seconds, weight = rows.point[order], rows.seconds[order], rows.weight[order]
    counts = np.bincount(point, minlength=len(rows.points))
    total: Floats = np.bincount(point, weights=weight, minlength=len(rows.points)).astype(float)
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    share = weight * _launch_shares(rows)[order]
    if equal(share):
        middle = 0.5 * (seconds[first + (counts - 1) // 2] + seconds[first + counts // 2])
        return middle, total
    below = np.cumsum(share)
    start = np.concatenate([[0.0], below[first[1:] - 1]])
    half = 0.5 * (start + below[first + counts - 1])
    low = np.searchsorted(below, half * (1 - 1e-12))
    high = np.searchsorted(below, half * (1 + 1e-12), side="right")
    last = first + counts - 1
    middle = 0.5 * (seconds[np.clip(low, first, last)] + seconds[np.clip(high, first, last)])
    return middle, total


def weighted_medians(rows: CheckedRows) -> tuple[Floats, Floats]:
    """(median seconds [d], mean weight [d] of a repetition) of every distinct point.

    Noisy points are measured more often (microbench/timing/repeat.py): the number of repetitions is no
    vote.
    """
    middle, total = medians(rows)
    return middle, total / np.bincount(rows.point)


def _launch_shares(rows: CheckedRows) -> Floats:
    """Weights [n] with which the launches that have a point weigh alike there; 1 where they do."""
    numbers, launch = np.unique(rows.launch, return_inverse=True)
    counts = np.zeros((len(rows.points), len(numbers)))
    np.add.at(counts, (rows.point, launch), 1.0)
    mean = counts.sum(axis=1) / (counts > 0).sum(axis=1)
    result: Floats = mean[rows.point] / counts[rows.point, launch]
    return result


def resampled_medians(rows: CheckedRows, seed: int, n: int = BOOTSTRAPS) -> Floats:
    """Medians [n, d] of every point in n bootstrap samples.

    Launches are drawn with replacement, then as many repetitions of each point as the drawn launches
    have of it (a cluster bootstrap; Davison and Hinkley 1997, 3.8), so that the difference between
    launches is in the interval; they weigh alike and repetitions by their weights, as in `medians`. A
    point that the drawn launches lack is taken from those that have it.
    """
    generator = np.random.default_rng(seed)
    numbers, launch = np.unique(rows.launch, return_inverse=True)
    drawn = generator.choice(len(numbers), size=(n, len(numbers)))
    times = np.stack([np.bincount(draw, minlength=len(numbers)) for draw in drawn])
    order = np.lexsort((rows.seconds, rows.point))
    borders = np.flatnonzero(np.diff(rows.point[order])) + 1
    result = np.empty((n, len(rows.points)))
    for index, mine in enumerate(np.split(order, borders)):
        rising, weight = rows.seconds[mine], rows.weight[mine]
        result[:, index] = drawn_medians(rising, weight, launch[mine], times, generator)
    return result


def launch_medians(rows: CheckedRows) -> Floats:
    """Weighted medians [launches, d] of each launch by itself; NaN where it lacks the point."""
    numbers = np.unique(rows.launch)
    result = np.full((len(numbers), len(rows.points)), np.nan)
    for index, number in enumerate(numbers):
        mine = rows.launch == number
        names = [rows.names[point] for point in rows.point[mine].tolist()]
        own = checked(rows.x[mine], rows.seconds[mine], rows.weight[mine], names=names)
        result[index, np.unique(rows.point[mine])] = medians(own)[0]
    return result


def launch_margin(launches: Floats) -> Floats:
    """95% half-width [...] of the mean of `launches` [l, ...], by Student's t; 0 of one alone."""
    n = len(launches)
    if n < 2:
        return np.zeros(launches.shape[1:])
    result: Floats = quantile_of_t(n - 1.0) * launches.std(axis=0, ddof=1) / np.sqrt(n)
    return result


def interval(value: float, draws: ArrayLike, launches: Sequence[float] = ()) -> tuple[float, float]:
    """(low, high) at 95%: the draws' quantiles, widened to hold `value` and how `launches` differ.

    `launches` are the value as each launch alone gives it: a bootstrap over few launches is too sure of
    them (`launch_margin`).
    """
    low, high = np.quantile(np.asarray(draws, dtype=float), TAILS)
    margin = float(launch_margin(np.array(launches, dtype=float)))
    ends = low, high, value, value - margin, value + margin
    return max(float(min(ends)), 0.0), float(max(ends))


def held_by_launches(
    low: Floats, high: Floats, value: Floats, launches: Floats, least: float = 0.0
) -> tuple[Floats, Floats]:
    """Ends [n], `least` or more, widened by how the launches differ, each of which says [l, n]."""
    margin = launch_margin(launches)
    return np.maximum(np.minimum(low, value - margin), least), np.maximum(high, value + margin)


def widest(
    value: Floats, sets: Iterable[Floats], launches: Floats, least: float = 0.0
) -> tuple[Floats, Floats]:
    """(low [n], high [n]) at 95% around value [n]: the widest of draws [b, n] and of launches [l, n].

    Where there are launches the low end is `least` or more.
    """
    low, high = value.copy(), value.copy()
    for draws in sets:
        ends = np.quantile(draws, TAILS, axis=0)
        low, high = np.minimum(low, ends[0]), np.maximum(high, ends[1])
    if len(launches):
        low, high = held_by_launches(low, high, value, launches, least)
    return low, high


class Estimator(RegressorMixin, BaseEstimator, ABC):
    """Base of the estimators that predict seconds from features.

    Learned by `fit`: `range_` [2, k] smallest and largest features, `n_` rows,
    `residual_quantiles_` [5] of t / predicted - 1. A subclass gives `_fit`, `_seconds` and `_interval`,
    which get checked rows and features.
    """

    range_: Floats
    n_: int
    residual_quantiles_: Floats

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        names: Sequence[str] | None = None,
    ) -> Self:
        """Learn from X [n, k] features, y [n] seconds, weights [n] and launches `groups` [n].

        The class says what the columns of X are. Rows that share one of the `names` [n] (batches of a
        model, or of a layer) are left out together in cross-validation. Raises InputError for rows that
        `checked` refuses and for features that the law cannot have.
        """
        rows = checked(X, y, sample_weight, groups, names)
        self._fit(rows)
        self.range_ = np.stack([rows.x.min(axis=0), rows.x.max(axis=0)])
        self.n_ = len(rows.seconds)
        predicted = self._seconds(rows.points)[rows.point]
        self.residual_quantiles_ = np.quantile(rows.seconds / predicted - 1.0, QUANTILES)
        return self

    def predict(self, X: ArrayLike) -> Floats:
        """Seconds [n]. Warns with ExtrapolationWarning outside `range_`.

        Raises InputError for NaN and for other features than those of `fit`, NotFittedError before it.
        """
        x = self._features(X)
        low, high = self.range_
        if outside := int(((x < low) | (x > high)).any(axis=1).sum()):
            warnings.warn(
                f"{type(self).__name__}: {outside} of {len(x)} predictions are outside what was fitted",
                ExtrapolationWarning,
                stacklevel=2,
            )
        return self._seconds(x)

    def predict_interval(self, X: ArrayLike) -> tuple[Floats, Floats]:
        """(low [n], high [n]) seconds at 95%, wider outside `range_`. Raises as `predict` does."""
        return self._interval(self._features(X))

    def _features(self, features: ArrayLike) -> Floats:
        """X [n, k] of a prediction, checked."""
        check_is_fitted(self, "range_")
        x = np.asarray(features, dtype=float)
        x = x[:, None] if x.ndim == 1 else x
        if x.ndim != 2 or x.shape[1] != self.range_.shape[1]:
            raise InputError(f"features of shape {x.shape}; fitted on {self.range_.shape[1]}")
        if not np.isfinite(x).all():
            raise InputError("a feature is NaN or infinite")
        return x

    @abstractmethod
    def _fit(self, rows: CheckedRows) -> None:
        """Learn the law. Raises InputError for features that it cannot have."""

    @abstractmethod
    def _seconds(self, x: Floats) -> Floats:
        """The law [n] at X [n, k]."""

    @abstractmethod
    def _interval(self, x: Floats) -> tuple[Floats, Floats]:
        """(low [n], high [n]) of the law at X [n, k], at 95%."""
