"""Layers of a known machine for the conformance suite: where work adds up, and where the slower counts.

Matrix products of M x N x K items: 2 MNK operations, and bytes of the three matrices.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from tests.fitting.estimators.example import Example

from calib.fitting.estimators.layers.roofline import Roofline

CALL_S, S_PER_FLOP, S_PER_BYTE, S_PER_FRESH_BYTE = 4e-6, 3e-11, 2e-10, 5e-10


def layer(m: float, n: float, k: float, taps: float = 1.0) -> list[float]:
    """Features of an M x N x K product; results of over 1e6 bytes are on fresh pages."""
    weights, out = 4 * n * k, 4 * m * n
    nbytes = 4 * m * k / taps + weights + out
    return [2 * m * n * k, nbytes, weights, 4 * m * k, out if out > 1e6 else 0.0]


SIZES = product((8.0, 96.0, 1100.0, 9000.0), (5.0, 60.0, 300.0), (6.0, 48.0, 700.0))
X = np.array([layer(m, n, k, taps=9.0 if m > 100 and k > 10 else 1.0) for m, n, k in SIZES])
REST = CALL_S + S_PER_FRESH_BYTE * X[:, 4]
OPERATIONS, MOVES = S_PER_FLOP * X[:, 0], S_PER_BYTE * X[:, 1]
TRUTH = {
    "call_s_": CALL_S,
    "s_per_flop_": S_PER_FLOP,
    "s_per_byte_": S_PER_BYTE,
    "s_per_fresh_byte_": S_PER_FRESH_BYTE,
}

EXAMPLES = [
    Example(
        name=f"roofline, {form}",
        make=Roofline,
        x=X,
        seconds=REST + both,
        truth=TRUTH,
        beyond=np.array([layer(90_000.0, 3000.0, 7000.0)]),
        below=np.array([layer(2.0, 1.0, 2.0)]),
        per_second=dict.fromkeys(TRUTH, 1.0),
        per_feature=dict.fromkeys(TRUTH, 0.0) | {"s_per_flop_": -1.0},
        scaled_column=0,
    )
    for form, both in (
        ("sum", OPERATIONS + MOVES),
        ("max", np.maximum(OPERATIONS, MOVES)),
        ("norm2", np.hypot(OPERATIONS, MOVES)),
    )
]
