"""Piecewise straight lines t = a + b m: how many pieces, and where they meet.

The optimal partition into k pieces by dynamic programming (Bellman, CACM 4, 1961; for regressions Bai
and Perron, J. Applied Econometrics 18, 2003) over pairs (first point, last point): the state is the
last piece, so that a piece may only follow one that ends below its start. Residuals are relative.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from calib.fitting.parameters.size_law import FALL
from calib.foundation.arrays import Floats

LEAST_SIZES = 2  # of a piece: one size alone would be remembered, not explained
EXACT_POINTS = 40  # up to here `exact` is fast
MOST_CUTS = 64  # with more points, borders are sought on a grid of so many
TINY = 1e-12


@dataclass(frozen=True)
class LinePiece:
    """t = intercept_s + slope_s_per_byte m from the points `first` to `last` (indices, inclusive)."""

    first: int
    last: int
    intercept_s: float
    slope_s_per_byte: float

    def at(self, m: float) -> float:
        """Seconds at m bytes."""
        return self.intercept_s + self.slope_s_per_byte * m


@dataclass(frozen=True)
class BestLines:
    """The best line of every pair of cuts: cost, intercept and slope [c, c], where cut i starts a piece
    at point starts[i] and cut j ends one at point ends[j]."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    cost: Floats
    intercept: Floats
    slope: Floats


def partitions(
    m: Floats, t: Floats, weight: Floats, most: int, falls: bool = False, exact: bool = False
) -> list[list[LinePiece]]:
    """The best monotone partition into 1, 2, ..., `most` pieces (as many as exist). m [n] rising.

    `falls` lets the time fall by more than FALL from one piece to the next. `exact` takes least absolute
    errors instead of least squares: for a few points only, and it tries all lines through two of them.
    """
    table = _table(m, t, weight, exact)
    below = table.intercept + table.slope * m[table.ends][None, :]  # at the last point of the piece
    above = table.intercept + table.slope * m[table.starts][:, None]  # at its first
    count = len(table.starts)
    cost, back = [np.full((count, count), np.inf)], [np.zeros((count, count), dtype=np.int64)]
    cost[0][0] = table.cost[0]
    for _ in range(1, most):
        current, chosen = np.full((count, count), np.inf), np.zeros((count, count), dtype=np.int64)
        for i in range(1, count):
            end, start = below[:, i - 1][:, None], above[i, i:][None, :]
            allowed = end <= start * (1 + TINY)
            if falls:
                allowed |= end > FALL * start
            reached = np.where(allowed, cost[-1][:, i - 1][:, None], np.inf)
            best = np.argmin(reached, axis=0)
            current[i, i:] = reached[best, np.arange(count - i)] + table.cost[i, i:]
            chosen[i, i:] = best
        cost.append(current)
        back.append(chosen)
    found = []
    for k in range(most):
        last = int(np.argmin(cost[k][:, -1]))
        if np.isfinite(cost[k][last, -1]):
            pieces = _trace(table, back, k, last)
            found.append(pieces if len(m) <= MOST_CUTS else _refined(pieces, table, m, t, weight))
    return found


def _refined(
    pieces: list[LinePiece], table: BestLines, m: Floats, t: Floats, weight: Floats
) -> list[LinePiece]:
    """Each border moved to the best point between the cuts on either side of it."""
    firsts = [piece.first for piece in pieces]
    for k in range(1, len(firsts)):
        cut = int(np.searchsorted(table.starts, firsts[k]))
        start = firsts[k - 1]
        stop = firsts[k + 1] if k + 1 < len(firsts) else len(m)
        low = max(int(table.starts[cut - 1]), start + LEAST_SIZES)
        high = min(int(table.ends[cut]) + 1, stop - LEAST_SIZES)
        costs = {
            at: _line_cost(m, t, weight, start, at) + _line_cost(m, t, weight, at, stop)
            for at in {*range(low, high + 1), firsts[k]}
        }
        firsts[k] = min(costs, key=lambda at: (costs[at], at))
    ends = [*firsts[1:], len(m)]
    return [_piece(m, t, weight, first, end) for first, end in zip(firsts, ends, strict=True)]


