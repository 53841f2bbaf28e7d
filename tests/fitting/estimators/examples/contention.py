"""Contention for the conformance suite: a link that three flows fill, and steps of no such law."""

from __future__ import annotations

import numpy as np
from tests.fitting.estimators.example import Example

from calib.fitting.estimators.collectives.contention import ContentionLaw

START_S, SLOPE_S_PER_BYTE, CAPACITY = 20e-6, 1e-9, 3.0
GROUPS = np.array([1.0, 2.0, 4.0, 8.0])
STEPS = np.array([1.0, 1.1, 1.2, 4.0])
SIZES = 2.0 ** np.arange(14, 23)
X = np.array([[m, k] for k in GROUPS for m in SIZES])


def _seconds(contention: np.ndarray) -> np.ndarray:
    phi = np.interp(X[:, 1], GROUPS, contention)
    seconds: np.ndarray = START_S + SLOPE_S_PER_BYTE * phi * X[:, 0]
    return seconds


FULL = np.maximum(1.0, GROUPS / CAPACITY)
SHARED = {
    "make": ContentionLaw,
    "x": X,
    "beyond": np.array([[2.0**22, 32.0]]),
    "per_second": {"intercept_": 1.0, "slope_": 1.0, "contention_": 0.0},
    "per_feature": {"intercept_": 0.0, "slope_": -1.0, "contention_": 0.0},
}
KNOWN = {"intercept_": START_S, "slope_": SLOPE_S_PER_BYTE}
EXAMPLES = [
    Example(
        name="contention, saturation",
        seconds=_seconds(FULL),
        truth=KNOWN | {"contention_": FULL, "capacity_": CAPACITY},
        **SHARED,
    ),
    Example(
        name="contention, steps",
        seconds=_seconds(STEPS),
        truth=KNOWN | {"contention_": STEPS},
        **SHARED,
    ),
]
