"""What a rank runs under each strategy: the shape of every layer's part. Pure geometry, no torch.

The rules are those of formulas.md ("ParaDL, per iteration" and "PE limits"). Measuring, predicting
and training split layers by this file, so that they mean the same part.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from itertools import pairwise

from foundation.errors import InputError
from foundation.layers import LayerShape, split_sizes
from oracle.division import HYBRIDS, SPATIAL, Division
from oracle.grids import best_grid, why_no_grid
from oracle.model import Layer, ModelSpec
from oracle.spatial import first_whole_layer, part_sizes, spatial_part

WEIGHTED = ("conv", "linear")


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
    """The division of a model; images are cut along the height where that does not end the split early.

    Raises InputError with the PE limit and the reason where the model cannot be divided so.
    """
    found = fitted(model, Division(strategy, p, batch, inner, segments))
    require_possible(model, found)
    return found


def fitted(model: ModelSpec, division: Division) -> Division:
    """The same, with the layout of a model's parts where none but the default one was chosen."""
    if division.strategy in SPATIAL and division.grid == (division.parts,):
        return replace(division, grid=best_grid(model, division.parts, division.split_until))
    return division


def require_possible(model: ModelSpec, division: Division) -> None:
    """Raise InputError with the reason where the model cannot be divided so."""
    reasons = why_impossible(model, division)
    if reasons:
        raise InputError(reasons[0])


def why_impossible(model: ModelSpec, division: Division) -> list[str]:
    """Why the model cannot be divided so, with the PE limit; empty where it can."""
    if division.faults:
        return division.faults
    key = ("why", division.geometry)
    if key not in model.cache:
        model.cache[key] = _why_no_parts(model, division)
    reasons = list(model.cache[key])
    if division.strategy == "pipeline":
        reasons += _why_no_stages(model, division)
    return reasons


def _why_no_stages(model: ModelSpec, division: Division) -> list[str]:
    """Why a pipeline cannot have these stages."""
    if division.p > len(model.layers):
        return [
            f"pipeline parallelism of {model.name} on p = {division.p}: it has only "
            f"{len(model.layers)} layers, one for each stage"
        ]
    borders = (0, *division.boundaries, len(model.layers))
    if any(a >= b for a, b in pairwise(borders)):
        return [f"stage boundaries {division.boundaries} of {model.name} leave a stage empty"]
    return []


def _why_no_parts(model: ModelSpec, division: Division) -> list[str]:
    """Why no layer, or not every layer, can be split into so many parts."""
    if division.parts == 1:
        return []
    if division.strategy in SPATIAL:
        names = [layer.name for layer in model.layers]
        if division.split_until and division.split_until not in names:
            return [f"{model.name} has no layer {division.split_until!r} where the split could end"]
        return why_no_grid(model, division.grid, division.split_until)
    split = split_layers(model, division)
    if not split:
        return [f"{model.name} has no layer that {division.strategy} could split"]
    axis = _axis(division)
    narrow = min(split, key=lambda layer: _width(layer.shape, axis))
    width = _width(narrow.shape, axis)
    if division.parts <= width:
        return []
    p2 = "p2" if division.strategy in HYBRIDS else "p"
    return [
        f"{division.strategy} parallelism of {model.name} on {p2} = {division.parts}: "
        f"{narrow.name} has only {width} {axis}s, so {p2} is at most {width}"
    ]


def _axis(division: Division) -> str:
    return "channel" if division.strategy == "channel" else "filter"


def narrowest(model: ModelSpec, strategy: str) -> tuple[str, int] | None:
    """Name and width of the layer that limits p of filter or channel; None where none is split."""
    division = Division(strategy, 2, 2, 2)
    axis = _axis(division)
    split = split_layers(model, division)
    widths = [(_width(layer.shape, axis), layer.name) for layer in split]
    return min(widths)[::-1] if widths else None


def split_layers(model: ModelSpec, division: Division) -> list[Layer]:
    """The layers that the strategy splits, in order; the others are whole on every PE.

    spatial: all until the first that cannot be; filter: convolutions and fully connected layers;
    channel: those from the second on (an image has 3 channels). Grouped convolutions are whole.
    """
    if division.parts == 1:
        return []
    kind, _, grid, until = division.geometry
    key = ("split layers", kind, grid, until)  # of filter and channel the same for all p
    if key not in model.cache:
        model.cache[key] = _split_layers(model, division)
    found: list[Layer] = model.cache[key]
    return found


def _split_layers(model: ModelSpec, division: Division) -> list[Layer]:
    if division.strategy in SPATIAL:
        return list(model.layers[: _split_end(model, division)])
    weighted = [layer for layer in model.layers if layer.shape.kind in WEIGHTED]
    if division.strategy == "channel":
        weighted = weighted[1:]
    return [layer for layer in weighted if layer.shape.attributes.get("groups", 1) == 1]


def _split_end(model: ModelSpec, division: Division) -> int:
    """How many layers a spatial strategy splits: all that can be, or until the one that was named."""
    key = ("split end", division.geometry)
    if key not in model.cache:
        possible = first_whole_layer(model, division.grid)
        names = [layer.name for layer in model.layers]
        if division.split_until in names:
            possible = min(possible, names.index(division.split_until) + 1)
        model.cache[key] = possible
    found: int = model.cache[key]
    return found


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


def largest_part(shape: LayerShape, division: Division) -> LayerShape:
    """The part of a split layer that takes longest: that of the rank the others wait for."""
    if division.strategy in SPATIAL:
        return spatial_part(shape, tuple(sizes[0] for sizes in part_sizes(shape, division.grid)))
    return _parts(shape, division)[0]


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
        weight, *bias = shape.parameter_shapes
        if division.strategy == "channel":
            shapes += [(weight[0], split_sizes(weight[1], division.parts)[0], *weight[2:]), *bias]
        else:
            filters = split_sizes(weight[0], division.parts)[0]
            shapes += [(filters, *weight[1:]), *((filters,) for _ in bias)]
    return tuple(shapes)
