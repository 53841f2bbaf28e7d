"""Allreduce on p ranks for the conformance suite: rings of one node, and trees between nodes of four."""

from __future__ import annotations

from functools import partial

import numpy as np
from tests.fitting.estimators.example import Example

from calib.fitting.estimators.collectives.structural_hockney import StructuralHockney
from calib.fitting.parameters.algorithms import features_of

SIZES = 2.0 ** np.arange(10, 25, 2)
# call, a byte inside the node, a step, a byte between ranks or nodes
FLAT = np.array([8e-6, 0.0, 2e-6, 1e-10])
LEVELS = np.array([3e-6, 5e-11, 9e-6, 2e-10])


def seconds(x: np.ndarray, algorithm: str, hierarchical: bool, law: np.ndarray) -> np.ndarray:
    """The law at rows (m, p, nodes)."""
    rows = [features_of("allreduce", algorithm, hierarchical, *row) for row in x.tolist()]
    result: np.ndarray = np.array(rows) @ law
    return result


NODE = np.array([[m, p, 1.0] for p in (2.0, 4.0, 8.0, 16.0) for m in SIZES])
NODES = np.array([[m, 4 * n, n] for n in (2.0, 4.0, 8.0, 16.0) for m in SIZES])
EXAMPLES = [
    Example(
        name="structural, ring",
        make=partial(StructuralHockney, "allreduce"),
        x=NODE,
        seconds=seconds(NODE, "ring", False, FLAT),
        truth={"bands_.coefficients": np.tile(FLAT, (len(SIZES), 1)), "ranks_": [2, 4, 8, 16]},
        beyond=np.array([[2.0**20, 64.0, 1.0]]),
        per_second={"bands_.coefficients": 1.0, "ranks_": 0.0, "held_out_error_": 0.0},
        per_feature={"bands_.nbytes": 1.0, "ranks_": 0.0, "held_out_error_": 0.0},
    ),
    Example(
        name="structural, trees between nodes",
        make=partial(StructuralHockney, "allreduce"),
        x=NODES,
        seconds=seconds(NODES, "tree", True, LEVELS),
        truth={"bands_.hierarchical": np.ones(len(SIZES)), "ranks_": [8, 16, 32, 64]},
        beyond=np.array([[2.0**20, 256.0, 64.0]]),
        # with a tree a byte costs the same whatever the nodes are: inside and between are one number
        per_second={"bands_.score": 0.0, "held_out_error_": 0.0},
        per_feature={"bands_.nbytes": 1.0, "held_out_error_": 0.0},
    ),
]
