"""Lines between given breakpoints for the conformance suite; the breakpoints fix the unit of bytes."""

from __future__ import annotations

from functools import partial

import numpy as np
from tests.fitting.estimators.example import Example

from calib.fitting.estimators.collectives.fixed_segments import FixedSegments

BREAKPOINTS = (1420.0, 65536.0)
INTERCEPTS, SLOPES = np.array([2e-6, 4e-6, 1e-5]), np.array([1e-10, 4e-10, 3e-10])
X = np.array([1, 10, 100, 700, 1419, 1420, 5e3, 2e4, 65535, 65536, 2e5, 1e6], dtype=float)[:, None]
PIECE = np.searchsorted(BREAKPOINTS, X[:, 0], side="right")

EXAMPLES = [
    Example(
        name="fixed segments",
        make=partial(FixedSegments, BREAKPOINTS),
        x=X,
        seconds=INTERCEPTS[PIECE] + SLOPES[PIECE] * X[:, 0],
        truth={"intercepts_": INTERCEPTS, "slopes_": SLOPES},
        beyond=np.array([[1e8]]),
        per_second={"intercepts_": 1.0, "slopes_": 1.0},
        scaled_column=None,
    )
]
