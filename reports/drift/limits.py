"""Limits of the rules "k of the last m nights", by their rate of false alarms.

A rule counts the nights beyond a limit on one side (supplementary runs rules: Western Electric,
Statistical Quality Control Handbook, 1956; their run lengths: Champ and Woodall, Technometrics 29,
1987). The limit is a prediction limit for k of m future values (Davis and McNichols, Technometrics
29, 1987), because level and scatter are themselves known from few nights only. Two things that real
series have widen it: autocorrelated nights (an autoregression of order 1, whose runs are counted
exactly), and tails heavier than normal (up to those of Student's t with 3 degrees of freedom).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import bdtrc, chdtri, gammaincinv, gammaln, ndtr, ndtri, stdtrit

from calib.foundation.arrays import Floats

TAIL = 0.94  # of the deviations' sizes: scatter is matched here too, so that heavy tails are seen
TAIL_POINT = float(ndtri(0.5 + TAIL / 2))  # in normal standard deviations
TAIL_PART = 0.5
HEAVIEST = 3.0  # degrees of freedom of the heaviest tail that is allowed for
# where the factors are computed; between, they are interpolated in 1 / nights
LEVEL_NIGHTS = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 40.0, 120.0])
FREEDOM = np.array([4.0, 5.0, 7.0, 10.0, 16.0, 32.0, 100.0])
CORRELATIONS = np.array([0.0, 0.2, 0.4, 0.6, 0.8])
BELOW, ABOVE = np.polynomial.legendre.leggauss(40), np.polynomial.legendre.leggauss(20)
LEAST = 1e-300  # keeps logarithms finite


@lru_cache(maxsize=256)
def night_share(k: int, m: int, chance: float) -> float:
    """The chance of one night beyond the limit that makes k of m nights beyond it have `chance`."""

    def excess(log_share: float) -> float:
        return math.log(max(bdtrc(k - 1, m, math.exp(log_share)), LEAST)) - math.log(chance)

    return math.exp(brentq(excess, math.log(chance) / k - 8.0, -1e-9, xtol=1e-13))


def run_chance(k: int, m: int, limit: float, correlation: float) -> float:
    """Probability that k or more of m nights lie over `limit` standard deviations.

    The nights are a normal autoregression of order 1. A Markov chain of (value, nights beyond) on the
    nodes of a Gauss-Legendre rule on either side of the limit (as Brook and Evans, Biometrika 59,
    1972, for other charts).
    """
    x, weight, over = _nodes(limit)
    spread = math.sqrt(1.0 - correlation**2)
    step = np.exp(-0.5 * ((x[None, :] - correlation * x[:, None]) / spread) ** 2)
    step *= weight[None, :] / (spread * math.sqrt(2.0 * math.pi))
    states = np.zeros((m + 1, len(x)))
    states[0] = np.exp(-0.5 * x**2) * weight / math.sqrt(2.0 * math.pi)
    states[1, over] = states[0, over]
    states[0, over] = 0.0
    for _ in range(m - 1):
        moved = states @ step
        states = np.where(over, 0.0, moved)
        states[1:, over] = moved[:-1, over]
    return float(states[k:].sum())


def _nodes(limit: float) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """(nodes, weights, whether over the limit) of [-8, limit] and [limit, limit + 7]."""
    below, above = BELOW, ABOVE
    half = (limit + 8.0) / 2.0
    x = np.concatenate([half * (below[0] + 1.0) - 8.0, 3.5 * (above[0] + 1.0) + limit])
    return x, np.concatenate([half * below[1], 3.5 * above[1]]), x > limit


@lru_cache(maxsize=256)
def known_limit(k: int, m: int, chance: float, correlation: float) -> float:
    """The limit of k of m nights with `chance`, in standard deviations, level and scatter known."""
    independent = -float(ndtri(night_share(k, m, chance)))
    if correlation == 0.0:
        return independent

    def excess(limit: float) -> float:
        return math.log(max(run_chance(k, m, limit, correlation), LEAST)) - math.log(chance)

    return float(brentq(excess, independent, independent * 4.0 + 2.0, xtol=1e-3))


@lru_cache(maxsize=64)
def correlation_factors(k: int, m: int, chance: float) -> Floats:
    """The factor on the limit at each of CORRELATIONS."""
    limits = np.array([known_limit(k, m, chance, float(rho)) for rho in CORRELATIONS])
    factors: Floats = limits / limits[0]
    return factors


def tail_factor(k: int, m: int, chance: float) -> float:
    """The factor on the limit for the heaviest tail, matched to the normal one at TAIL."""
    share = night_share(k, m, chance)
    heavy = stdtrit(HEAVIEST, 1.0 - share) / stdtrit(HEAVIEST, 0.5 + TAIL / 2) * TAIL_POINT
    return max(1.0, float(heavy) / -float(ndtri(share)))


@lru_cache(maxsize=64)
def estimated_factors(k: int, m: int, chance: float) -> Floats:
    """The limit where level and scatter come from few nights [LEVEL_NIGHTS, FREEDOM].

    The normal prediction limit for k of m values on one side: the mean, over the level's error and
    the scatter's (chi), of the binomial probability, is `chance`.
    """
    error, error_weight = np.polynomial.hermite_e.hermegauss(12)
    error_weight = error_weight / error_weight.sum()
    ratio, ratio_weight = _scatter_ratios()
    shifts = error / np.sqrt(LEVEL_NIGHTS)[:, None]

    def log_chance(limit: Floats) -> Floats:
        z = limit[:, :, None, None] * ratio[None, :, None, :] + shifts[:, None, :, None]
        over = bdtrc(k - 1, m, ndtr(-z))
        mean = np.einsum("lfes,e,fs->lf", over, error_weight, ratio_weight)
        logs: Floats = np.log(np.maximum(mean, LEAST))
        return logs

    known = known_limit(k, m, chance, 0.0)
    low = np.full((len(LEVEL_NIGHTS), len(FREEDOM)), known)
    high = np.full_like(low, known * 60.0)
    for _ in range(13):
        middle = np.sqrt(low * high)
        too_low = log_chance(middle) > math.log(chance)
        low, high = np.where(too_low, middle, low), np.where(too_low, high, middle)
    return high


@lru_cache(maxsize=1)
def _scatter_ratios() -> tuple[Floats, Floats]:
    """Estimated over true standard deviation, and weights [FREEDOM, 36], for each of FREEDOM."""
    ends = np.log(np.stack([2.0 * gammaincinv(FREEDOM / 2.0, 1e-13), chdtri(FREEDOM, 1e-8)])) / 2.0
    places, weights = np.polynomial.legendre.leggauss(24)
    at = ends[0][:, None] + (ends[1] - ends[0])[:, None] * (places + 1.0) / 2.0
    square = np.exp(2.0 * at)
    # density of the logarithm of chi
    half = FREEDOM[:, None] / 2.0
    # of chi squared; scipy.stats, which has it too, takes a second to import
    log_density = (half - 1) * np.log(square) - square / 2 - half * np.log(2.0) - gammaln(half)
    density = np.exp(log_density) * 2.0 * square
    mass = density * weights
    ratios: Floats = np.sqrt(square / FREEDOM[:, None])
    return ratios, mass / mass.sum(axis=1, keepdims=True)


def limit_factors(
    k: int, m: int, chance: float, level_nights: Floats, freedom: Floats, correlation: Floats
) -> Floats:
    """Limits [n] in estimated standard deviations, for arrays [n] of what is known each night.

    `level_nights`: independent nights that the level is the mean of; `freedom`: degrees of freedom
    of the scatter; `correlation` of a night with the next.
    """
    hanging = np.interp(correlation, CORRELATIONS, correlation_factors(k, m, chance))
    table = estimated_factors(k, m, chance)
    row, row_part = _between(level_nights, LEVEL_NIGHTS)
    column, column_part = _between(freedom, FREEDOM)
    low = table[row, column] * (1 - column_part) + table[row, column + 1] * column_part
    high = table[row + 1, column] * (1 - column_part) + table[row + 1, column + 1] * column_part
    factors: Floats = low * (1 - row_part) + high * row_part
    return factors * hanging * (1.0 + TAIL_PART * (tail_factor(k, m, chance) - 1.0))


def _between(values: Floats, grid: Floats) -> tuple[NDArray[np.int64], Floats]:
    """(index of the grid's point below, part of the way to the next), in 1 / value."""
    clipped = np.clip(values, grid[0], grid[-1])
    index = np.clip(np.searchsorted(grid, clipped, side="right") - 1, 0, len(grid) - 2)
    part = (1 / clipped - 1 / grid[index]) / (1 / grid[index + 1] - 1 / grid[index])
    return index, part
