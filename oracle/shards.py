"""What a rank runs under each strategy: the shape of every layer's part. Pure geometry, no torch.

The rules are those of formulas.md ("ParaDL, per iteration" and "PE limits"). Measuring, predicting
and training split layers by this file, so that they mean the same part.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from foundation.errors import InputError
from foundation.layers import LayerShape, split_sizes
from oracle.model import Layer, ModelSpec
from oracle.spatial import (
    best_grid,
    first_whole_layer,
    part_sizes,
    require_grid,
    spatial_part,
)

STRATEGIES = (
    "serial",
    "data",
    "spatial",
    "pipeline",
    "filter",
    "channel",
    "data+filter",
    "data+spatial",
)
SPATIAL, FILTER = ("spatial", "data+spatial"), ("filter", "data+filter")
WEIGHTED = ("conv", "linear")
HYBRIDS = ("data+filter", "data+spatial")


@dataclass(frozen=True)
class Division:
    """How a strategy divides training over p PEs; `batch` is the global mini-batch B.

    `inner` is p2, the PEs of a hybrid that share their samples (p1 = p / p2 such groups), `segments`
    is S of a pipeline. `grid` is the layout of the parts of an image, (rows,) or (rows, columns), of
    as many PEs as share it; without one the height alone is divided. Raises InputError.
    """

    strategy: str
    p: int
    batch: int
    inner: int = 1
    segments: int = 1
    grid: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise InputError(f"unknown strategy {self.strategy!r}; known: {', '.join(STRATEGIES)}")
        if min(self.p, self.batch, self.inner, self.segments) < 1:
            raise InputError("p, the batch, p2 and the segments must be at least 1")
        if self.strategy == "serial" and self.p > 1:
            raise InputError(f"serial runs on 1 PE, not on {self.p}")
        if self.strategy in HYBRIDS and self.p % self.inner:
            raise InputError(f"p = {self.p} is not p1 x p2 with p2 = {self.inner}")
        if self.strategy in SPATIAL and not self.grid:
            object.__setattr__(self, "grid", (self.parts,))
        if self.grid and math.prod(self.grid) != self.parts:
            raise InputError(f"grid {self.grid} is not a layout of {self.parts} PEs")
        if self.batch % self.replicas:
            what = "p" if self.strategy == "data" else "p1"
            raise InputError(
                f"{what} = {self.replicas} does not divide the batch of {self.batch} samples"
            )
        if self.strategy == "pipeline" and self.batch % self.segments:
            raise InputError(
                f"{self.segments} segments do not divide the batch of {self.batch} samples"
            )

    @property
    def replicas(self) -> int:
        """Groups of PEs with different samples: p1 of a hybrid, p of data, else 1."""
        return self.p // self.inner if self.strategy in (*HYBRIDS, "data") else 1

    @property
    def parts(self) -> int:
        """PEs that share a layer: p2 of a hybrid, p of spatial, filter and channel, else 1."""
        if self.strategy in HYBRIDS:
            return self.inner
        return self.p if self.strategy in ("spatial", "filter", "channel") else 1

    @property
    def local_batch(self) -> int:
        """Samples that a rank runs at once: B/p, B/p1, or B/S in a pipeline."""
        segments = self.segments if self.strategy == "pipeline" else 1
        return self.batch // (self.replicas * segments)


@dataclass(frozen=True)
class Shard:
    """A layer as a rank runs it. `split` says whether `layer` is a part of the model's layer."""

    name: str
    layer: LayerShape
    batch: int
    needs_input_grad: bool
    split: bool


def divide(
    model: ModelSpec, strategy: str, p: int, batch: int, inner: int = 1, segments: int = 1
) -> Division:
    """The division of a model; images are cut along the height where that is possible.

    Raises InputError with the PE limit and the reason where the model cannot be divided so.
    """
    found = Division(strategy, p, batch, inner, segments)
    if strategy in SPATIAL:
        found = Division(strategy, p, batch, inner, segments, best_grid(model, found.parts))
    require_possible(model, found)
    return found


def require_possible(model: ModelSpec, division: Division) -> None:
    """Raise InputError with the PE limit and the reason where the model cannot be divided so."""
    if division.strategy in SPATIAL:
        require_grid(model, division.grid)
    if division.strategy == "pipeline" and division.p > len(model.layers):
        raise InputError(
            f"pipeline parallelism of {model.name} on p = {division.p}: it has only "
            f"{len(model.layers)} layers, one for each stage"
        )
    if division.strategy in (*FILTER, "channel") and division.parts > 1:
        axis = "channel" if division.strategy == "channel" else "filter"
        split = split_layers(model, division)
        if not split:
            raise InputError(f"{model.name} has no layer that {division.strategy} could split")
        widths = {layer.name: _width(layer.shape, axis) for layer in split}
        narrow = min(widths, key=lambda name: widths[name])
        if division.parts > widths[narrow]:
            p2 = "p2" if division.strategy in HYBRIDS else "p"
            raise InputError(
                f"{division.strategy} parallelism of {model.name} on {p2} = {division.parts}: "
                f"{narrow} has only {widths[narrow]} {axis}s, so {p2} is at most {widths[narrow]}"
            )


