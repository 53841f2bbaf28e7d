"""The naive sum of bytes per rank (formulas.md, "Memory per PE").

2 B' delta sum(|x| + |y|) for activations and their gradients, 2 delta sum(|w| + |bi|) for weights and
their gradients, and the optimizer's state; a view (flatten) has no tensor of its own.
"""

from __future__ import annotations

from calib.fitting.parameters.memory import STATES
from calib.oracle.layout.stages import activations_before
from calib.oracle.model.spec import ModelSpec


def naive_parts(
    activations: int, weight_bytes: int, exchange: bool, optimizer: str, share: int = 1
) -> dict[str, int]:
    """Bytes by part. `activations`: as of `activation_bytes`; `weight_bytes`: |w| delta.

    `exchange`: whether it keeps a flat buffer of all gradients; `share`: ranks that share the
    optimizer's state.
    """
    parts = {
        "activations": activations,
        "weights": weight_bytes,
        "gradients": weight_bytes,
        "optimizer": -(-STATES[optimizer] * weight_bytes // share),
    }
    return parts | ({"exchange": weight_bytes} if exchange else {})


def activation_bytes(model: ModelSpec, items: float) -> int:
    """Bytes of a rank's B' sum(|x| + |y|) items, and of their gradients."""
    return round(2 * model.items.activation_bytes * items)


def replicated_parts(
    model: ModelSpec, samples: int, exchange: bool, optimizer: str, share: int = 1
) -> dict[str, int]:
    """Bytes by part if every rank has all weights and whole samples (serial, data)."""
    activations = activation_bytes(model, samples * activations_before(model)[-1])
    weights = model.items.weight_bytes * model.parameter_items
    parts = naive_parts(activations, weights, exchange, optimizer, share)
    return parts | {"weights": weights + model.items.weight_bytes * model.unused_items}
