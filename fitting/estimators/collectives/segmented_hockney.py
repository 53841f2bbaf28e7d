"""Segmented Hockney: t = a_k + b_k m on pieces whose number and borders the data choose.

One line of Hockney (Parallel Computing 20, 1994) misses a measured collective by 12-31%, because the
library changes its protocol and its algorithm with the size (formulas.md, "wrong" 4).
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from calib.fitting.estimators.base import (
    BOOTSTRAPS,
    CheckedRows,
    Estimator,
    launch_medians,
    resampled_medians,
    weighted_medians,
    widest,
)
from calib.fitting.estimators.collectives.launches import completed, pooled_if_alike
from calib.fitting.estimators.collectives.neighbours import slow_outliers
from calib.fitting.estimators.collectives.pieces import (
    EXACT_POINTS,
    LEAST_SIZES,
    LinePiece,
    fitted,
    huber_weights,
    lines,
    mean_error,
    partitions,
    polished,
    rising,
)
from calib.fitting.estimators.draws import inflation
from calib.fitting.regression import error_factor
from calib.foundation.arrays import Floats, Mask
from calib.foundation.errors import InputError

FLOOR = 0.0025  # relative: what printing three or four digits and warm caches leave of any law
PIECE_PRICE = 2.0  # parameters of a piece: its coefficients (see `_choose`)
FALL_PRICE = 1.0  # how many more a falling border costs
TROUBLED = 0.02  # mean relative error from which pieces of least absolute errors are tried too
UNCHECKED = 0.1  # relative: of one number each at two sizes, which nothing checks
LEAST_WIDENING, MOST_WIDENING = 1.1, 2.0  # of an interval, per decade beyond the sizes


class SegmentedHockney(Estimator):
    """Time of one collective by its bytes. X [n, 1] bytes > 0, y [n] seconds.

    max_pieces: at most so many pieces. falls: whether the time may fall from one piece to the next by
    more than 5% (some libraries do at a change of protocol); otherwise the law is monotone. seed,
    n_bootstraps: of the intervals.

    Learned: `pieces_`, `from_` and `to_` [k] bytes between which each piece holds (between two pieces
    nothing was measured: the law goes straight in log-log from one to the next), `intercepts_`,
    `slopes_` [k], `borders_` [k-1], `continuous_` [k-1], `criterion_` and `runner_up_` (pieces,
    criterion), `outliers_` bytes left out, `error_factor_` (95% of the sizes lie within the law / and *
    this), `mean_relative_error_`, `resampled_` sets of times [b, n] (of repetitions if there are any, of
    residuals last) and `launch_medians_` [l, n] of the launches that have all sizes.
    """

    def __init__(
        self,
        max_pieces: int = 6,
        falls: bool = False,
        seed: int = 0,
        n_bootstraps: int = BOOTSTRAPS,
    ) -> None:
        self.max_pieces = max_pieces
        self.falls = falls
        self.seed = seed
        self.n_bootstraps = n_bootstraps

    def _fit(self, rows: CheckedRows) -> None:
        """Raises InputError for sizes <= 0 or max_pieces < 1."""
        if rows.x.shape[1] != 1 or (rows.x <= 0).any():
            raise InputError("a collective's time is fitted on one feature: its bytes, over 0")
        if self.max_pieces < 1:
            raise InputError(f"max_pieces is {self.max_pieces}; at least one is needed")
        size = rows.points[:, 0]
        middle, weight = weighted_medians(rows)
        kept = ~slow_outliers(size, middle)
        self.outliers_ = size[~kept]
        self._choose(size[kept], middle[kept], weight[kept] / weight.mean())
        self._uncertainty(rows, kept)

    def _choose(self, m: Floats, t: Floats, weight: Floats) -> None:
        """Pieces by the criterion -2 log L + parameters log n of Laplace residuals (Schwarz 1978).

        Parameters are the coefficients; borders, of which there is one between any two sizes, are not
        counted (with them, the public logs were left with too few pieces: docs/fitting.md).
        """
        most = max(1, min(self.max_pieces, len(m) // LEAST_SIZES))
        scored: dict[int, tuple[float, list[LinePiece]]] = {}
        for exact in (False, True):
            for pieces in self._candidates(m, t, weight, most, exact):
                score = self._criterion(pieces, m, t, weight)
                if len(pieces) not in scored or score < scored[len(pieces)][0]:
                    scored[len(pieces)] = score, pieces
            _, best = min(scored.values(), key=lambda row: row[0])
            # squares choose steadier borders, but a few sizes that fit nothing pull them about
            if len(m) > EXACT_POINTS or mean_error(best, m, t, weight) <= TROUBLED:
                break
        ranked = sorted((score, k) for k, (score, _) in scored.items())
        self.criterion_ = ranked[0][0]
        self.runner_up_ = (ranked[1][1], ranked[1][0]) if len(ranked) > 1 else None
        self.pieces_ = scored[ranked[0][1]][1]
        self._sizes, self._medians, self._weight = m, t, weight
        self._settle()
        predicted = self._seconds(m[:, None])
        self.mean_relative_error_ = float(np.mean(np.abs(predicted / t - 1.0)))
        self.error_factor_ = error_factor(predicted, t)

    def _candidates(
        self, m: Floats, t: Floats, weight: Floats, most: int, exact: bool
    ) -> list[list[LinePiece]]:
        """The best partitions into 1 to `most` pieces, polished where that keeps them monotone."""
        if len(m) < LEAST_SIZES:
            return [[LinePiece(0, 0, float(t[0]), 0.0)]]
        found = partitions(m, t, weight, most, falls=False, exact=exact)
        if self.falls and most > 1:
            found += partitions(m, t, weight, most, falls=True, exact=exact)[1:]
        result = []
        for pieces in found:
            better = polished(pieces, m, t, weight)
            result.append(better if rising(better, m, self.falls) else pieces)
        return result

    def _criterion(self, pieces: list[LinePiece], m: Floats, t: Floats, weight: Floats) -> float:
        falling = sum(
            left.at(m[left.last]) > right.at(m[right.first]) * (1 + 1e-9)
            for left, right in pairwise(pieces)
        )
        parameters = PIECE_PRICE * len(pieces) + FALL_PRICE * falling
        return 2 * len(m) * math.log(
            mean_error(pieces, m, t, weight) + FLOOR
        ) + parameters * math.log(len(m))

    def _settle(self) -> None:
        """The bytes between which each piece holds; where two lines cross, the law is continuous."""
        m, pieces = self._sizes, self.pieces_
        self.intercepts_ = np.array([p.intercept_s for p in pieces])
        self.slopes_ = np.array([p.slope_s_per_byte for p in pieces])
        self.from_ = np.array([m[p.first] for p in pieces])
        self.to_ = np.array([m[p.last] for p in pieces])
        borders, continuous = [], []
        for k, (left, right) in enumerate(pairwise(pieces)):
            low, high = m[left.last], m[right.first]
            bend = right.slope_s_per_byte - left.slope_s_per_byte
            crossing = (left.intercept_s - right.intercept_s) / bend if bend else math.nan
            if low <= crossing <= high:
                self.to_[k] = self.from_[k + 1] = crossing
            continuous.append(bool(low <= crossing <= high))
            borders.append(crossing if continuous[-1] else math.sqrt(low * high))
        self.borders_, self.continuous_ = np.array(borders), np.array(continuous, dtype=bool)

    def _seconds(self, x: Floats) -> Floats:
        law: Floats = self._law(x[:, 0], self.intercepts_[None], self.slopes_[None])[0]
        return law

    def _law(self, m: Floats, intercepts: Floats, slopes: Floats) -> Floats:
        """Seconds [b, n] of b sets of lines [b, k] on the fitted pieces."""
        k = np.clip(np.searchsorted(self.from_, m, side="right") - 1, 0, None)
        result = intercepts[:, k] + slopes[:, k] * m
        between = (m > self.to_[k]) & (k + 1 < len(self.from_))
        if between.any():
            left, at = k[between], m[between]
            low, high = self.to_[left], self.from_[left + 1]
            share = np.log(at / low) / np.log(high / low)
            start = np.maximum(intercepts[:, left] + slopes[:, left] * low, 1e-300)
            end = np.maximum(intercepts[:, left + 1] + slopes[:, left + 1] * high, 1e-300)
            result[:, between] = np.exp((1 - share) * np.log(start) + share * np.log(end))
        return np.maximum(result, 0.0)

    def _uncertainty(self, rows: CheckedRows, kept: Mask) -> None:
        """Lines of resampled repetitions and of resampled residuals, on the borders as they are.

        Repetitions say how well each median is known; residuals how well the pieces describe the
        medians. Where one is wider than the other, it is right: the other does not see its cause.
        Borders were chosen too, so they count against the freedom of the residuals, which are as much
        wider as Student's t is than the normal. Launches count where they differ (launches.py).
        """
        m, t = self._sizes, self._medians
        predicted = self._seconds(m[:, None])
        sets = []
        rows = pooled_if_alike(rows)
        if rows.repeated:
            sets.append(resampled_medians(rows, self.seed, self.n_bootstraps)[:, kept])
        residual = t / predicted - 1.0
        spread = self._spread(residual, rows.repeated)
        generator = np.random.default_rng(self.seed)
        noise = generator.choice(spread, size=(self.n_bootstraps, len(m)))
        noise += generator.normal(0.0, FLOOR, size=noise.shape)
        sets.append(predicted * np.maximum(1.0 + noise, 0.05))
        self.resampled_ = sets
        self.draws_ = [self._lines(times) for times in sets]
        self.launch_medians_ = completed(launch_medians(rows)[:, kept], t)
        self.launches_ = self._lines(self.launch_medians_)

    def _spread(self, residual: Floats, repeated: bool) -> Floats:
        """The residuals to draw. Pieces through nearly all sizes leave none: then those of fewer."""
        m, t, k = self._sizes, self._medians, len(self.pieces_)
        n = len(m)
        if not repeated and n < LEAST_SIZES + 1:
            return np.array([-UNCHECKED, UNCHECKED])
        most = max((n + 1 - max(2, n // 3)) // 3, 1)
        if not repeated and k > most:
            found = self._candidates(m, t, self._weight, most, False)
            best = min(found, key=lambda p: self._criterion(p, m, t, self._weight))
            residual, k = t / fitted(best, m) - 1.0, len(best)
        parameters = 2 * k + (k - 1)  # borders were chosen too
        return np.concatenate([residual, -residual]) * inflation(n, parameters)

    def _lines(self, times: Floats) -> tuple[Floats, Floats]:
        """(intercepts [b, k], slopes [b, k]) through b sets of times [b, n], weights as they are."""
        intercepts = np.empty((len(times), len(self.pieces_)))
        slopes = np.empty_like(intercepts)
        predicted = self._seconds(self._sizes[:, None])
        for k, piece in enumerate(self.pieces_):
            part = slice(piece.first, piece.last + 1)
            law, measured = predicted[part], self._medians[part]
            weight = self._weight[part] * huber_weights(law / measured - 1.0) / measured**2
            intercepts[:, k], slopes[:, k] = lines(
                self._sizes[part], times[:, part], weight, piece.first == 0
            )
        return intercepts, slopes

    def _interval(self, x: Floats) -> tuple[Floats, Floats]:
        """(low [n], high [n]) of the law at 95%, widened for every decade beyond the sizes."""
        value = self._seconds(x)
        sets = [self._law(x[:, 0], *draws) for draws in self.draws_]
        low, high = widest(value, sets, self._law(x[:, 0], *self.launches_))
        beyond = np.maximum(np.log10(x[:, 0] / self.range_[1, 0]), 0.0)
        beyond += np.maximum(np.log10(self.range_[0, 0] / x[:, 0]), 0.0)
        widening = min(max(self.error_factor_, LEAST_WIDENING), MOST_WIDENING) ** beyond
        return low / widening, high * widening

    def coefficient_intervals(self) -> tuple[Floats, Floats]:
        """(intercepts [k, 2], slopes [k, 2]) at 95%: low and high of every piece."""
        result = []
        for which, value in enumerate((self.intercepts_, self.slopes_)):
            least = 0.0 if which else -math.inf  # intercepts may be negative, slopes may not
            sets = [draws[which] for draws in self.draws_]
            result.append(np.stack(widest(value, sets, self.launches_[which], least), axis=1))
        return result[0], result[1]
