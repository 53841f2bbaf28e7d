"""Bytes that a configuration of a layer takes on the device that holds most of it.

The naive sum of formulas.md, "Memory per PE" (oracle/memory.py): values and gradients of what the part
reads and computes, its weights and gradients, the optimizer's state, and the buffer of an exchange. A
plan takes the sum over its layers, each by its largest part: device 0 has a part of every layer.
"""

from __future__ import annotations

import numpy as np

from foundation.layers import LayerShape
from oracle.memory import naive_parts
from oracle.partitions import Configuration
from oracle.search.layerwise.layouts import Layout
from oracle.strategies.common import DELTA


def largest(boxes: Layout) -> list[float]:
    """Items of the largest box of each configuration."""
    return [float(n) for n in np.prod(boxes.hi - boxes.lo, axis=1, dtype=np.float64).max(1)]


def layer_bytes(
    shape: LayerShape, part: LayerShape, of: Configuration, batch: int, read: float, optimizer: str
) -> int:
    """Of the largest part, `part`, that reads `read` items; a view has no tensor."""
    if shape.is_free:
        return 0
    parameters = shape.parameter_shapes
    weights = part.parameter_items
    if of.input > 1 and len(parameters) > 1:  # the biases of what it has in the end
        weights += parameters[1][0] // (of.channel * of.input)
    shared = of.parts > of.channel * of.input and weights > 0
    computed = batch // of.sample * part.output_items
    found = naive_parts(read + computed, DELTA * weights, shared, optimizer)
    return sum(found.values())
