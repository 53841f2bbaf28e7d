"""The names of collective operations: the common word of measuring, fitting and predicting."""

from __future__ import annotations

from typing import Literal

Operation = Literal[
    "p2p",
    "p2p_both",
    "allreduce",
    "allgather",
    "allgatherv",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "halo",
    "hierarchical_allreduce",
]
