"""Memory reuse (gamma of ParaDL, section 4.5): measured peak bytes by the naive sums of a model.

Two forms, and which of them predicts a model that it has not seen better:
simple   peak = gamma (activations + weights + optimizer)
refined  peak = constant + g_act activations + g_w weights + g_opt optimizer, all >= 0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from calib.fitting.estimators.affine import Solved, mean_relative_error, solve, widened_factor
from calib.fitting.estimators.base import (
    CheckedRows,
    Estimator,
    interval,
    resampled_medians,
    weighted_medians,
)
from calib.fitting.regression import (
    MIN_ROWS,
    UNCHECKED_FACTOR,
    error_factor,
    left_out,
    relative_nnls,
)
from calib.foundation.arrays import Floats
from calib.foundation.errors import InputError

CONSTANT = "constant"
TERMS = ("activations", "weights", "optimizer")
Layout = tuple[tuple[str, ...], ...]  # which terms share a factor
# from the finest to the coarsest
LAYOUTS: tuple[Layout, ...] = (
    ((CONSTANT,), ("activations",), ("weights",), ("optimizer",)),
    ((CONSTANT,), ("activations",), ("weights", "optimizer")),
    (("activations",), ("weights", "optimizer")),
    (TERMS,),
)
SIMPLE = LAYOUTS[-1]
# of the columns, each scaled to one: above it two factors only share out one number
MAX_CONDITION = 1e3
# finer factors must predict models that were left out better by this, relative and absolute
BETTER, EXACT = 0.01, 1e-9


class ReuseLaw(Estimator):
    """Peak bytes of models by their naive sums: X [n, 3] bytes of (activations, weights, optimizer).

    Weights hold their gradients and the biases. y [n] is the measured peak in bytes; `names` of `fit`
    are the models (by default each distinct x is one), left out with all their batches. Learned:
    `gamma_`, `gamma_low_`, `gamma_high_`; the refined `constant_bytes_`, `activations_`, `weights_`,
    `optimizer_` with `refined_intervals_` (term -> low, high); `parts_`, which terms share a factor
    (a term in none has 0): of those that the rows can tell apart, what predicts models that were left
    out best; `simple_` and `refined_` with the errors of both; `chosen_`, the better of the two.
    """

    gamma_: float
    gamma_low_: float
    gamma_high_: float
    constant_bytes_: float
    activations_: float
    weights_: float
    optimizer_: float
    refined_intervals_: dict[str, tuple[float, float]]
    parts_: Layout
    simple_: Solved
    refined_: Solved
    chosen_: str
    n_models_: int
    error_factor_: float

    def _fit(self, rows: CheckedRows) -> None:
        """Raises InputError for other features than three, and rows of no bytes."""
        if rows.x.shape[1] != len(TERMS) or (rows.x.sum(axis=1) <= 0).any():
            raise InputError("memory reuse needs bytes of activations, weights and optimizer")
        self.n_models_ = len(set(rows.names))
        self.simple_ = self._solve(SIMPLE, rows)
        self._simple_form(rows.names)
        self.parts_ = best_layout(rows)
        self.refined_ = self._solve(self.parts_, rows)
        self._refined_form()
        better = self.refined_.held_out_error < self.simple_.held_out_error  # False for NaN
        self.chosen_ = "refined" if better else "simple"
        self.error_factor_ = UNCHECKED_FACTOR
        if self.n_models_ > 1:
            self.error_factor_ = error_factor(self._law().held_out, self._law().seconds)

    def _solve(self, layout: Layout, rows: CheckedRows) -> Solved:
        """The law of a layout; its draws are over models, as the bytes of one model hardly vary."""
        design = columns(layout, rows.points)
        solved = solve(design, rows, self.seed)
        labels = _clusters(rows.names)
        names = np.array(sorted(set(labels)))
        generator = np.random.default_rng(self.seed)
        draws = []
        for seconds in resampled_medians(rows, self.seed):
            drawn = generator.choice(len(names), size=len(names)) if len(names) > 1 else [0]
            times = np.bincount(drawn, minlength=len(names)).astype(float)
            weight = times[np.searchsorted(names, labels)]
            used = weight > 0
            if np.linalg.matrix_rank(design[used] / design.max(axis=0)) == design.shape[1]:
                draws.append(relative_nnls(design[used], seconds[used], weight[used]))
        return replace(solved, draws=np.array(draws)) if draws else solved

    def _simple_form(self, labels: list[str]) -> None:
        """Gamma; its interval holds how the models differ, as that of a time holds launches."""
        self.gamma_ = float(self.simple_.coefficients[0])
        ratio = self.simple_.seconds / self.simple_.predicted * self.gamma_
        mine = np.array(_clusters(labels))
        models = [float(np.median(ratio[mine == name])) for name in sorted(set(mine.tolist()))]
        ends = interval(self.gamma_, self.simple_.draws[:, 0], models)
        self.gamma_low_, self.gamma_high_ = ends

    def _refined_form(self) -> None:
        values = dict.fromkeys((CONSTANT, *TERMS), 0.0)
        self.refined_intervals_ = dict.fromkeys((CONSTANT, *TERMS), (0.0, 0.0))
        for index, shared in enumerate(self.parts_):
            value, low, high = self.refined_.estimate(index)
            for term in shared:
                values[term], self.refined_intervals_[term] = value, (low, high)
        self.constant_bytes_ = values[CONSTANT]
        self.activations_, self.weights_, self.optimizer_ = (values[term] for term in TERMS)

    def _law(self) -> Solved:
        return self.refined_ if self.chosen_ == "refined" else self.simple_

    def _layout(self) -> Layout:
        return self.parts_ if self.chosen_ == "refined" else SIMPLE

    def _seconds(self, x: Floats) -> Floats:
        """Bytes, for which the base's word is seconds."""
        result: Floats = columns(self._layout(), x) @ self._law().coefficients
        return result

    def _interval(self, x: Floats) -> tuple[Floats, Floats]:
        """(low [n], high [n]) bytes at 95%; with few models also all that their gammas allow."""
        low, high = self._law().band(columns(self._layout(), x))
        factor = widened_factor(self.error_factor_, x, self.range_)
        middle = self._seconds(x)
        low, high = np.minimum(low, middle / factor), np.maximum(high, middle * factor)
        if self.n_models_ < MIN_ROWS:
            naive = x.sum(axis=1)
            low = np.minimum(low, self.gamma_low_ * naive)
            high = np.maximum(high, self.gamma_high_ * naive)
        return low, high


