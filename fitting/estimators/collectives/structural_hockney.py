"""Collectives on rank counts that were not measured: alpha and beta by steps and volumes.

A library picks another algorithm and protocol for every range of sizes, so the law is fitted at each
measured size on that size and its neighbours: t = base + steps(p) alpha + volume(p) m beta, with the
algorithm (ring, tree, recursive doubling, ...) whose law, fitted without the largest p, predicts the
largest p best. Over several nodes there is a hierarchical variant: the base is a ring inside the
node, and p counts nodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from calib.fitting.estimators.base import (
    BOOTSTRAPS,
    CheckedRows,
    Estimator,
    launch_medians,
    medians,
    resampled_medians,
    widest,
)
from calib.fitting.estimators.collectives.launches import completed, pooled_if_alike
from calib.fitting.estimators.collectives.segmented_hockney import UNCHECKED
from calib.fitting.estimators.draws import inflation
from calib.fitting.parameters.algorithms import ALGORITHMS, features_of
from calib.fitting.regression import error_factor, relative_nnls
from calib.fitting.rounded_sizes import joined
from calib.foundation.arrays import Floats, Mask
from calib.foundation.errors import InputError

NEIGHBOURS = 1  # sizes on either side that share a band's law
MOST_BANDS = 48  # of a denser sweep, sizes evenly by decades are taken; the bands hold all rows
TO_VALIDATE = 3  # distinct p, below which there is nothing to leave out
LEAST_FACTOR = 1.05
UNVALIDATED_FACTOR = 2.0  # per doubling: two p say nothing of which algorithm a third has


@dataclass(frozen=True)
class Band:
    """The law around one size, with coefficients [4] of (base, base per byte, alpha, beta).

    `draws` are coefficients [b, 4] refitted to sets of times (of repetitions if there are any, of
    residuals last), `launches` [l, 4] those of every launch alone, none where launches are alike. The
    base is a call's overhead where the law is flat (its second coefficient is zero then), and alpha and
    beta inside the node where it is hierarchical. `score` is the mean |log error| that chose it,
    `runner_up` the next best (algorithm, hierarchical, score).
    """

    nbytes: float
    algorithm: str
    hierarchical: bool
    coefficients: Floats
    draws: tuple[Floats, ...]
    launches: Floats
    score: float
    runner_up: tuple[str, bool, float] | None

    def interval(self) -> tuple[Floats, Floats]:
        """(low [4], high [4]) of the coefficients at 95%."""
        return widest(self.coefficients, self.draws, self.launches)


class StructuralHockney(Estimator):
    """Time of one operation by bytes, ranks and nodes. X [n, 3] (m, p, nodes), y [n] seconds.

    operation: one of calib.fitting.parameters.algorithms.ALGORITHMS. Learned: `bands_`, one for every
    size; `ranks_` the distinct p; `validated_` whether the largest p could be left out (three p or
    more); `held_out_error_` the mean relative error of the largest p predicted from the others (NaN if
    not); `error_factor_`: 95% of the times, and of those held out where that could be, lie within the
    law / and * this; where launches differ it is at least what their interval adds to the law.
    """

    def __init__(
        self, operation: str = "allreduce", seed: int = 0, n_bootstraps: int = BOOTSTRAPS
    ) -> None:
        self.operation = operation
        self.seed = seed
        self.n_bootstraps = n_bootstraps

    def _fit(self, rows: CheckedRows) -> None:
        """Raises InputError for p < 2, nodes without a rank, or an operation without a model."""
        if self.operation not in ALGORITHMS:
            raise InputError(f"no cost model for the operation {self.operation!r}")
        if rows.x.shape[1] != 3 or (rows.x[:, 0] <= 0).any() or (rows.x[:, 1] < 2).any():
            raise InputError("a structural law is fitted on (bytes over 0, ranks from 2, nodes)")
        if (rows.x[:, 2] < 1).any() or (rows.x[:, 2] > rows.x[:, 1]).any():
            raise InputError("a collective runs on at least one node and on a rank of each")
        x, (t, _) = rows.points, medians(rows)
        self.points_, self.medians_ = x, t
        self.ranks_ = np.unique(x[:, 1])
        self.validated_ = len(self.ranks_) >= TO_VALIDATE
        same = joined(self.operation, {(m, int(p), (p, nodes)) for m, p, nodes in x.tolist()})
        size_of = np.array([same[m] for m in x[:, 0].tolist()])
        sizes = thinned(np.unique(size_of))
        rows = pooled_if_alike(rows)
        # what else the medians might have been: drawn anew, and of each launch alone
        drawn = (
            resampled_medians(rows, self.seed, self.n_bootstraps)
            if rows.repeated
            else np.empty((0, len(t)))
        )
        launches = completed(launch_medians(rows), t)
        generator = np.random.default_rng(self.seed)
        self.bands_ = []
        held_out, truth = [], []
        for k, size in enumerate(sizes):
            low, high = sizes[max(0, k - NEIGHBOURS)], sizes[min(k + NEIGHBOURS, len(sizes) - 1)]
            mine = (size_of >= low) & (size_of <= high)
            here = size_of[mine] == size
            band, pairs = self._band(
                size, here, x[mine], t[mine], drawn[:, mine], launches[:, mine], generator
            )
            self.bands_.append(band)
            held_out += [pair[0] for pair in pairs]
            truth += [pair[1] for pair in pairs]
        self._sizes = np.array([band.nbytes for band in self.bands_])
        self.held_out_error_ = math.nan
        if held_out:
            self.held_out_error_ = float(np.mean(np.abs(np.array(held_out) / np.array(truth) - 1)))
        # a law that misses what it was fitted to is no surer of anything else
        self.error_factor_ = max(
            error_factor(self._seconds(x), t), error_factor(held_out, truth) if held_out else 1.0
        )
        if len(launches):
            value = self._seconds(x)
            _, high = widest(value, (), self._law(x, [band.launches for band in self.bands_]))
            self.error_factor_ = max(self.error_factor_, error_factor(value, high))

    def _candidates(self, x: Floats) -> list[tuple[str, bool]]:
        """(algorithm, hierarchical), the default of formulas.md first."""
        several = (x[:, 2] > 1).any() and (x[:, 1] > x[:, 2]).any()
        names = list(ALGORITHMS[self.operation])
        return [(name, two) for name in names for two in ([True, False] if several else [False])]

    def _band(
        self,
        size: float,
        here: Mask,
        x: Floats,
        t: Floats,
        drawn: Floats,
        launches: Floats,
        generator: np.random.Generator,
    ) -> tuple[Band, list[tuple[float, float]]]:
        """The law around `size`, and (predicted, measured) `here` on the p that was left out."""
        last = x[:, 1] == x[:, 1].max()
        left_out = self.validated_ and last.any() and len(np.unique(x[~last, 1])) > 1
        scored = []
        for rank, (algorithm, two) in enumerate(self._candidates(x)):
            design = self._design(x, algorithm, two)
            coefficients = relative_nnls(design, t)
            predicted = design @ coefficients
            if left_out:
                predicted = design @ relative_nnls(design[~last], t[~last])
            judged = last if left_out else np.ones(len(t), dtype=bool)
            with np.errstate(divide="ignore"):
                errors = np.abs(np.log(predicted[judged] / t[judged]))
            at = judged & here & left_out
            pairs = list(zip(predicted[at].tolist(), t[at].tolist(), strict=True))
            scored.append((float(errors.mean()), rank, algorithm, two, coefficients, pairs))
        scored.sort(key=lambda row: (round(row[0], 12), row[1]))
        score, _, algorithm, two, coefficients, pairs = scored[0]
        second = (scored[1][2], scored[1][3], scored[1][0]) if len(scored) > 1 else None
        design = self._design(x, algorithm, two)
        predicted = np.maximum(design @ coefficients, 1e-300)
        parameters = int(design.any(axis=0).sum())  # one that came out as 0 was free to be more
        if len(t) <= parameters and not len(drawn):
            spread = np.array([-UNCHECKED, UNCHECKED])
        else:
            residual = t / predicted - 1.0
            spread = np.concatenate([residual, -residual]) * inflation(len(t), parameters)
        noise = generator.choice(spread, size=(self.n_bootstraps, len(t)))
        sets = [predicted * np.maximum(1.0 + noise, 0.05)]
        if len(drawn):
            sets.insert(0, drawn)
        draws = tuple(_refitted(design, times) for times in sets)
        own = _refitted(design, launches)
        band = Band(float(size), algorithm, two, coefficients, draws, own, score, second)
        return band, pairs

    def _design(self, x: Floats, algorithm: str, hierarchical: bool) -> Floats:
        """Features [n, 4] of (base, base per byte, alpha, beta)."""
        design = np.zeros((len(x), 4))
        for row, (m, p, nodes) in enumerate(x):
            design[row] = features_of(self.operation, algorithm, hierarchical, m, p, nodes)
        return design

    def _seconds(self, x: Floats) -> Floats:
        law: Floats = self._law(x, [band.coefficients[None] for band in self.bands_])[0]
        return law

    def _law(self, x: Floats, coefficients: list[Floats]) -> Floats:
        """Seconds [b, n] of b sets of coefficients per band: straight in log-log between bands."""
        result = np.empty((len(coefficients[0]), len(x)))
        for row, (m, p, nodes) in enumerate(x):
            right = int(np.clip(np.searchsorted(self._sizes, m), 0, len(self._sizes) - 1))
            left = right if m >= self._sizes[right] else max(right - 1, 0)
            ends = []
            for k in (left, right):
                at = m if left == right else self._sizes[k]
                band = self.bands_[k]
                features = features_of(
                    self.operation, band.algorithm, band.hierarchical, at, p, nodes
                )
                ends.append(np.maximum(coefficients[k] @ np.array(features), 1e-300))
            if left == right:
                result[:, row] = ends[0]
                continue
            share = math.log(m / self._sizes[left]) / math.log(
                self._sizes[right] / self._sizes[left]
            )
            result[:, row] = np.exp((1 - share) * np.log(ends[0]) + share * np.log(ends[1]))
        return result

    def _interval(self, x: Floats) -> tuple[Floats, Floats]:
        """(low [n], high [n]): draws of the law, times the held-out error outside what was measured.

        Once for every doubling of p and every decade of bytes, above the range and below it.
        """
        bands, value = self.bands_, self._seconds(x)
        sets = [self._law(x, list(draws)) for draws in zip(*(b.draws for b in bands), strict=True)]
        low, high = widest(value, sets, self._law(x, [band.launches for band in bands]))
        factor = max(self.error_factor_, LEAST_FACTOR)
        doublings = np.log2(np.maximum(x[:, 1] / self.range_[1, 1], self.range_[0, 1] / x[:, 1]))
        decades = np.log10(np.maximum(x[:, 0] / self.range_[1, 0], self.range_[0, 0] / x[:, 0]))
        per_doubling = factor if self.validated_ else max(factor, UNVALIDATED_FACTOR)
        widening = per_doubling ** np.maximum(doublings, 0.0) * factor ** np.maximum(decades, 0.0)
        return low / widening, high * widening


def thinned(sizes: Floats) -> Floats:
    """At most about MOST_BANDS of the rising sizes, evenly by decades, the first and last kept."""
    if len(sizes) <= MOST_BANDS:
        return sizes
    wanted = np.geomspace(sizes[0], sizes[-1], MOST_BANDS)
    return sizes[np.unique(np.searchsorted(sizes, wanted * (1 - 1e-9)))]


def _refitted(design: Floats, times: Floats) -> Floats:
    """Coefficients [b, 4] of b sets of times [b, n]."""
    found = [relative_nnls(design, row) for row in times]
    return np.array(found).reshape(-1, design.shape[1])