def _piece(m: Floats, t: Floats, weight: Floats, first: int, end: int) -> LinePiece:
    part = slice(first, end)
    a, b = lines(m[part], t[None, part], weight[part] / t[part] ** 2, first == 0)
    return LinePiece(first, end - 1, float(a[0]), float(b[0]))


def _line_cost(m: Floats, t: Floats, weight: Floats, first: int, end: int) -> float:
    """Weighted squared relative error of the line through the points first ... end - 1."""
    piece, part = _piece(m, t, weight, first, end), slice(first, end)
    error = (piece.intercept_s + piece.slope_s_per_byte * m[part]) / t[part] - 1.0
    return float(weight[part] @ (error * error))


def _trace(table: BestLines, back: list[NDArray[np.int64]], k: int, i: int) -> list[LinePiece]:
    pieces, j = [], len(table.ends) - 1
    while True:
        pieces.append(
            LinePiece(
                int(table.starts[i]),
                int(table.ends[j]),
                float(table.intercept[i, j]),
                float(table.slope[i, j]),
            )
        )
        if k == 0:
            return pieces[::-1]
        i, j, k = int(back[k][i, j]), i - 1, k - 1


def _table(m: Floats, t: Floats, weight: Floats, exact: bool) -> BestLines:
    n = len(m)
    if n <= MOST_CUTS:
        starts = np.arange(n)
    else:
        # evenly by decades of m, but never two cuts on one point
        wanted = np.linspace(np.log(m[0]), np.log(m[-1]), MOST_CUTS)
        starts = np.unique(np.concatenate([[0], np.searchsorted(np.log(m), wanted[1:-1])]))
    ends = np.append(starts[1:] - 1, n - 1)
    shape = (len(starts), len(starts))
    table = BestLines(starts, ends, np.full(shape, np.inf), np.zeros(shape), np.zeros(shape))
    for i, first in enumerate(starts):
        _least_squares(table, i, int(first), m, t, weight)
    if exact:
        for i in range(n):
            for j in range(i + LEAST_SIZES - 1, n):
                line = least_absolute(m[i : j + 1], t[i : j + 1], weight[i : j + 1], i == 0)
                table.cost[i, j], table.intercept[i, j], table.slope[i, j] = line
    return table


def _least_squares(
    table: BestLines, i: int, first: int, m: Floats, t: Floats, weight: Floats
) -> None:
    """Fill row i: the pieces from `first` to every end; sums are scaled by the first point."""
    rest = slice(first, None)
    size, time, w = m[rest] / m[first], t[rest] / t[first], weight[rest]
    u, v = 1.0 / time, size / time
    last = table.ends[i:] - first
    s0, s1, s2, r0, r1, count = (
        np.cumsum(w * column)[last] for column in (u * u, u * v, v * v, u, v, np.ones_like(u))
    )
    determinant = s0 * s2 - s1 * s1
    with np.errstate(all="ignore"):
        slope = (s0 * r1 - s1 * r0) / determinant
        intercept = (r0 * s2 - s1 * r1) / determinant
    flat = ~np.isfinite(slope) | (slope < 0) | (determinant <= TINY * s0 * s2)
    intercept, slope = np.where(flat, r0 / s0, intercept), np.where(flat, 0.0, slope)
    if first == 0:  # a message of no bytes takes no less than nothing
        slope = np.where(intercept < 0, r1 / s2, slope)
        intercept = np.maximum(intercept, 0.0)
    cost = count - 2 * (intercept * r0 + slope * r1) + intercept**2 * s0
    cost = np.maximum(cost + 2 * intercept * slope * s1 + slope**2 * s2, 0.0)
    invalid = (intercept + slope <= 0) | (last + 1 < LEAST_SIZES)
    table.cost[i, i:] = np.where(invalid, np.inf, cost)
    table.intercept[i, i:] = intercept * t[first]
    table.slope[i, i:] = slope * t[first] / m[first]