def columns(layout: Layout, x: Floats) -> Floats:
    """The design [n, k] of a layout, for X [n, 3] bytes: one column for each factor."""
    by_name = {CONSTANT: np.ones(len(x)), **dict(zip(TERMS, x.T, strict=True))}
    result: Floats = np.column_stack([sum(by_name[term] for term in shared) for shared in layout])
    return result


def layouts_told_apart(points: Floats, labels: Sequence[str]) -> list[Layout]:
    """The layouts that X [d, 3] can tell, coarse ones first: independent columns, and enough points.

    Enough are as many as factors when the points of any model are left out. If there is none, the
    simple form.
    """
    fewest = len(points) - max(list(labels).count(label) for label in labels)
    found = []
    for layout in LAYOUTS[-2::-1]:
        # relative to the whole, as residuals count
        scaled = columns(layout, points) / points.sum(axis=1, keepdims=True)
        largest = scaled.max(axis=0)
        possible = len(layout) <= fewest and bool((largest > 0).all())
        if possible and np.linalg.cond(scaled / largest) < MAX_CONDITION:
            found.append(layout)
    return found or [SIMPLE]


def best_layout(rows: CheckedRows) -> Layout:
    """The layout that predicts models that were left out best; of equal ones the coarser."""
    seconds, weight = weighted_medians(rows)
    best, best_error = SIMPLE, np.inf
    for layout in layouts_told_apart(rows.points, rows.names):
        held_out = left_out(columns(layout, rows.points), seconds, weight, rows.names)
        error = mean_relative_error(held_out, seconds)
        if error < (1.0 - BETTER) * best_error - EXACT:
            best, best_error = layout, error
    return best


def _clusters(labels: list[str]) -> list[str]:
    """What differs: the models, or of one model its batches and optimizers."""
    return labels if len(set(labels)) > 1 else [str(n).zfill(9) for n in range(len(labels))]
