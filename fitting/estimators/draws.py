"""Bootstrap draws: medians of repetitions, and residuals with the law's own uncertainty."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtri, stdtrit

from calib.fitting.regression import CONFIDENCE
from calib.foundation.arrays import Floats, Integers

MOST_INFLATION = 3.0  # of residuals, where hardly more points than coefficients are left


def equal(weight: Floats) -> bool:
    """Whether weights [n] are the same but for rounding."""
    return bool(np.allclose(weight, weight[0], rtol=1e-12, atol=0.0))


def drawn_medians(
    rising: Floats,
    weight: Floats,
    launch: Integers,
    times: Integers,
    generator: np.random.Generator,
) -> Floats:
    """Medians [n] of samples from seconds [m] in order, where launches count `times` [n, launches].

    `launch` [m] numbers the columns of `times`. Launches weigh alike and repetitions by `weight` [m];
    where the drawn launches have none, each launch counts once.
    """
    counts = np.bincount(launch, minlength=times.shape[1])
    copies = np.where((times @ counts)[:, None] > 0, times, 1)
    if equal(weight):
        return _of_equal_weights(rising, launch, counts, copies, generator)
    return _of_weights(rising, weight, launch, counts, copies, generator)


def inflation(n: int, parameters: int) -> float:
    """By what residuals of n points are too small to draw, when parameters were fitted to them.

    Their spread by the degrees of freedom that are left (Davison and Hinkley 1997, 6.3), and as much
    as Student's t is wider than the normal at 95%: the quantiles of draws are the normal's.
    """
    freedom = max(n - parameters, 1)
    tail = (1.0 + CONFIDENCE) / 2.0
    wider = float(stdtrit(freedom, tail) / ndtri(tail))
    return math.sqrt(n / freedom) * min(wider, MOST_INFLATION)


def _of_equal_weights(
    rising: Floats,
    launch: Integers,
    counts: Integers,
    copies: Integers,
    generator: np.random.Generator,
) -> Floats:
    """Medians [n] of samples from values in order; `counts` and `copies` [n] are of each launch.

    The k-th smallest of m uniform numbers is Beta(k, m - k + 1) distributed, and the next one that
    much above it as the smallest of m - k: only the middle of each sample need be drawn.
    """
    sizes = copies @ counts
    lower = (sizes + 1) // 2
    first = generator.beta(lower, sizes - lower + 1)
    above = np.maximum(sizes - lower, 1)
    rest = -np.expm1(np.log1p(-generator.random(len(sizes))) / above)
    second = np.where(sizes % 2 == 0, first + (1.0 - first) * rest, first)
    last = len(rising) - 1
    if len(counts) == 1:
        at = [np.minimum((u * len(rising)).astype(np.int64), last) for u in (first, second)]
    else:
        share = counts.sum() / np.maximum(counts, 1)
        cumulated = np.cumsum((copies * share)[:, launch], axis=1)
        at = [
            np.minimum((cumulated <= (u * cumulated[:, -1])[:, None]).sum(axis=1), last)
            for u in (first, second)
        ]
    middle: Floats = 0.5 * (rising[at[0]] + rising[at[1]])
    return middle


def _of_weights(
    rising: Floats,
    weight: Floats,
    launch: Integers,
    counts: Integers,
    copies: Integers,
    generator: np.random.Generator,
) -> Floats:
    """The same of repetitions whose weights [m] differ: every sample is drawn whole."""
    drawn = np.zeros((len(copies), len(rising)))
    for number in np.flatnonzero(counts):
        each = np.full(counts[number], 1.0 / counts[number])
        drawn[:, launch == number] = generator.multinomial(copies[:, number] * counts[number], each)
    below = np.cumsum(drawn * (weight * counts.sum() / counts[launch]), axis=1)
    half, last = 0.5 * below[:, -1:], len(rising) - 1
    low = (below < half * (1 - 1e-12)).sum(axis=1)
    high = (below <= half * (1 + 1e-12)).sum(axis=1)
    middle: Floats = 0.5 * (rising[low] + rising[np.minimum(high, last)])
    return middle
