"""Data: (B/p) sum(FW + BW) + sum(WU) + AR(p, W), and packing around the allreduce (formulas.md).

Every PE has all weights and B/p samples; gradients travel in one flat buffer after the backward, as
the paper's framework did. Layers are taken at the batch that a rank runs, not scaled by 1/p.
"""

from __future__ import annotations

from foundation.layers import DTYPE_BYTES
from oracle.costs import Costs, add
from oracle.memory import replicated_bytes
from oracle.model import ModelSpec, tensors_key
from oracle.projection import PhaseTime
from oracle.strategies import serial


def phases(model: ModelSpec, p: int, batch_per_pe: int, costs: Costs) -> dict[str, PhaseTime]:
    """Seconds per iteration; on one PE nothing is packed or exchanged, as in serial training."""
    if p == 1:
        return serial.phases(model, p, batch_per_pe, costs)
    shapes = model.parameter_shapes
    nbytes = DTYPE_BYTES["float32"] * model.parameter_items
    loops = {
        operation: costs.in_place(
            operation, costs.loop(operation, tensors_key(shapes), len(shapes), nbytes), 0, nbytes
        )
        for operation in ("pack", "unpack")
    }
    exchange = costs.in_place("exchange", costs.allreduce(p, nbytes), 0, nbytes)
    return serial.compute_phases(model, batch_per_pe, costs) | {
        "pack": add(loops.values()),
        "exchange": exchange,
    }


def memory(model: ModelSpec, p: int, batch_per_pe: int) -> dict[str, int]:
    """As serial with B/p samples, and the flat buffer of the exchange."""
    parts = replicated_bytes(model, batch_per_pe)
    return parts | ({"exchange": parts["gradients"]} if p > 1 else {})


def limits(model: ModelSpec, p: int, batch_per_pe: int) -> list[str]:
    """p <= B holds by construction: every PE has at least one sample."""
    return []
