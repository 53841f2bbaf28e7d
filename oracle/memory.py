"""Bytes per PE (formulas.md, "Memory per PE"): the naive sum, before any reuse (gamma = 1)."""

from __future__ import annotations

from foundation.layers import DTYPE_BYTES
from oracle.model import ModelSpec


def replicated_bytes(model: ModelSpec, batch_per_pe: int, dtype: str = "float32") -> dict[str, int]:
    """Bytes by part where every PE has all weights (serial, data).

    delta sum(2 B' (|x| + |y|)) activations with their gradients, delta sum(|w| + |bi|) weights, as
    much for their gradients, and as much for the state of SGD with momentum.
    """
    delta = DTYPE_BYTES[dtype]
    activations = sum(layer.shape.input_items + layer.shape.output_items for layer in model.layers)
    weights = delta * model.parameter_items
    return {
        "activations": 2 * delta * batch_per_pe * activations,
        "weights": weights,
        "gradients": weights,
        "optimizer": weights,
    }
