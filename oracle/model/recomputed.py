"""Checkpointed regions of a model: layers whose saved tensors are not kept, but made again.

torch.utils.checkpoint.checkpoint (use_reentrant=False) keeps what a region reads. When the backward
first needs a tensor that the region saved, it runs the region again, up to the last tensor that it
saves (early stop): a layer there that saves only what it reads is not run again, and nor is what is
behind it (_recomputation_hook in torch/utils/checkpoint.py). Of regions within one another the outermost
counts: what an inner one runs a third time is left out. A region that a pipeline's border divides is one
in each of its stages.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from calib.foundation.layers import LayerShape
from calib.oracle.model.layer import Layer
from calib.oracle.model.spec import ModelSpec
from calib.oracle.once import once

# what PyTorch's formulas save (oracle/memory/live_layers.py): of their inputs alone, or what they make
SAVES_INPUTS = frozenset(("conv", "linear", "embedding", "avg_pool"))
SAVES_RESULTS = frozenset(("batch_norm", "layer_norm", "relu", "softmax", "max_pool"))


class Region(NamedTuple):
    """Layers `first` to `end` - 1, of which those before `again` are run again.

    `saving` is the last layer that saves a tensor: the backward runs the region again when it comes to
    it. -1: none does, and nothing is run again.
    """

    name: str
    first: int
    end: int
    again: int
    saving: int


@once
def regions(model: ModelSpec, first: int = 0, end: int | None = None) -> tuple[Region, ...]:
    """The regions of layers `first` to `end` - 1, in order: those of the model, or their parts there."""
    found, place = list[Region](), first
    for name, of in itertools.groupby(model.layers[first:end], key=lambda layer: layer.recomputed):
        layers = list(of)
        if name:
            found.append(_region(name, place, layers))
        place += len(layers)
    return tuple(found)


@once
def run_again(
    model: ModelSpec, boundaries: tuple[int, ...] = (), late: frozenset[int] = frozenset()
) -> tuple[bool, ...]:
    """Of every layer whether the backward runs it again, in stages with these boundaries.

    Layers that save `late`, when they have run, are run again where others only say what they read.
    """
    found = [False] * len(model.layers)
    for first, end in itertools.pairwise((0, *boundaries, len(found))) if regions(model) else ():
        for of in regions(model, first, end):
            again = of.again + (of.saving in late and of.again == of.saving)
            found[of.first : again] = [True] * (again - of.first)
    return tuple(found)


@once
def read_again(model: ModelSpec) -> tuple[bool, ...]:
    """Of every layer whether what it reads is made again: the last that saves stops when it has it."""
    found = [False] * len(model.layers)
    for of in regions(model):
        found[of.first : of.saving + 1] = [True] * (of.saving + 1 - of.first)
    return tuple(found)


def checkpointed(model: ModelSpec) -> str:
    """That a model has layers that are run again, in words; "" if it has none."""
    found = [region.name for region in regions(model)]
    return f"{model.name} has checkpointed layers ({found[0]}), which run again" if found else ""


def _region(name: str, first: int, layers: list[Layer]) -> Region:
    for place in range(len(layers) - 1, -1, -1):
        of = layers[place]
        saved = saves(of.shape) if of.has_gradient else ""
        if saved:
            again = first + place + (saved == "results")
            return Region(name, first, first + len(layers), again, first + place)
    return Region(name, first, first + len(layers), first, -1)


def saves(shape: LayerShape) -> str:
    """What a layer saves for its backward: "inputs" alone, "results" (too), or nothing ("")."""
    of = shape.operator
    if of is not None:
        made = of.saved.output or any(of.saved.beside)
        return "results" if made else "inputs" if of.saved.inputs else ""
    if shape.kind == "dropout":
        return "results" if shape.attributes["probability"] else ""
    if shape.kind == "adaptive_avg_pool":  # to one value it is a mean, which saves nothing
        is_mean = all(size == 1 for size in shape.output_shape[1:])
        return "" if is_mean or shape.is_free else "inputs"
    if shape.kind in SAVES_RESULTS:
        return "results"
    return "inputs" if shape.kind in SAVES_INPUTS else ""
