"""Overlap for the conformance suite: some exchanges are longer than the backward that hides them."""

from __future__ import annotations

import numpy as np
from tests.fitting.estimators.example import Example

from calib.fitting.estimators.overlap import OverlapLaw

ETA = 0.7
FORWARD = np.array([1e-3, 2e-3, 5e-3, 8e-3, 2e-2, 4e-2])
EXCHANGE = np.array([4e-3, 1e-3, 9e-3, 2e-3, 9e-2, 1e-2])
X = np.column_stack([1.1 * FORWARD, 2 * FORWARD, EXCHANGE])

EXAMPLES = [
    Example(
        name="overlap",
        make=OverlapLaw,
        x=X,
        seconds=3.1 * FORWARD + EXCHANGE - np.minimum(ETA * EXCHANGE, 2 * FORWARD),
        truth={"eta_": ETA, "slowdown_": 0.0},
        beyond=np.array([[1.1, 2.0, 1.0]]),
        scaled_column=None,
        below=np.array([[1.1e-5, 2e-5, 1e-5]]),
        per_second={"eta_": 0.0, "slowdown_": 0.0},
        seconds_columns=(0, 1, 2),
    )
]
