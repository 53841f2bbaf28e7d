"""Collectives in pieces for the conformance suite: one line, a jump between two, and a bend after it."""

from __future__ import annotations

import numpy as np
from tests.fitting.estimators.example import Example

from calib.fitting.estimators.collectives.segmented_hockney import SegmentedHockney

X = 2.0 ** np.arange(3, 27)[:, None]
# the jump is between two sizes; the bend is where the second and the third line cross, at 2^20.4 B
INTERCEPTS, SLOPES = np.array([5e-6, 20e-6, 7.5e-5]), np.array([2e-10, 1e-10, 6e-11])
FROM = np.array([2.0**3, 2.0**14, 5.5e-5 / 4e-11])
PIECE = np.searchsorted(FROM, X[:, 0], side="right") - 1
SCALES = {"intercepts_": 1.0, "slopes_": 1.0, "from_": 0.0, "to_": 0.0, "borders_": 0.0}

EXAMPLES = [
    Example(
        name="segmented, one line",
        make=SegmentedHockney,
        x=X,
        seconds=5e-6 + 2e-10 * X[:, 0],
        truth={"intercepts_": [5e-6], "slopes_": [2e-10], "from_": [8.0], "to_": [2.0**26]},
        beyond=np.array([[2.0**30]]),
        per_second=SCALES,
        per_feature={"intercepts_": 0.0, "slopes_": -1.0, "from_": 1.0, "to_": 1.0},
    ),
    Example(
        name="segmented, three pieces",
        make=SegmentedHockney,
        x=X,
        seconds=INTERCEPTS[PIECE] + SLOPES[PIECE] * X[:, 0],
        truth={"intercepts_": INTERCEPTS, "slopes_": SLOPES, "from_": FROM},
        beyond=np.array([[2.0**30]]),
        per_second=SCALES,
        per_feature={
            "intercepts_": 0.0,
            "slopes_": -1.0,
            "from_": 1.0,
            "to_": 1.0,
            "borders_": 1.0,
        },
    ),
]
