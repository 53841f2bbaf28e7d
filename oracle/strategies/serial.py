"""Serial: B sum(FW + BW) + sum(WU) (formulas.md; ParaDL section 4.2)."""

from __future__ import annotations

from foundation.layers import DTYPE_BYTES
from oracle.costs import NOTHING, Costs, add
from oracle.memory import replicated_bytes
from oracle.model import ModelSpec, tensors_key
from oracle.projection import PhaseTime


def compute_phases(model: ModelSpec, batch: int, costs: Costs) -> dict[str, PhaseTime]:
    """Forward, backward and update of the whole model on one PE with `batch` samples."""
    layers = [layer for layer in model.layers if not layer.shape.is_free]
    delta = DTYPE_BYTES["float32"]
    activations = delta * batch * sum(layer.shape.output_items for layer in layers)
    shapes, nbytes = model.parameter_shapes, delta * model.parameter_items
    update = costs.loop("update", tensors_key(shapes), len(shapes), nbytes)
    phases = {
        phase: costs.in_place(
            phase,
            add(costs.layer(layer, batch, phase) for layer in layers),
            len(layers),
            activations,
        )
        for phase in ("forward", "backward")
    }
    phases["update"] = costs.in_place("update", update, 0, nbytes)
    return phases


def phases(model: ModelSpec, p: int, batch_per_pe: int, costs: Costs) -> dict[str, PhaseTime]:
    """Seconds per iteration on one PE."""
    return compute_phases(model, batch_per_pe, costs) | {"pack": NOTHING, "exchange": NOTHING}


def memory(model: ModelSpec, p: int, batch_per_pe: int) -> dict[str, int]:
    """Everything on one PE."""
    return replicated_bytes(model, batch_per_pe)


def limits(model: ModelSpec, p: int, batch_per_pe: int) -> list[str]:
    """One PE only."""
    return [] if p == 1 else [f"serial runs on 1 PE, not on {p}"]
