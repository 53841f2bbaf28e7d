"""Level and scatter of a series so far, and the autocorrelation of its nights."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from scipy.special import ndtri

from calib.foundation.arrays import Floats
from calib.reports.drift.limits import CORRELATIONS, TAIL, TAIL_POINT

TRIMMED = 10  # one in so many nights is left out at either end
EFFICIENCY = 0.9  # of a trimmed mean, in nights
SIDE = 0.05  # of the nights: where the tail of a side is taken, as nights are rather slow than fast
SIDE_POINT = -float(ndtri(SIDE))
FEW = 10  # nights that do not tell of their scatter
CLIPPED = 2.5  # scatters: a night beyond it says nothing about the autocorrelation


class Baselines(NamedTuple):
    """What is known after each night [n], of that night and those before it.

    `of` nights of this level; `location` their trimmed mean, worth `nights` independent ones;
    `scatter` one standard deviation, `up` and `down` what the tail of that side makes of it, where
    that is more, with `freedom` degrees of freedom; `correlation` of a night with the next, at its
    upper end.
    """

    of: Floats
    location: Floats
    nights: Floats
    scatter: Floats
    up: Floats
    down: Floats
    freedom: Floats
    correlation: Floats


def baselines(x: Floats, residuals: Floats, most: int) -> Baselines:
    """For each night of a level `x` [n]: of it and at most `most` nights up to it.

    `residuals`: of the levels before, which tell of the scatter while this one is short.
    """
    n = len(x)
    rows = sliding_window_view(np.concatenate([np.full(most - 1, np.nan), x]), most)
    count = np.minimum(np.arange(1, n + 1), most)
    in_order = np.sort(rows, axis=1)
    location = _trimmed_mean(in_order, count)
    away, total = rows - location[:, None], count
    if len(residuals):
        before = np.concatenate([np.full(most, np.nan), residuals])[-(most - 1) :]
        older = sliding_window_view(np.concatenate([before, np.full(n, np.nan)]), most)
        away = np.where(np.isnan(rows), older, away)
        total = np.minimum(count + min(len(residuals), most - 1), most)
        (scatter, up, down), freedom = _scatter(np.sort(away, axis=1), total)
    else:
        (scatter, up, down), freedom = _scatter(in_order - location[:, None], total)
    correlation = _correlation(away, scatter, total)
    return Baselines(
        count.astype(np.float64),
        location,
        _independent(count, correlation),
        scatter,
        up,
        down,
        freedom,
        correlation,
    )


def fixed_baseline(x: Floats, count: int, most: int) -> Baselines:
    """The first `count` nights of `x` [n] as the normal of all of them.

    Of fewer than `FEW` nights the level is taken but not the scatter: that is then of the differences
    between a night and the next, over all of `x`.
    """
    n = len(x)
    last = baselines(x[:count], np.empty(0), max(count, most))
    one = Baselines(*(column[-1:] for column in last))
    if count < FEW and n > 2:
        apart = np.diff(x)[-most:] / np.sqrt(2.0)
        ordered = np.sort(apart)[None, :]
        (scatter, up, down), freedom = _scatter(ordered, np.array([len(apart)]))
        one = one._replace(scatter=scatter, up=up, down=down)
        one = one._replace(freedom=freedom / 2.0, correlation=np.zeros(1))
        one = one._replace(nights=np.maximum(EFFICIENCY * one.of, 1.0))
    return Baselines(*(np.repeat(column, n) for column in one))


def level_of(x: Floats, residuals: Floats) -> Baselines:
    """The level of all nights of `x` [n], its scatter also from older `residuals`: arrays [1]."""
    ordered = np.sort(x)[None, :]
    location = _trimmed_mean(ordered, np.array([len(x)]))
    away = np.concatenate([residuals, x - location])[None, :]
    total = np.array([away.shape[1]])
    (scatter, up, down), freedom = _scatter(np.sort(away, axis=1), total)
    correlation = _correlation(away, scatter, total)
    count = np.array([len(x)])
    nights = _independent(count, correlation)
    return Baselines(
        count.astype(np.float64), location, nights, scatter, up, down, freedom, correlation
    )


def _trimmed(count: NDArray[np.int64]) -> NDArray[np.int64]:
    """Values left out at either end of `count`."""
    least = (count >= 3).astype(np.int64)
    result: NDArray[np.int64] = np.maximum(count // TRIMMED, least)
    return result


def _trimmed_mean(ordered: Floats, count: NDArray[np.int64]) -> Floats:
    """The trimmed mean of each sorted row [n, most], missing values last."""
    cut, column = _trimmed(count)[:, None], np.arange(ordered.shape[1])
    kept = (column >= cut) & (column < count[:, None] - cut)
    mean: Floats = np.where(kept, ordered, 0.0).sum(axis=1) / kept.sum(axis=1)
    return mean


def _scatter(
    ordered: Floats, count: NDArray[np.int64]
) -> tuple[tuple[Floats, Floats, Floats], Floats]:
    """(standard deviations: whole, upwards, downwards; degrees of freedom) of [n, most] in order."""
    cut, row = _trimmed(count), np.arange(len(count))
    low, high = ordered[row, cut], ordered[row, count - cut - 1]
    clipped = np.clip(ordered, low[:, None], high[:, None])
    present = np.arange(ordered.shape[1]) < count[:, None]
    kept = np.where(present, clipped, 0.0)
    mean = kept.sum(axis=1) / count
    square = (kept**2).sum(axis=1) / count - mean**2
    factors = np.array(
        [winsorised_variance(int(c), int(n)) for c, n in zip(cut, count, strict=True)]
    )
    small = np.sqrt(count / np.maximum(count - 1, 1))
    winsorised = np.sqrt(np.maximum(square, 0.0) / factors) * small
    # two rising runs, which a merging sort joins
    sizes = np.sort(np.abs(ordered), axis=1, kind="stable")
    tail = _quantile(sizes, count, TAIL)
    freedom = np.maximum(count - 2 * cut - 1, 1).astype(np.float64)
    whole = np.maximum(winsorised, tail / TAIL_POINT * small)
    up = _quantile(ordered, count, 1.0 - SIDE) * small / SIDE_POINT
    down = -_quantile(ordered, count, SIDE) * small / SIDE_POINT
    return (whole, np.maximum(whole, up), np.maximum(whole, down)), freedom


def _quantile(ordered: Floats, count: NDArray[np.int64], q: float) -> Floats:
    """A quantile of each sorted row, interpolated between order statistics."""
    row, place = np.arange(len(count)), q * (count - 1)
    below = place.astype(np.int64)
    low, high = ordered[row, below], ordered[row, np.minimum(below + 1, count - 1)]
    found: Floats = low + (place - below) * (high - low)
    return found


@lru_cache(maxsize=1024)
def winsorised_variance(cut: int, count: int) -> float:
    """Variance of a standard normal with `cut` of `count` values winsorised at either end."""
    if cut == 0:
        return 1.0
    share = cut / count
    z = -float(ndtri(share))
    density = np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)
    return float(1.0 - 2.0 * share - 2.0 * z * density + 2.0 * share * z * z)


def _correlation(away: Floats, scatter: Floats, count: NDArray[np.int64]) -> Floats:
    """Upper end of the correlation of a night with the next (one standard error over it).

    The estimate is low by (1 + 4 rho) / n (Kendall, Biometrika 41, 1954).
    """
    bound = CLIPPED * scatter[:, None]
    kept = np.nan_to_num(np.clip(away, -bound, bound))
    square = (kept**2).sum(axis=1)
    product = (kept[:, 1:] * kept[:, :-1]).sum(axis=1)
    found = np.divide(product, square, out=np.zeros_like(square), where=square > 0)
    found = found + (1.0 + 4.0 * np.clip(found, 0.0, 1.0)) / count
    error = np.sqrt(np.maximum(1.0 - found**2, 0.1) / count)
    correlation: Floats = np.clip(found + error, 0.0, CORRELATIONS[-1])
    return correlation


def _independent(count: NDArray[np.int64], correlation: Floats) -> Floats:
    nights: Floats = EFFICIENCY * count * (1.0 - correlation) / (1.0 + correlation)
    return np.maximum(nights, 1.0)
