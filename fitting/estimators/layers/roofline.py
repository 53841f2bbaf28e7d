"""Seconds of a layer by its work; the form of the law is chosen by cross-validation.

None of the prices (fitting/estimators/layers/price_law.py) is negative, so the law never says that
more work takes less time. Beside a call, operations and bytes it may have a price for a byte of the
weights (kernels that reorder them) or of the patches of a convolution (t = a MNK + b MK + c KN of a
matrix product), and one for fresh pages. Operations and bytes add up, or the slower counts (roofline:
Williams, Waterman and Patterson, CACM 52, 2009), or something between. Where it makes the layers left
out better, the measured layers that are most alike correct the law near them.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri, stdtrit

from calib.fitting.estimators.base import (
    BOOTSTRAPS,
    TAILS,
    CheckedRows,
    Estimator,
    held_by_launches,
    interval,
    launch_medians,
    medians,
    resampled_medians,
)
from calib.fitting.estimators.layers.price_law import (
    PRICES,
    Terms,
    WorkForm,
    seconds,
    solve,
    with_call,
)
from calib.fitting.estimators.layers.roofline_choice import (
    WorkPoints,
    best_reach,
    best_two,
    corrections,
    growth,
    make_folds,
    places_of,
    typical,
)
from calib.fitting.parameters.work import UNPRICED_FACTOR
from calib.fitting.regression import CONFIDENCE, MIN_ROWS, UNCHECKED_FACTOR, error_factor
from calib.foundation.arrays import Floats, Integers
from calib.foundation.errors import InputError

MIN_NEIGHBOURS = 8
DRAW_STEPS = 4


class Roofline(Estimator):
    """t(flops, bytes, weight bytes, patch bytes, fresh bytes); columns of X as in Work.

    `names` of `fit` are the layers (by default each distinct x is one), left out with all their batches.
    Learned: `prices_` [6] in the order of PRICES (and each by name: `call_s_`, `s_per_flop_`, ...),
    `form_`, `intervals_` {name: (low, high)} at 95%, `score_`, `runner_up_` and `runner_up_score_`
    (typical log error of layers left out), `error_factor_`, `growth_per_decade_`, `neighbours_`
    [m, 4] (three coordinates, log residual) and `reach_`.

    >>> Roofline(seed=1)
    Roofline(seed=1)
    """

    prices_: Floats
    form_: WorkForm
    intervals_: dict[str, tuple[float, float]]
    score_: float
    runner_up_: str
    runner_up_score_: float
    error_factor_: float
    growth_per_decade_: float
    neighbours_: Floats
    reach_: float

    def __init__(self, seed: int = 0, bootstraps: int = BOOTSTRAPS) -> None:
        self.seed = seed
        self.bootstraps = bootstraps

    def _fit(self, rows: CheckedRows) -> None:
        """Raises InputError for another number of features."""
        if rows.x.shape[1] != len(PRICES) - 1:
            raise InputError(f"{rows.x.shape[1]} features of a layer's work, not {len(PRICES) - 1}")
        numbers: dict[str, int] = {}
        layer = np.array([numbers.setdefault(name, len(numbers)) for name in rows.names])
        t, weight = medians(rows)
        points = WorkPoints(with_call(rows.points), t, weight / weight.mean())
        folds = make_folds(rows.points, layer)
        best, second = best_two(points, folds)
        self.form_ = best.terms.form
        self.runner_up_ = second.terms.name if second else ""
        self.runner_up_score_ = second.score if second else 0.0
        self.prices_ = solve(points.x, t, points.weight, best.terms)
        for name, price in self.coefficients_.items():
            setattr(self, f"{name}_", price)
        reach, left_out = None, best.left_out
        if folds.layers >= MIN_NEIGHBOURS:
            reach, left_out = best_reach(points, best, folds)
        self.reach_, self.neighbours_ = reach or 1.0, np.empty((0, 4))
        if reach:
            residuals = np.log(t / seconds(points.x, self.prices_, self.form_))
            self.neighbours_ = np.column_stack([points.places, residuals])
        self.score_ = min(best.score, typical(left_out, t)) if reach else best.score
        known = np.isfinite(left_out)
        enough = folds.layers >= MIN_ROWS and known.any()
        self.error_factor_ = error_factor(left_out[known], t[known]) if enough else UNCHECKED_FACTOR
        self.growth_per_decade_ = growth(points, best.terms, folds, self.error_factor_)
        self._draw(rows, points, best.terms, layer)

    def _draw(self, rows: CheckedRows, points: WorkPoints, terms: Terms, layer: Integers) -> None:
        """Intervals of the prices: launches drawn again, and with them the layers.

        How the repetitions scatter is in how the layers do, and would count twice. Of too few layers
        to draw from, the repetitions are drawn.
        """
        generator = np.random.default_rng(self.seed)
        n, layers = self.bootstraps, int(layer.max()) + 1
        by_launch = launch_medians(rows)
        drawn = np.tile(points.t, (n, 1))
        if layers < MIN_ROWS and rows.repeated:
            drawn = resampled_medians(rows, self.seed, n)
        elif layers >= MIN_ROWS and len(by_launch) > 1:
            drawn = _drawn_launches(by_launch, points.t, generator, n)
        draws = np.empty((n, len(PRICES)))
        for index, t in enumerate(drawn):
            weight = points.weight
            if layers >= MIN_ROWS:
                counts = np.bincount(generator.integers(0, layers, layers), minlength=layers)
                weight = weight * counts[layer]
            kept = weight > 0
            draws[index] = solve(
                points.x[kept], t[kept], weight[kept], terms, self.prices_, DRAW_STEPS
            )
        wider = _few_layers(layers, int(terms.free.sum())) if layers >= MIN_ROWS else 1.0
        self._draws = np.maximum(self.prices_ + wider * (draws - self.prices_), 0.0)
        whole = by_launch[np.isfinite(by_launch).all(axis=1)]
        own = [solve(points.x, t, points.weight, terms, self.prices_, DRAW_STEPS) for t in whole]
        self._launches = np.array(own) if len(own) > 1 else self.prices_[None]
        self.intervals_ = {
            name: interval(self.prices_[i], self._draws[:, i], self._launches[:, i].tolist())
            for i, name in enumerate(PRICES)
            if terms.free[i]
        }

    def _interval(self, x: Floats) -> tuple[Floats, Floats]:
        """(low [n], high [n]) at 95%: the error of layers left out, and the prices' own spread.

        Outside of what was fitted the factor grows by `growth_per_decade_` for each decade; where
        fresh pages are written and none were timed, the high end is UNPRICED_FACTOR higher.
        """
        expected, corrected = self._seconds(x), np.exp(self._corrections(x))
        factor = self.error_factor_ * self.growth_per_decade_ ** self._decades(x)
        each = [seconds(with_call(x), prices, self.form_) * corrected for prices in self._draws]
        low, high = np.quantile(each, TAILS, axis=0)
        low, high = np.minimum(low, expected / factor), np.maximum(high, expected * factor)
        unpriced = (x[:, -1] > 0) & (self.range_[1, -1] == 0)
        high = np.where(unpriced, UNPRICED_FACTOR, 1.0) * high
        launches = [seconds(with_call(x), p, self.form_) * corrected for p in self._launches]
        return held_by_launches(low, high, expected, np.stack(launches))

    def _decades(self, x: Floats) -> Floats:
        """How many powers of ten [n] the operations or bytes of any kind lie outside of the range.

        None that no layer had count as inside, and so do none of a kind; fresh bytes: `_interval`.
        """
        low, high, work = self.range_[0, :-1], self.range_[1, :-1], x[:, :-1]
        with np.errstate(divide="ignore", invalid="ignore"):
            above = np.where(high > 0, np.log10(work / high), 0.0)
            below = np.where((low > 0) & (work > 0), np.log10(low / work), 0.0)
        result: Floats = np.maximum(np.maximum(above, below), 0.0).max(axis=1)
        return result

    def _corrections(self, x: Floats) -> Floats:
        places, residuals = self.neighbours_[:, :3], self.neighbours_[:, 3]
        return corrections(places, residuals, places_of(x), self.reach_)

    def _seconds(self, x: Floats) -> Floats:
        result: Floats = seconds(with_call(x), self.prices_, self.form_)
        return result * np.exp(self._corrections(x))

    @property
    def coefficients_(self) -> dict[str, float]:
        """The prices by name."""
        return dict(zip(PRICES, self.prices_.tolist(), strict=True))


def _few_layers(layers: int, prices: int) -> float:
    """By how much the draws of few layers are too narrow.

    A layer that decides a price alone hides its error (HC3: MacKinnon and White, J. Econometrics 29,
    1985), on average by n / (n - k); and the quantiles are Student's, not the normal's.
    """
    free = max(layers - prices, 1)
    upper = 0.5 + 0.5 * CONFIDENCE
    return float(layers / free * stdtrit(free, upper) / ndtri(upper))


def _drawn_launches(by_launch: Floats, t: Floats, generator: np.random.Generator, n: int) -> Floats:
    """Medians [n, d] over launches drawn with replacement of their medians [l, d]."""
    chosen = by_launch[generator.integers(0, len(by_launch), (n, len(by_launch)))]
    lacking = np.isnan(chosen).all(axis=1)
    chosen[:, 0, :] = np.where(lacking, t, chosen[:, 0, :])
    result: Floats = np.nanmedian(chosen, axis=1)
    return result
