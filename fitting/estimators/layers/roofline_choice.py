"""Choose a price law by held-out layers: its form, its prices, its neighbours."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from calib.fitting.estimators.layers.price_law import (
    FRESH,
    PRICES,
    Terms,
    WorkForm,
    huber,
    seconds,
    solve,
)
from calib.fitting.parameters.work import SIZE_SHARE
from calib.fitting.regression import bound_of
from calib.foundation.arrays import Floats, Integers, Mask

# of equals the first is taken. A sum shares the time of layers that are like one another between
# operations and bytes, and is too cheap where either is alone: full-size layers, predicted from small
# ones, were 17-19% off on average by "norm2" first and 20-22% by "sum" first
FORMS: tuple[WorkForm, ...] = ("norm2", "max", "sum")
MIXES = (
    ("s_per_flop", "s_per_byte"),
    ("s_per_flop", "s_per_byte", "s_per_weight_byte"),
    ("s_per_flop", "s_per_patch_byte", "s_per_weight_byte"),
)
# where operations and bytes are as good as proportional, as in a pass over items: one price for both
ONE_PRICE = (("s_per_byte",), ("s_per_byte", "s_per_weight_byte"), ("s_per_flop",))
PROPORTIONAL = 0.1
# a law of more prices must be better by this, and by more than rounding
GAIN, ROUNDING = 0.95, 1e-4
REACHES = (0.5, 1.0)
NEIGHBOUR_GAIN = 0.9
# an extrapolation by a decade is worth at least and at most these factors more
LEAST_GROWTH, MOST_GROWTH = 1.5, 10.0
# a layer that is hardly larger than the others says little of a decade
LEAST_DECADES = 0.3
# a search needs no more digits than the choice
SEARCH_STEPS = 15
# up to so many layers each is left out by itself
MOST_SINGLE, FOLDS = 12, 8
LARGEST_SHARE = 0.2
MIN_FOR_LARGEST = 5


@dataclass(frozen=True)
class Folds:
    """(kept, held out) masks of points [d]: `by_layer` holds each out once, `largest` the largest."""

    layers: int
    by_layer: list[tuple[Mask, Mask]]
    largest: list[tuple[Mask, Mask]]


def make_folds(points: Floats, layer: Integers) -> Folds:
    """Folds of points [d, k] of these layers; columns 0 and 1 are operations and bytes."""
    n = int(layer.max()) + 1
    if n < 2:
        return Folds(n, [], [])
    parts = n if n <= MOST_SINGLE else FOLDS
    by_layer = [(layer % parts != part, layer % parts == part) for part in range(parts)]
    largest: list[tuple[Mask, Mask]] = []
    if n >= MIN_FOR_LARGEST:
        for column in (0, 1):
            size = np.zeros(n)
            np.maximum.at(size, layer, points[:, column])
            order = np.argsort(size, kind="stable")
            held = np.isin(layer, order[-max(1, round(LARGEST_SHARE * n)) :])
            if not any((held == other).all() for _, other in largest):
                largest.append((~held, held))
    return Folds(n, by_layer, largest)


@dataclass(frozen=True)
class WorkPoints:
    """Distinct work: rows x [d, 6] with the column of the call, typical seconds t [d], weight [d]."""

    x: Floats
    t: Floats
    weight: Floats
    _solved: dict[tuple[bytes, Terms], Floats] = field(default_factory=dict)

    def solved(self, kept: Mask, terms: Terms) -> Floats:
        """Prices [6] of the kept points. All forms of the same terms begin at those of their sum."""
        about = kept.tobytes(), terms
        if about not in self._solved:
            of_sum = None
            if terms.form != "sum":
                of_sum = self.solved(kept, replace(terms, form="sum"))
            rows = self.x[kept], self.t[kept], self.weight[kept]
            self._solved[about] = solve(*rows, terms, steps=SEARCH_STEPS, of_sum=of_sum)
        return self._solved[about]

    def errors(self, kept: Mask, held: Mask, prices: Floats, form: WorkForm) -> tuple[Floats, Mask]:
        """(log errors of the held points, which of them the kept can judge).

        Fresh pages cannot be judged by layers that had none.
        """
        known = (self.x[held, FRESH] == 0) | bool(self.x[kept, FRESH].any())
        with np.errstate(divide="ignore"):  # prices of 0 say 0 s, which is infinitely far off
            return np.log(seconds(self.x[held], prices, form) / self.t[held]), known

    @property
    def places(self) -> Floats:
        """Where the points lie among one another [d, 3]."""
        return places_of(self.x[:, 1:])


@dataclass(frozen=True)
class RooflineCandidate:
    """A law, the typical log error of layers left out, and the seconds [d] said of each then."""

    terms: Terms
    score: float
    left_out: Floats


def best_two(
    points: WorkPoints, folds: Folds
) -> tuple[RooflineCandidate, RooflineCandidate | None]:
    """The law with the best score of those that the columns tell apart, and the best of the others."""
    found = [_scored(points, terms, folds) for terms in candidates(points.x)]
    best = found[0]
    for candidate in found[1:]:
        if candidate.score + ROUNDING < GAIN * (best.score + ROUNDING):
            best = candidate
    others = [candidate for candidate in found if candidate is not best]
    return best, min(others, key=lambda candidate: candidate.score, default=None)


def candidates(x: Floats) -> list[Terms]:
    """Laws whose prices the rows [n, 6] can tell apart: no column is 0, or nearly a multiple."""
    always = ["call_s", *(["s_per_fresh_byte"] if x[:, FRESH].any() else [])]
    for mixes in (MIXES, ONE_PRICE):
        found = []
        for mix in mixes:
            columns = x[:, [PRICES.index(name) for name in mix]]
            if not columns.any(axis=0).all() or _parallel(columns):
                continue
            forms = FORMS if "s_per_flop" in mix and len(mix) > 1 else ("sum",)
            found += [Terms((*always, *mix), form) for form in forms]
        if found:
            return found
    return [Terms(tuple(always))]


def _parallel(columns: Floats) -> bool:
    """Whether a column is a multiple of another, but for PROPORTIONAL of it."""
    for first, second in combinations(columns.T, 2):
        both = (first > 0) & (second > 0)
        if np.array_equal(both, (first > 0) | (second > 0)):
            ratio = second[both] / first[both]
            if np.ptp(ratio) <= PROPORTIONAL * ratio.max():
                return True
    return False


def _scored(points: WorkPoints, terms: Terms, folds: Folds) -> RooflineCandidate:
    """The law's errors on layers left out, and on those larger than all that it was fitted on."""
    left_out = np.full(len(points.t), np.nan)
    losses = [np.zeros(0)]
    for number, (kept, held) in enumerate([*folds.by_layer, *folds.largest]):
        errors, known = points.errors(kept, held, points.solved(kept, terms), terms.form)
        losses.append(huber(errors[known]))
        if number < len(folds.by_layer):
            left_out[held] = np.where(known, points.t[held] * np.exp(errors), np.nan)
    every = np.concatenate(losses)
    return RooflineCandidate(
        terms, float(np.sqrt(2.0 * every.mean())) if len(every) else 0.0, left_out
    )


