"""Names of collective operations, shared by measuring, fitting and predicting."""

from __future__ import annotations

from typing import Literal

from calib.foundation.layers import ITEM_BYTES

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
# each rank has an equal part of m bytes
EQUAL_PARTS = ("allgather", "reduce_scatter", "all_to_all")


def sent_bytes(operation: str, nbytes: int, ranks: int) -> int:
    """Bytes m as they are sent: rounded up to whole items where each rank has an equal part."""
    if operation not in EQUAL_PARTS:
        return nbytes
    whole = ITEM_BYTES * ranks
    return -(-nbytes // whole) * whole