def least_absolute(
    m: Floats, t: Floats, weight: Floats, from_zero: bool
) -> tuple[float, float, float]:
    """(cost, intercept, slope >= 0) of the least weighted sum of |a + b m - t| / t.

    An optimal line goes through two points, or is level through one (or, `from_zero`, through one and
    the origin: there the intercept is not negative); all of them are tried.
    """
    p, q = np.triu_indices(len(m), 1)
    slope = np.concatenate([(t[q] - t[p]) / (m[q] - m[p]), np.zeros(len(m))])
    intercept = np.concatenate([t[p] - slope[: len(p)] * m[p], t])
    if from_zero:
        slope, intercept = np.append(slope, t / m), np.append(intercept, np.zeros(len(m)))
    sane = (slope >= 0) & (intercept + slope * m[0] > 0)
    if from_zero:
        sane &= intercept >= 0
    slope, intercept = slope[sane], intercept[sane]
    error = np.abs((intercept[:, None] + slope[:, None] * m[None, :]) / t[None, :] - 1.0) @ weight
    best = int(np.argmin(error))
    return float(error[best]), float(intercept[best]), float(slope[best])


def polished(pieces: list[LinePiece], m: Floats, t: Floats, weight: Floats) -> list[LinePiece]:
    """The same borders, each line by Huber's M-estimate started from its own residuals.

    Least absolute errors choose borders well, but throw away a third of what normal noise says; Huber's
    weights (Annals of Mathematical Statistics 35, 1964; k = 1.345) keep 95% of it.
    """
    result = []
    for piece in pieces:
        rows = slice(piece.first, piece.last + 1)
        a, b = piece.intercept_s, piece.slope_s_per_byte
        for _ in range(20 if piece.last - piece.first + 1 > LEAST_SIZES else 0):
            used = weight[rows] * huber_weights((a + b * m[rows]) / t[rows] - 1.0)
            both = lines(m[rows], t[None, rows], used / t[rows] ** 2, piece.first == 0)
            a, b = float(both[0][0]), float(both[1][0])
        result.append(LinePiece(piece.first, piece.last, a, b))
    return result


def huber_weights(residual: Floats) -> Floats:
    """min(1, k sigma / |r|) with sigma from the median absolute residual."""
    size = np.abs(residual)
    scale = 1.345 * 1.4826 * max(float(np.median(size)), 1e-6)
    result: Floats = np.minimum(1.0, scale / np.maximum(size, scale * 1e-9))
    return result


def lines(m: Floats, times: Floats, weight: Floats, from_zero: bool) -> tuple[Floats, Floats]:
    """(intercepts [b], slopes [b] >= 0) of weighted least squares through b sets of times [b, n]."""
    v = m / m[0]
    s0, s1, s2 = weight.sum(), weight @ v, weight @ (v * v)
    r0, r1 = times @ weight, times @ (weight * v)
    a, b = r0 / s0, np.zeros(len(times))
    determinant = s0 * s2 - s1 * s1
    if determinant > TINY * s0 * s2:
        slope = (s0 * r1 - s1 * r0) / determinant
        a = np.where(slope < 0, a, (r0 * s2 - s1 * r1) / determinant)
        b = np.maximum(slope, 0.0)
        if from_zero:
            b = np.where(a < 0, r1 / s2, b)
            a = np.maximum(a, 0.0)
    return a, b / m[0]


def mean_error(pieces: list[LinePiece], m: Floats, t: Floats, weight: Floats) -> float:
    """Weighted mean |t_fitted / t - 1| over all points."""
    return float(np.average(np.abs(fitted(pieces, m) / t - 1.0), weights=weight))


def fitted(pieces: list[LinePiece], m: Floats) -> Floats:
    """Seconds [n] of the pieces at their own sizes m [n]."""
    parts = [p.intercept_s + p.slope_s_per_byte * m[p.first : p.last + 1] for p in pieces]
    return np.concatenate(parts)


def rising(pieces: list[LinePiece], m: Floats, falls: bool) -> bool:
    """Whether the times rise from piece to piece, but for the falls that are allowed."""
    for left, right in pairwise(pieces):
        end, start = left.at(m[left.last]), right.at(m[right.first])
        if end > start * (1 + 1e-9) and not (falls and end > FALL * start):
            return False
    return all(piece.at(m[piece.first]) > 0 for piece in pieces)