def typical(predicted: Floats, t: Floats) -> float:
    """Typical log error: the root of twice the mean Huber loss; NaN are left out."""
    known = np.isfinite(predicted)
    if not known.any():
        return 0.0
    return float(np.sqrt(2.0 * huber(np.log(predicted[known] / t[known])).mean()))


def best_reach(
    points: WorkPoints, best: RooflineCandidate, folds: Folds
) -> tuple[float | None, Floats]:
    """(how far neighbours should reach or None, seconds [d] of layers left out with them)."""
    places, form = points.places, best.terms.form
    reach, result = None, best.left_out
    limit = NEIGHBOUR_GAIN * typical(result, points.t)
    solved = [points.solved(kept, best.terms) for kept, _ in folds.by_layer]
    for candidate in REACHES:
        corrected = best.left_out.copy()
        for (kept, held), prices in zip(folds.by_layer, solved, strict=True):
            residuals = np.log(points.t[kept] / seconds(points.x[kept], prices, form))
            near = corrections(places[kept], residuals, places[held], candidate)
            corrected[held] *= np.exp(near)
        if typical(corrected, points.t) + ROUNDING < limit:
            limit, reach, result = typical(corrected, points.t), candidate, corrected
    return reach, result


def growth(points: WorkPoints, terms: Terms, folds: Folds, factor: float) -> float:
    """By what factor a decade of extrapolation widens an interval of this error factor.

    So that 95% of the largest layers, left out, lie inside theirs; of those that the others are not
    smaller than it says nothing.
    """
    needed = np.zeros(0)
    for kept, held in folds.largest:
        errors, known = points.errors(kept, held, points.solved(kept, terms), terms.form)
        sizes = points.x[:, [1, 2]]
        beyond = sizes[held] / np.maximum(sizes[kept].max(axis=0), np.finfo(float).tiny)
        decades = np.log10(np.maximum(beyond.max(axis=1), 1.0))
        left = (np.abs(errors) - np.log(factor)) / np.maximum(decades, LEAST_DECADES)
        needed = np.append(needed, left[known & (decades > 0.0)])
    if not len(needed):
        return LEAST_GROWTH
    return float(np.clip(np.exp(bound_of(needed)), LEAST_GROWTH, MOST_GROWTH))


def places_of(x: Floats) -> Floats:
    """fitting/parameters/work.py, likeness, of rows [n, 5]."""
    nbytes = np.maximum(x[:, 1], 1.0)
    intensity = np.log(np.maximum(x[:, 0], 1e-3 * nbytes) / nbytes)
    reuse = np.log(np.maximum(x[:, 3], 1e-3 * nbytes) / nbytes)
    return np.column_stack([intensity, reuse, SIZE_SHARE * np.log(nbytes)])


def corrections(places: Floats, residuals: Floats, at: Floats, reach: float) -> Floats:
    """fitting/parameters/work.py, correction, at many places [n, 3]."""
    square = ((at[:, None, :] - places[None]) ** 2).sum(axis=2) / reach**2
    weights = np.exp(-0.5 * square)
    result: Floats = weights @ residuals / (1.0 + weights.sum(axis=1))
    return result
