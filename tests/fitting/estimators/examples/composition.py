"""Models in place for the conformance suite: the sum + 50 us a layer + 0.3 ns a byte."""

from __future__ import annotations

import numpy as np
from tests.fitting.estimators.example import Example

from calib.fitting.estimators.composition import SumInPlace

S_PER_LAYER, S_PER_BYTE = 50e-6, 0.3e-9
X = np.array(
    [
        [0.025, 21.0, 1e6],
        [0.034, 3.0, 3e7],
        [0.038, 12.0, 4e6],
        [0.0085, 2.0, 8e6],
        [0.012, 60.0, 2e6],
        [0.051, 40.0, 6e7],
    ]
)

EXAMPLES = [
    Example(
        name="sum in place",
        make=SumInPlace,
        x=X,
        seconds=X[:, 0] + S_PER_LAYER * X[:, 1] + S_PER_BYTE * X[:, 2],
        truth={"s_per_layer_": S_PER_LAYER, "s_per_byte_": S_PER_BYTE},
        beyond=np.array([[0.5, 40.0, 1e9]]),
        below=np.array([[0.0085, 2.0, 1e4]]),
        per_feature={"s_per_layer_": 0.0, "s_per_byte_": -1.0},
        scaled_column=2,
        seconds_columns=(0,),
        per_second={"s_per_layer_": 1.0, "s_per_byte_": 1.0},
    )
]
