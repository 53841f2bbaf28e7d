"""The forms of contention laws, and their fits to points.

Points [d, 2] are (bytes, groups at once), seconds [d] their medians. Errors are relative, and all
coefficients non-negative (Lawson and Hanson's NNLS, from SciPy).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calib.fitting.regression import relative_nnls
from calib.foundation.arrays import Floats

LAWS = (
    "none",
    "saturation",
    "steps",
    "none, own start-ups",
    "saturation, own start-ups",
    "steps, own start-ups",
)
ROUNDS = 6  # of reweighting
HUBER = 1.345  # residuals beyond this many scales count less (Huber 1964; 95% efficient)
SMALLEST_SCALE = 1e-3  # relative; below it no residual is an outlier
# a law that is closer than this to its points is exact: times are printed with 6 digits at most
EXACT = 1e-6


@dataclass(frozen=True)
class ContentionForm:
    """One fitted form: start-up and slope at each of `groups` [k], and the capacity or NaN."""

    groups: Floats
    intercepts: Floats
    slopes: Floats
    capacity: float
    parameters: int

    @property
    def contention(self) -> Floats:
        """phi [k]."""
        result: Floats = self.slopes / self.slopes[0]
        return result

    def slopes_at(self, k: Floats) -> Floats:
        """b phi(k) [n] s/B: between the measured k a straight line, beyond them the last goes on."""
        if np.isfinite(self.capacity):
            full: Floats = self.slopes[0] * np.maximum(1.0, k / self.capacity)
            return full
        slope: Floats = np.interp(k, self.groups, self.slopes)
        if len(self.groups) > 1:
            rise = (self.slopes[-1] - self.slopes[-2]) / (self.groups[-1] - self.groups[-2])
            slope = slope + rise * np.maximum(k - self.groups[-1], 0.0)
        return slope

    def seconds(self, x: Floats) -> Floats:
        """t(m, k) [n] of X [n, 2]."""
        start: Floats = np.interp(x[:, 1], self.groups, self.intercepts)
        return start + self.slopes_at(x[:, 1]) * x[:, 0]


def possible(points: Floats) -> list[str]:
    """The laws that points [d, 2] can tell apart: start-ups of its own need three sizes of every k."""
    each = [int((points[:, 1] == k).sum()) for k in np.unique(points[:, 1])]
    return [law for law in LAWS if min(each) > 2 or "own" not in law]


def residuals(form: ContentionForm, points: Floats, seconds: Floats) -> tuple[Floats, float]:
    """(log residuals [d], their robust scale)."""
    residual = np.log(seconds / np.maximum(form.seconds(points), 1e-300))
    return residual, max(1.4826 * float(np.median(np.abs(residual))), SMALLEST_SCALE)


def score(form: ContentionForm, points: Floats, seconds: Floats) -> float:
    """Schwarz's criterion (1978) for relative errors of Laplace's distribution, robust to outliers.

    -2 log likelihood = 2 d log(mean |log residual|) + constant, and log d per free parameter.
    """
    residual, _ = residuals(form, points, seconds)
    error = max(float(np.mean(np.abs(residual))), EXACT)
    return float(2.0 * len(points) * np.log(error) + form.parameters * np.log(len(points)))


def robust(law: str, points: Floats, seconds: Floats) -> tuple[ContentionForm, Floats]:
    """(form, weights [d]) of a law, by reweighted least squares of relative errors (Huber)."""
    weight = np.ones(len(points))
    form = fitted(law, points, seconds, weight)
    for _ in range(ROUNDS):
        residual, scale = residuals(form, points, seconds)
        weight = np.minimum(1.0, HUBER * scale / np.maximum(np.abs(residual), 1e-300))
        form = fitted(law, points, seconds, weight)
    return form, weight


def fitted(law: str, points: Floats, seconds: Floats, weight: Floats) -> ContentionForm:
    """The law's weighted least squares of relative errors, all coefficients non-negative."""
    groups = np.unique(points[:, 1])
    size, k = points[:, 0], points[:, 1]
    starts = (k[:, None] == groups).astype(float) if "own" in law else np.ones((len(k), 1))
    if all(len(np.unique(size[k == one])) == 1 for one in groups):  # no start-up shows
        starts = np.zeros((len(k), 0))
    if law.startswith("none"):
        coefficients, _ = _solve(np.column_stack([starts, size]), seconds, weight)
        slopes = np.full(len(groups), coefficients[-1])
        return ContentionForm(
            groups, _each(coefficients[:-1], groups), slopes, np.nan, len(coefficients)
        )
    fit = _steps if law.startswith("steps") else _saturation
    return fit(groups, size, k, starts, seconds, weight)


def _steps(
    groups: Floats, size: Floats, k: Floats, starts: Floats, seconds: Floats, weight: Floats
) -> ContentionForm:
    """Slopes that never fall: each k adds a non-negative step to the slope of the k before it."""
    rising = size[:, None] * (k[:, None] >= groups)
    coefficients, _ = _solve(np.hstack([starts, rising]), seconds, weight)
    own, steps = coefficients[: starts.shape[1]], coefficients[starts.shape[1] :]
    slopes = np.cumsum(steps)
    blocks = 1 + int((steps[1:] > EXACT * slopes[-1]).sum())  # Meyer and Woodroofe 2000
    return ContentionForm(groups, _each(own, groups), slopes, np.nan, len(own) + blocks)


def _saturation(
    groups: Floats, size: Floats, k: Floats, starts: Floats, seconds: Floats, weight: Floats
) -> ContentionForm:
    """phi = max(1, k / capacity), exactly: a capacity between two neighbouring k makes the law linear.

    For every pair of neighbours, t = a + b m for k up to the lower and a + (b / capacity) k m from the
    upper on; where the best such capacity is not between the two, it is at one of the measured k.
    """
    inner, best = starts.shape[1], (np.inf, np.nan, np.zeros(0))
    for index, capacity in enumerate(groups):
        at = np.column_stack([starts, size * np.maximum(1.0, k / capacity)])
        coefficients, error = _solve(at, seconds, weight)
        if error < best[0]:
            best = (error, float(capacity), coefficients)
        if index + 1 == len(groups):
            continue
        full = k > capacity
        apart = np.column_stack([starts, size * ~full, size * k * full])
        coefficients, error = _solve(apart, seconds, weight)
        alone, shared = coefficients[inner:]
        between = shared > 0 and capacity <= alone / shared <= groups[index + 1]
        if between and error < best[0]:
            best = (error, float(alone / shared), coefficients)
    _, capacity, coefficients = best
    slopes = coefficients[inner] * np.maximum(1.0, groups / capacity)
    return ContentionForm(
        groups, _each(coefficients[:inner], groups), slopes, float(capacity), inner + 2
    )


def _each(own: Floats, groups: Floats) -> Floats:
    """Start-ups [k] of none, one for all, or one for every k."""
    return np.zeros(len(groups)) if not len(own) else np.broadcast_to(own, groups.shape).copy()


def _solve(features: Floats, seconds: Floats, weight: Floats) -> tuple[Floats, float]:
    """(coefficients >= 0, norm of the weighted relative residuals)."""
    coefficients = relative_nnls(features, seconds, weight)
    residual = features @ coefficients / seconds - 1.0
    return coefficients, float(np.sqrt(weight @ residual**2))
