"""Bytes of an item of every tensor of a model, in its execution.

Under autocast matrix products and convolutions make items as narrow as activations, tables of embeddings
and losses items as wide as weights, and all else the widest that it reads.
"""

from __future__ import annotations

from collections.abc import Sequence

from calib.foundation.execution import ItemType
from calib.foundation.layers import ITEM_TYPES, LOSSES, LayerShape
from calib.foundation.operators import family_of
from calib.oracle.model.graph import INPUT
from calib.oracle.model.graph_layers import POOLS
from calib.oracle.model.spec import ModelSpec
from calib.oracle.once import once


def made_bytes(items: ItemType, shape: LayerShape, read: Sequence[int]) -> int:
    """Bytes of an item that a layer makes in the model's own type; `read` are those of its inputs."""
    if not items.mixed or family_of(shape.name) == "products":
        return items.activation_bytes
    of = shape.operator
    if of is None:
        whole = (*LOSSES, "embedding")
        # a CPU pools no bfloat16 in three dimensions
        pools = shape.kind in (*POOLS, "adaptive_avg_pool")
        if shape.kind in whole or (pools and len(shape.output_shape) > 3):
            return items.weight_bytes
        return max(read)
    own = [each for at, each in enumerate(read) if not of.type(at)]
    if family_of(of.base) != "norms" and (shape.parameter_shapes or not own):
        own.append(items.weight_bytes)
    return max(own, default=items.weight_bytes)


@once
def item_bytes(model: ModelSpec) -> dict[str, int]:
    """Of every tensor, by its name; of the input as of numbers."""
    found = {INPUT: model.items.weight_bytes}
    for layer in model.layers:
        made = made_bytes(model.items, layer.shape, [found[name] for name in layer.inputs])
        for place, name in enumerate(layer.outputs):
            found[name] = ITEM_TYPES.get(layer.shape.output_type(place), made)
    return found
