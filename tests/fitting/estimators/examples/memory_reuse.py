"""Memory reuse for the conformance suite: one gamma for all, and four numbers. y is in bytes."""

from __future__ import annotations

import numpy as np
from tests.fitting.estimators.example import Example

from calib.fitting.estimators.memory_reuse import ReuseLaw

GENERATOR = np.random.default_rng(4)
MODELS = 12
WEIGHTS = 10 ** GENERATOR.uniform(6, 8, MODELS)
X = np.column_stack(
    [10 ** GENERATOR.uniform(6.5, 8.5, MODELS), 2 * WEIGHTS, WEIGHTS * np.tile([0.0, 1.0, 2.0], 4)]
)
CONSTANT, FACTORS = 4e6, np.array([0.3, 0.8, 1.1])
BEYOND, BELOW = np.array([[1e11, 1e9, 5e8]]), np.array([[1e4, 1e4, 0.0]])

EXAMPLES = [
    Example(
        name="memory reuse, one factor",
        make=ReuseLaw,
        x=X,
        seconds=0.4 * X.sum(axis=1),
        truth={"gamma_": 0.4, "activations_": 0.4, "weights_": 0.4, "optimizer_": 0.4},
        beyond=BEYOND,
        below=BELOW,
        per_second={"gamma_": 1.0, "weights_": 1.0},
        scaled_column=None,
    ),
    Example(
        name="memory reuse, refined",
        make=ReuseLaw,
        x=X,
        seconds=CONSTANT + X @ FACTORS,
        truth={
            "constant_bytes_": CONSTANT,
            "activations_": 0.3,
            "weights_": 0.8,
            "optimizer_": 1.1,
        },
        beyond=BEYOND,
        below=BELOW,
        per_second={"constant_bytes_": 1.0, "activations_": 1.0, "weights_": 1.0, "gamma_": 1.0},
        per_feature={"constant_bytes_": 0.0, "activations_": -1.0, "weights_": 0.0},
    ),
]
