"""Lines between given breakpoints by ordinary least squares: the fit inside platform-calibration.

Its residuals are absolute and its pieces may jump, as the published method has it; where the borders
and the number of pieces are not known, this is not the estimator to take.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.fitting.estimators.affine import widened_factor
from calib.fitting.estimators.base import BOOTSTRAPS, CONFIDENCE, Estimator, Rows, interval, medians
from calib.fitting.regression import error_factor
from calib.foundation.arrays import Floats
from calib.foundation.errors import InputError

Lines = tuple["Floats", "Floats"]  # intercepts [s] in seconds, slopes [s] in seconds per byte
FEWEST_TO_TRIM = 3


def within_quantiles(seconds: Floats, block: ArrayLike, trim: float) -> NDArray[np.bool_]:
    """Which rows [n] lie within [q, 1 - q] of their block, q = `trim`.

    Quantiles are interpolated linearly (R's type 7). A block of one or two rows is left whole.
    """
    blocks = np.asarray(block)
    order = np.lexsort((seconds, blocks))
    _, starts, sizes = np.unique(blocks[order], return_index=True, return_counts=True)
    rising = seconds[order]

    def quantile(q: float) -> Floats:
        at = q * (sizes - 1)
        below = starts + np.floor(at).astype(np.int64)
        above = np.minimum(below + 1, starts + sizes - 1)
        result: Floats = rising[below] + (rising[above] - rising[below]) * (at - np.floor(at))
        return result

    low = np.where(sizes < FEWEST_TO_TRIM, -np.inf, quantile(trim))
    high = np.where(sizes < FEWEST_TO_TRIM, np.inf, quantile(1.0 - trim))
    kept = np.empty(len(seconds), dtype=bool)
    kept[order] = (rising >= np.repeat(low, sizes)) & (rising <= np.repeat(high, sizes))
    return kept


def trimmed_mean(seconds: Floats, trim: float) -> float:
    """Mean without the floor(trim n) smallest and as many largest."""
    cut = int(np.floor(trim * len(seconds)))
    return float(np.sort(seconds)[cut : len(seconds) - cut].mean())


def ordinary_lines(
    nbytes: Floats,
    seconds: Floats,
    limits: Sequence[float],
    only: Sequence[bool],
    name: str,
    weight: Floats | None = None,
) -> Lines:
    """Ordinary least squares on each [lower, upper) of the limits; s segments, one more than limits.

    Segments that are not in `only` [s] are 0. Raises InputError for one with fewer than two sizes.
    """
    w = np.ones(len(seconds)) if weight is None else weight
    index = np.searchsorted(limits, nbytes, side="right")
    intercepts, slopes = np.zeros(len(only)), np.zeros(len(only))
    for number in np.flatnonzero(only):
        mine = (index == number) & (w > 0)
        x, t, part = nbytes[mine], seconds[mine], w[mine]
        if not len(x) or x.min() == x.max():
            lower, upper = [0, *limits, np.inf][number : number + 2]
            raise InputError(
                f"{name}: fewer than two sizes in the segment [{lower}, {upper}) B; "
                "take its breakpoint away"
            )
        x_mean, t_mean = np.average(x, weights=part), np.average(t, weights=part)
        spread = np.sum(part * (x - x_mean) ** 2)
        slopes[number] = np.sum(part * (x - x_mean) * (t - t_mean)) / spread
        intercepts[number] = t_mean - slopes[number] * x_mean
    return intercepts, slopes


class FixedSegments(Estimator):
    """Seconds by X [n, 1] bytes: a line on each [lower, upper) of `breakpoints`, in bytes, rising.

    Rows of one size in one launch are a block, of which durations within [trim, 1 - trim] quantiles
    count. Learned: `intercepts_`, `slopes_` [s] and `intercept_intervals_`, `slope_intervals_`
    [s, 2] at 95%. OLS may give an intercept below 0.
    """

    intercepts_: Floats
    slopes_: Floats
    intercept_intervals_: Floats
    slope_intervals_: Floats
    draws_: list[Lines]
    launches_: list[Lines]
    error_factor_: float

    def __init__(self, breakpoints: Sequence[float], trim: float = 0.1, seed: int = 0) -> None:
        self.breakpoints = breakpoints
        self.trim = trim
        self.seed = seed

    def _fit(self, rows: Rows) -> None:
        """Raises InputError for breakpoints or a trim that cannot be, and too few sizes in a segment."""
        limits = list(self.breakpoints)
        if rows.x.shape[1] != 1 or sorted(set(limits)) != limits or not 0 <= self.trim < 0.5:
            raise InputError(
                "segments need one column of bytes, rising breakpoints, trim below 0.5"
            )
        cell = np.unique(np.stack([rows.launch, rows.point]), axis=1, return_inverse=True)[1]
        kept = within_quantiles(rows.seconds, cell.reshape(-1), self.trim)
        self.intercepts_, self.slopes_ = self._lines(rows, rows.weight * kept)
        self.draws_ = self._resampled(rows, cell.reshape(-1))
        numbers = np.unique(rows.launch)
        alone = [rows.weight * (kept & (rows.launch == number)) for number in numbers]
        self.launches_ = [lines for w in alone if (lines := self._try(rows, w))]
        if len(numbers) == 1:
            self.launches_ = []
        self.intercept_intervals_ = self._intervals(0, self.intercepts_)
        self.slope_intervals_ = self._intervals(1, self.slopes_)
        self.error_factor_ = error_factor(self._seconds(rows.points), medians(rows)[0])

    def _lines(self, rows: Rows, weight: Floats) -> Lines:
        everywhere = [True] * (len(self.breakpoints) + 1)
        return ordinary_lines(
            rows.x[:, 0], rows.seconds, self.breakpoints, everywhere, type(self).__name__, weight
        )

    def _try(self, rows: Rows, weight: Floats) -> Lines | None:
        """The lines of some of the rows; None where a segment has not enough of them."""
        try:
            return self._lines(rows, weight)
        except InputError:
            return None

    def _resampled(self, rows: Rows, cell: NDArray[np.int64]) -> list[Lines]:
        """Lines of bootstrap samples: launches with replacement, then rows of a size within each.

        Each sample is trimmed anew: rows that are trimmed already spread too little.
        """
        generator = np.random.default_rng(self.seed)
        order = np.argsort(cell, kind="stable")
        blocks, starts, sizes = np.unique(cell[order], return_index=True, return_counts=True)
        start, size, block = (np.repeat(part, sizes) for part in (starts, sizes, blocks))
        numbers = np.unique(rows.launch)
        launch = np.searchsorted(numbers, rows.launch)
        found = []
        for _ in range(BOOTSTRAPS):
            drawn = generator.choice(len(numbers), len(numbers))
            picks = order[start + (generator.random(len(order)) * size).astype(np.int64)]
            kept = picks[within_quantiles(rows.seconds[picks], block, self.trim)]
            count = np.bincount(kept, minlength=len(rows.seconds))
            times = np.bincount(drawn, minlength=len(numbers))[launch]
            if (lines := self._try(rows, rows.weight * count * times)) is not None:
                found.append(lines)
        return found or [(self.intercepts_, self.slopes_)]

    def _intervals(self, which: int, values: Floats) -> Floats:
        """95% intervals [s, 2] of intercepts (0) or slopes (1)."""
        ends = np.array(
            [
                _ends(
                    value, [d[which][i] for d in self.draws_], [d[which][i] for d in self.launches_]
                )
                for i, value in enumerate(values)
            ]
        )
        return ends

    def _interval(self, x: Floats) -> tuple[Floats, Floats]:
        """(low [n], high [n]) seconds at 95%: of the lines, and of what they leave out of a size."""
        middle = self._seconds(x)
        draws = np.array([self._at(x, lines) for lines in self.draws_])
        alone = np.array([self._at(x, lines) for lines in self.launches_]).reshape(-1, len(x))
        ends = np.array(
            [_ends(m, draws[:, i].tolist(), alone[:, i].tolist()) for i, m in enumerate(middle)]
        )
        factor = widened_factor(self.error_factor_, x, self.range_)
        by_factor = np.stack([middle / factor, middle * factor])
        return np.minimum(ends[:, 0], by_factor.min(0)), np.maximum(ends[:, 1], by_factor.max(0))

    def _at(self, x: Floats, lines: Lines) -> Floats:
        index = np.searchsorted(self.breakpoints, x[:, 0], side="right")
        result: Floats = lines[0][index] + lines[1][index] * x[:, 0]
        return result

    def _seconds(self, x: Floats) -> Floats:
        return self._at(x, (self.intercepts_, self.slopes_))


def _ends(value: float, draws: Sequence[float], launches: Sequence[float]) -> tuple[float, float]:
    """base.interval, also for values below 0."""
    if value >= 0 and min(draws) >= 0:
        return interval(value, draws, launches)
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(draws, [tail, 1.0 - tail])
    return float(min(low, value, *launches)), float(max(high, value, *launches))
