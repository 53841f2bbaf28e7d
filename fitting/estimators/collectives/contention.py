"""Contention: how much slower a byte is when k groups of ranks use the same links at once (phi).

t(m, k) = a_k + b phi(k) m with phi(1) = 1 and phi never falling: formulas.md, where phi multiplies
beta, and measurement.md 10, phi_k = slope with k groups / slope with one. Three forms of phi are
fitted: none, phi = 1; steps, one value per measured k (isotonic); and saturation, phi(k) = max(1, k /
capacity), where `capacity` flows fit the link before it is full. Each has one start-up time for all k,
or one of its own for every k. A penalised criterion chooses (`score`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm
from scipy.stats import t as student

from calib.fitting.estimators.base import (
    BOOTSTRAPS,
    CheckedRows,
    Estimator,
    interval,
    launch_medians,
    medians,
    resampled_medians,
)
from calib.fitting.estimators.collectives.contention_laws import (
    LAWS,
    ContentionForm,
    fitted,
    possible,
    residuals,
    robust,
    score,
)
from calib.foundation.arrays import Floats
from calib.foundation.errors import InputError

CLIP = 3.0  # scales at which a residual is cut before the bootstrap draws it
TIE = 1e-3  # of scores
UNCHECKED = 0.1  # relative, taken for times that were neither repeated nor are more than the law's
WIDER_PER_DOUBLING = 0.1  # of the interval, for every doubling of the bytes beyond the range


class ContentionLaw(Estimator):
    """phi(k). X [n, 2] = (bytes, groups at once), y [n] seconds.

    `law` is one of LAWS, or empty for the criterion's choice. Learned: `groups_` [k], `contention_` [k]
    (phi, the first is 1), `intercepts_` [k] s, `intercept_` and `slope_` of one group alone (s, s/B),
    `capacity_` (flows; NaN without saturation), `law_`, `runner_up_` and `scores_` (law -> score),
    `contention_interval_` [k, 2], `intercept_interval_`, `slope_interval_` and `capacity_interval_` [2].
    """

    law_: str
    runner_up_: str
    scores_: dict[str, float]
    groups_: Floats
    contention_: Floats
    intercepts_: Floats
    intercept_: float
    slope_: float
    capacity_: float
    contention_interval_: Floats
    intercept_interval_: Floats
    slope_interval_: Floats
    capacity_interval_: Floats

    def __init__(self, law: str = "", seed: int = 0) -> None:
        self.law = law
        self.seed = seed

    def _fit(self, rows: CheckedRows) -> None:
        """Raises InputError for groups that are not whole numbers from 1 on, no run of one group alone,
        an unknown law, and times that do not rise with the bytes.
        """
        if rows.x.shape[1] != 2:
            raise InputError(f"contention needs bytes and groups, not {rows.x.shape[1]} features")
        counts = rows.points[:, 1]
        if (counts != np.round(counts)).any() or counts.min() != 1:
            raise InputError("contention needs runs of 1 group alone, and whole numbers of groups")
        if self.law and self.law not in LAWS:
            raise InputError(f"law {self.law!r} is none of: {'; '.join(LAWS)}")
        middle, _ = medians(rows)
        laws = [self.law] if self.law else possible(rows.points)
        forms = {law: robust(law, rows.points, middle) for law in laws}
        # a link that was never full shows no capacity: that is the law none
        full = {n: f for n, f in forms.items() if not f[0].capacity >= counts.max()} or forms
        self._choose(full, rows, middle)
        if self.law_.startswith("saturation") and self.contention_interval_[-1, 0] <= 1.0:
            # nor does one whose phi may be 1 after all: beyond the most groups it would rise
            full = {n: f for n, f in full.items() if not n.startswith("saturation")} or full
            self._choose(full, rows, middle)

    def _interval(self, x: Floats) -> tuple[Floats, Floats]:
        """(low [n], high [n]) s at 95%, wider outside what was fitted.

        More groups than were measured cost at least as much as the most that were, and at most as
        much as if the link had been full with those: phi(K) and phi(K) k / K are in the interval.
        """
        points, back = np.unique(x, axis=0, return_inverse=True)
        value = self._seconds(points)
        draws = np.stack([form.seconds(points) for form in self._draws])
        launches = [form.seconds(points) for form in self._launches]
        most = self.groups_[-1]
        at_most = self._form.seconds(
            np.column_stack([points[:, 0], np.minimum(points[:, 1], most)])
        )
        full = at_most * np.maximum(points[:, 1] / most, 1.0)
        ends = [
            interval(value[i], draws[:, i], [float(own[i]) for own in launches])
            for i in range(len(points))
        ]
        low = np.minimum([end[0] for end in ends], at_most)
        high = np.maximum([end[1] for end in ends], full)
        size, (least, largest) = points[:, 0], self.range_[:, 0]
        # 1 byte more: a message may have none
        beyond = np.maximum((size + 1) / (largest + 1), (least + 1) / (size + 1))
        wider = WIDER_PER_DOUBLING * np.log2(np.maximum(beyond, 1.0))
        back = back.reshape(-1)
        return (low / (1.0 + wider))[back], (high * (1.0 + wider))[back]

    def contention(self, k: ArrayLike) -> Floats:
        """phi [n] for k [n] groups at once, by the fitted law."""
        at = np.atleast_1d(np.asarray(k, dtype=float))
        return self._form.slopes_at(at) / self.slope_

    def _seconds(self, x: Floats) -> Floats:
        return self._form.seconds(x)

    def _choose(
        self, forms: dict[str, tuple[ContentionForm, Floats]], rows: CheckedRows, middle: Floats
    ) -> None:
        """Keep the form of the best score; of equal ones the first of LAWS."""
        self.scores_ = {name: score(form, rows.points, middle) for name, (form, _) in forms.items()}
        best = min(self.scores_.values())
        self.law_ = next(name for name, s in self.scores_.items() if s <= best + TIE)
        others = sorted((s, name) for name, s in self.scores_.items() if name != self.law_)
        self.runner_up_ = others[0][1] if others else ""
        self._form, weight = forms[self.law_]
        if self._form.slopes[0] <= 0:
            raise InputError("the times do not rise with bytes; contention needs larger messages")
        self._keep(rows, middle, weight)

    def _keep(self, rows: CheckedRows, middle: Floats, weight: Floats) -> None:
        """The learned numbers of the chosen form, and their intervals."""
        form = self._form
        self._draws, self._launches = self._alike(rows, middle, weight)
        self.groups_, self.contention_ = form.groups, form.contention
        self.intercepts_, self.intercept_ = form.intercepts, float(form.intercepts[0])
        self.slope_, self.capacity_ = float(form.slopes[0]), form.capacity

        def ends(number: Callable[[ContentionForm], float]) -> Floats:
            own = [number(launch) for launch in self._launches]
            return np.array(interval(number(form), [number(draw) for draw in self._draws], own))

        def nth(i: int) -> Callable[[ContentionForm], float]:
            return lambda f: float(f.contention[i])

        each = [ends(nth(i)) for i in range(len(form.groups))]
        self.contention_interval_ = np.maximum(1.0, each)
        self.intercept_interval_ = ends(lambda f: float(f.intercepts[0]))
        self.slope_interval_ = ends(lambda f: float(f.slopes[0]))
        self.capacity_interval_ = np.full(2, np.nan)
        if np.isfinite(form.capacity):
            self.capacity_interval_ = np.maximum(1.0, ends(lambda f: f.capacity))

    def _alike(
        self, rows: CheckedRows, middle: Floats, weight: Floats
    ) -> tuple[list[ContentionForm], list[ContentionForm]]:
        """The same law fitted to bootstrap samples, and to each launch that timed every point.

        Repetitions say how sure a median is, not how well the law holds; what the residuals have
        beyond that noise (all of it where nothing was repeated) is drawn as well, as much wider as
        Student's t is than the normal. Where the law is none, phi is free to rise in the draws.
        """
        form = self._form
        noisy = resampled_medians(rows, self.seed)
        residual, scale = residuals(form, rows.points, middle)
        law = self.law_.replace("none", "steps")
        free = max(len(residual) - form.parameters, 1)
        spread = free / len(residual) * float(norm.ppf(0.975) / student.ppf(0.975, free)) ** 2
        clipped = np.clip(residual, -CLIP * scale, CLIP * scale)
        total = float(np.mean(clipped**2)) / spread
        excess = max(total - float(np.mean(np.var(np.log(noisy), axis=0))), 0.0)
        if total > 0:
            generator = np.random.default_rng([self.seed, 1])
            unit = clipped / np.sqrt(np.mean(clipped**2))
            picked = generator.choice(unit, size=noisy.shape)
            noisy = noisy * np.exp(np.sqrt(excess) * picked)
        if not rows.repeated:  # the points have no noise of their own: draw around the law
            noisy = noisy / middle * form.seconds(rows.points)
            if len(residual) <= form.parameters:  # nothing says how far off they are
                generator = np.random.default_rng([self.seed, 2])
                noisy = noisy * np.exp(UNCHECKED * generator.standard_normal(noisy.shape))
        draws = [fitted(law, rows.points, drawn, weight) for drawn in noisy]
        alone = launch_medians(rows)
        alone = alone[np.isfinite(alone).all(axis=1)] if len(alone) > 1 else alone[:0]
        launches = [fitted(law, rows.points, own, weight) for own in alone]
        usable = [draw for draw in draws if draw.slopes[0] > 0]
        return usable or [form] * BOOTSTRAPS, [own for own in launches if own.slopes[0] > 0]
