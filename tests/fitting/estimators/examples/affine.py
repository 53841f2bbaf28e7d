"""Passes over tensors for the conformance suite: 10 us + 2 us a tensor + 0.25 ns a byte."""

from __future__ import annotations

import numpy as np
from tests.fitting.estimators.example import Example

from calib.fitting.estimators.affine import AffineInBytes

CALL_S, S_PER_TENSOR, S_PER_BYTE = 10e-6, 2e-6, 0.25e-9
X = np.array([[n, nbytes * n] for n in (1.0, 2.0, 6.0, 40.0) for nbytes in (512.0, 8e3, 1e5, 2e6)])

EXAMPLES = [
    Example(
        name="affine in bytes",
        make=AffineInBytes,
        x=X,
        seconds=CALL_S + S_PER_TENSOR * X[:, 0] + S_PER_BYTE * X[:, 1],
        truth={"call_s_": CALL_S, "s_per_tensor_": S_PER_TENSOR, "s_per_byte_": S_PER_BYTE},
        beyond=np.array([[40.0, 1e9]]),
        below=np.array([[1.0, 5.0]]),
        per_second={"call_s_": 1.0, "s_per_tensor_": 1.0, "s_per_byte_": 1.0},
        per_feature={"call_s_": 0.0, "s_per_tensor_": 0.0, "s_per_byte_": -1.0},
        scaled_column=1,
    )
]