def split_layers(model: ModelSpec, division: Division) -> list[Layer]:
    """The layers that the strategy splits, in order; the others are whole on every PE.

    spatial: all until the first that cannot be; filter: convolutions and fully connected layers;
    channel: those from the second on (an image has 3 channels). Grouped convolutions are whole.
    """
    if division.parts == 1:
        return []
    if division.strategy in SPATIAL:
        return list(model.layers[: first_whole_layer(model, division.grid)])
    weighted = [layer for layer in model.layers if layer.shape.kind in WEIGHTED]
    if division.strategy == "channel":
        weighted = weighted[1:]
    return [layer for layer in weighted if layer.shape.attributes.get("groups", 1) == 1]


def rank_shards(model: ModelSpec, division: Division) -> list[Shard]:
    """Every layer as the ranks run it, in order, without the free ones.

    Where parts are of unequal size, one shard for each distinct size, the largest first.
    Raises InputError where the model cannot be divided so.
    """
    require_possible(model, division)
    split = {layer.name for layer in split_layers(model, division)}
    return [
        Shard(layer.name, part, division.local_batch, layer.needs_input_grad, layer.name in split)
        for layer in model.layers
        if not layer.shape.is_free
        for part in (_parts(layer.shape, division) if layer.name in split else [layer.shape])
    ]


def _parts(shape: LayerShape, division: Division) -> list[LayerShape]:
    """The distinct parts of a split layer, the largest first."""
    if division.strategy in SPATIAL:
        sizes = part_sizes(shape, division.grid)
        distinct = itertools.product(*(sorted(set(along), reverse=True) for along in sizes))
        return [spatial_part(shape, lengths) for lengths in distinct]
    if division.strategy == "channel":
        widths = split_sizes(_width(shape, "channel"), division.parts)
        return [channel_part(shape, width) for width in sorted(set(widths), reverse=True)]
    widths = split_sizes(_width(shape, "filter"), division.parts)
    return [filter_part(shape, width) for width in sorted(set(widths), reverse=True)]


def _width(shape: LayerShape, axis: str) -> int:
    """F (filters, output features) or C (channels, input features) of a weighted layer."""
    if shape.kind == "conv":
        return shape.output_shape[0] if axis == "filter" else shape.input_shapes[0][0]
    return shape.output_shape[-1] if axis == "filter" else shape.input_shapes[0][-1]


def filter_part(shape: LayerShape, filters: int) -> LayerShape:
    """A convolution or fully connected layer with `filters` of its filters, and their biases."""
    weight, *bias = shape.parameter_shapes
    whole = shape.output_shape
    output = (filters, *whole[1:]) if shape.kind == "conv" else (*whole[:-1], filters)
    parameters = ((filters, *weight[1:]), *((filters,) for _ in bias))
    return shape.model_copy(update={"output_shape": output, "parameter_shapes": parameters})


def channel_part(shape: LayerShape, channels: int) -> LayerShape:
    """The layer on `channels` of its input channels; without bias, which is added after the sum."""
    weight = shape.parameter_shapes[0]
    whole = shape.input_shapes[0]
    inputs = (channels, *whole[1:]) if shape.kind == "conv" else (*whole[:-1], channels)
    parameters = ((weight[0], channels, *weight[2:]),)
    return shape.model_copy(update={"input_shapes": (inputs,), "parameter_shapes": parameters})


def rank_parameters(model: ModelSpec, division: Division) -> tuple[tuple[int, ...], ...]:
    """Shapes of the weights and biases of the rank that holds most, as its optimizer sees them.

    channel: every PE adds the biases after the exchange, so each holds them whole. A pipeline's
    stage holds its own layers, which depends on the balance: all of them stand here.
    """
    split = {layer.name for layer in split_layers(model, division)}
    shapes: list[tuple[int, ...]] = []
    for layer in model.layers:
        shape = layer.shape
        if layer.name not in split or division.strategy in SPATIAL:
            shapes += shape.parameter_shapes
            continue
        shapes += _parts(shape, division)[0].parameter_shapes
        if division.strategy == "channel":
            shapes += shape.parameter_shapes[1:]
    return tuple(shapes)
