"""Partitions for the conformance suite: 0.5 s + 2 s / P + 2 ms P, least at P = sqrt(1000)."""

from __future__ import annotations

import math

import numpy as np
from tests.fitting.estimators.example import Example

from calib.fitting.estimators.partitions import PartitionsLaw

X = 2.0 ** np.arange(1, 9)[:, None]

EXAMPLES = [
    Example(
        name="partitions",
        make=PartitionsLaw,
        x=X,
        seconds=0.5 + 2.0 / X[:, 0] + 2e-3 * X[:, 0],
        truth={
            "constant_s_": 0.5,
            "parallel_s_": 2.0,
            "per_partition_s_": 2e-3,
            "best_partitions_": math.sqrt(1000),
        },
        beyond=np.array([[4096.0]]),
        below=np.array([[1.0]]),
        per_second={"constant_s_": 1.0, "parallel_s_": 1.0, "best_partitions_": 0.0},
        scaled_column=None,
    )
]
