"""Whether launches differ by more than their repetitions; only then do they widen an interval.

An interval that holds how three launches differ is up to three times as wide as their repetitions say.
Where they do not differ, it covers 99.5% instead of 95%.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.special import chdtrc

from calib.fitting.estimators.base import CheckedRows
from calib.foundation.arrays import Floats

# "sometimes pool" (Bancroft, Annals of Mathematical Statistics 15, 1944; Bancroft and Han, 1977): at 25%
# the interval of what is pooled keeps its coverage; two tests share it
ALIKE = 0.125


def launches_alike(rows: CheckedRows) -> bool:
    """Whether rank tests find no difference between the launches.

    Two tests, in which every x is a block: Kruskal and Wallis's (JASA 47, 1952) summed over the blocks
    sees launches that differ at some x, and its form for blocks (Mack and Skillings, JASA 75, 1980) a
    launch that is slower at all of them by less than the noise of one. False where there is one launch
    only, or no x that two launches have.
    """
    numbers, launch = np.unique(rows.launch, return_inverse=True)
    if len(numbers) < 2:
        return False
    counts = np.zeros((len(rows.points), len(numbers)))
    np.add.at(counts, (rows.point, launch), 1.0)
    size = counts.sum(axis=1)
    ranks = _ranks(rows) - 0.5 * (size[rows.point] + 1.0)
    variance = np.bincount(rows.point, weights=ranks**2) / np.maximum(size - 1.0, 1.0)
    sums = np.zeros_like(counts)
    np.add.at(sums, (rows.point, launch), ranks)
    used = ((counts > 0).sum(axis=1) > 1) & (variance > 0)
    if not used.any():
        return False
    counts, sums, size, variance = counts[used], sums[used], size[used], variance[used]
    each = np.divide(sums**2, counts, out=np.zeros_like(sums), where=counts > 0).sum(axis=1)
    somewhere = chdtrc(((counts > 0).sum(axis=1) - 1).sum(), (each / variance).sum())
    spread = (counts * variance[:, None]).sum(axis=0)
    covariance = np.diag(spread) - (counts.T * (variance / size)) @ counts
    total = sums.sum(axis=0)
    freedom = int(np.linalg.matrix_rank(covariance))
    everywhere = chdtrc(freedom, total @ np.linalg.pinv(covariance) @ total)
    return bool(min(somewhere, everywhere) > ALIKE)


def pooled_if_alike(rows: CheckedRows) -> CheckedRows:
    """The rows, as of one launch where nothing says that the launches differ."""
    return replace(rows, launch=np.zeros_like(rows.launch)) if launches_alike(rows) else rows


def completed(own: Floats, t: Floats) -> Floats:
    """Medians [l, d] of each launch alone, from those `own` [k, d] that it has; none of one launch.

    A launch that lacks a point (NaN) is taken to be as fast there, beside t [d], as it is elsewhere.
    """
    own = own[~np.isnan(own).all(axis=1)]
    if len(own) < 2:
        return own[:0]
    speed = np.nanmedian(own / t, axis=1, keepdims=True)
    return np.where(np.isnan(own), t * speed, own)


def _ranks(rows: CheckedRows) -> Floats:
    """Ranks [n] from 1 of the rows of each point, equal times sharing their mean rank."""
    order = np.lexsort((rows.seconds, rows.point))
    point, seconds = rows.point[order], rows.seconds[order]
    new = np.append(True, (np.diff(point) != 0) | (np.diff(seconds) != 0))
    tie = np.cumsum(new) - 1
    first = np.searchsorted(point, np.arange(len(rows.points)))
    place = np.arange(len(order)) - first[point] + 1.0
    mean = np.bincount(tie, weights=place) / np.bincount(tie)
    ranks = np.empty(len(order))
    ranks[order] = mean[tie]
    return ranks
