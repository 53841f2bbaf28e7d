"""What a rank runs under each strategy: the shape of every layer's part. Pure geometry, no torch.

The rules are those of formulas.md ("ParaDL, per iteration" and "PE limits"). Measuring, predicting
and training split layers by this file, so that they mean the same part.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import pairwise

from calib.foundation.division import Cut, Division
from calib.foundation.errors import InputError
from calib.foundation.layers import LayerShape, Shape, split_sizes
from calib.oracle.layout.grids import best_grid, why_no_grid
from calib.oracle.layout.spatial import first_whole_layer, part_sizes, spatial_part
from calib.oracle.model.layer import Layer
from calib.oracle.model.spec import ModelSpec
from calib.oracle.once import once, once_per_geometry

WEIGHTED = ("conv", "linear")


@dataclass(frozen=True)
class Shard:
    """A layer as a rank runs it. `split` says whether `layer` is a part of the model's layer."""

    name: str
    layer: LayerShape
    batch: int
    needs_input_grad: bool
    split: bool


def possible_division(model: ModelSpec, division: Division) -> Division:
    """Fit a division to a model; images are cut along their height unless that ends the split early.

    Raises
    ------
    InputError
        The model cannot be divided so: the limit on ranks, and its reason.
    """
    found = fitted(model, division)
    require_possible(model, found)
    return found


def fitted(model: ModelSpec, division: Division) -> Division:
    """The same, with the best layout of a model's parts where none was chosen."""
    if division.traits.cuts == "image" and not division.grid:
        return replace(division, grid=best_grid(model, division.parts, division.split_until))
    return division


def require_possible(model: ModelSpec, division: Division) -> None:
    """Raise InputError with the reason where the model cannot be divided so."""
    reasons = why_impossible(model, division)
    if reasons:
        raise InputError(reasons[0])


def why_impossible(model: ModelSpec, division: Division) -> list[str]:
    """Why the model cannot be divided so, with the rank limit; empty where it can."""
    if division.faults:
        return division.faults
    reasons = _why_no_parts(model, division)
    if division.traits.stages:
        reasons += _why_no_stages(model, division)
    return reasons


def _why_no_stages(model: ModelSpec, division: Division) -> list[str]:
    """Why a pipeline cannot have these stages."""
    if division.p > len(model.layers):
        return [
            f"pipeline parallelism of {model.name} on p = {division.p}: it has only "
            f"{len(model.layers)} layers, one for each stage"
        ]
    return why_no_layers(model, "", division.boundaries)


def why_no_layers(model: ModelSpec, split_until: str, boundaries: tuple[int, ...]) -> list[str]:
    """What names a layer that the model does not have, by its name or its number; empty: nothing."""
    if not split_until and not boundaries:
        return []
    names = [layer.name for layer in model.layers]
    if split_until and split_until not in names:
        near = get_close_matches(split_until, names, n=3)
        guess = f"did you mean {', '.join(near)}?" if near else f"it has {names[0]} to {names[-1]}"
        return [f"split_until {split_until!r}: {model.name} has no such layer; {guess}"]
    if any(a >= b for a, b in pairwise((0, *boundaries, len(names)))):
        return [
            f"stage boundaries {','.join(map(str, boundaries))}: numbers must rise from 1 to "
            f"{len(names) - 1} ({model.name} has {len(names)} layers, the first is 0)"
        ]
    return []


def _why_no_parts(model: ModelSpec, division: Division) -> list[str]:
    """Why no layer, or not every layer, can be split into so many parts."""
    if division.parts == 1:
        return []
    if division.traits.cuts == "image":
        return why_no_layers(model, division.split_until, ()) or why_no_grid(
            model, division.cells, division.split_until
        )
    found = narrowest(model, division.traits.cuts)
    if found is None:
        return [f"{model.name} has no layer that {division.strategy} could split"]
    width, name = found
    if division.parts <= width:
        return []
    p2 = "p2" if division.traits.hybrid else "p"
    return [
        f"{division.strategy} parallelism of {model.name} on {p2} = {division.parts}: "
        f"{name} has only {width} {_axis(division)}s, so {p2} is at most {width}"
    ]


def _axis(division: Division) -> str:
    return "channel" if division.traits.cuts == "channels" else "filter"


@once
def narrowest(model: ModelSpec, cuts: Cut) -> tuple[int, str] | None:
    """Width and name of the layer that limits p of filter or channel; None where none is split."""
    axis = "channel" if cuts == "channels" else "filter"
    layers = [model.layers[place] for place in weighted_places(model, cuts)]
    return min(((_width(layer.shape, axis), layer.name) for layer in layers), default=None)


def split_layers(model: ModelSpec, division: Division) -> list[Layer]:
    """The layers that the strategy splits, in order; the others are whole on every rank.

    spatial: all until the first that cannot be; filter: convolutions and fully connected layers;
    channel: those from the second on (an image has 3 channels). Grouped convolutions are whole.
    """
    return [model.layers[place] for place in split_places(model, division)]


def last_split(model: ModelSpec, division: Division) -> str:
    """The name of the last layer that a spatial strategy splits; "" of others."""
    cut = division.traits.cuts == "image" and division.parts > 1
    return model.layers[split_places(model, division)[-1]].name if cut else ""


@once_per_geometry
def split_places(model: ModelSpec, division: Division) -> Sequence[int]:
    """The indices of `split_layers`."""
    if division.parts == 1:
        return ()
    if division.traits.cuts == "image":
        end = first_whole_layer(model, division.cells)
        named = (n for n, layer in enumerate(model.layers, 1) if layer.name == division.split_until)
        return range(min(end, next(named, end)))
    return weighted_places(model, division.traits.cuts)


@once
def weighted_places(model: ModelSpec, cuts: Cut) -> Sequence[int]:
    """The indices of the layers that filter or channel splits, on however many ranks."""
    shapes = [layer.shape for layer in model.layers]
    weighted = [index for index, shape in enumerate(shapes) if shape.kind in WEIGHTED]
    if cuts == "channels":
        weighted = weighted[1:]
    return [index for index in weighted if shapes[index].attributes.get("groups", 1) == 1]


def split_flags(model: ModelSpec, division: Division) -> tuple[bool, ...]:
    """Of every layer, whether it is one of `split_layers`."""
    chosen = set(split_places(model, division))
    return tuple([index in chosen for index in range(len(model.layers))])


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
    if division.traits.cuts == "image":
        sizes = part_sizes(shape, division.cells)
        distinct = itertools.product(*(sorted(set(along), reverse=True) for along in sizes))
        return [spatial_part(shape, lengths) for lengths in distinct]
    if division.traits.cuts == "channels":
        widths = split_sizes(_width(shape, "channel"), division.parts)
        return [channel_part(shape, width) for width in sorted(set(widths), reverse=True)]
    widths = split_sizes(_width(shape, "filter"), division.parts)
    return [filter_part(shape, width) for width in sorted(set(widths), reverse=True)]


def largest_part(shape: LayerShape, division: Division) -> LayerShape:
    """The part of a split layer that takes longest: that of the rank the others wait for."""
    if division.traits.cuts == "image":
        whole = shape.output_shape[1:]
        return spatial_part(shape, tuple(map(_largest, whole, division.cells)))
    axis = _axis(division)
    part = channel_part if axis == "channel" else filter_part
    return part(shape, _largest(_width(shape, axis), division.parts))


def _largest(n: int, parts: int) -> int:
    """The first of `split_sizes`."""
    return -(-n // parts)


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


def rank_parameters(model: ModelSpec, division: Division) -> tuple[Shape, ...]:
    """Shapes of the weights and biases of the rank that holds most, as its optimizer sees them.

    channel: every rank adds the biases after the exchange, so each holds them whole. A pipeline's
    stage holds its own layers, which depends on the balance: all of them stand here.
    """
    if division.parts == 1 or division.traits.cuts == "image":
        return model.parameter_shapes
    # equal layers have equal parts
    layers = list(zip(model.alike, split_flags(model, division), strict=True))
    parts = {
        (first, is_split): _parameters(model.layers[first].shape, division, is_split)
        for first, is_split in set(layers)
    }
    return tuple([shape for layer in layers for shape in parts[layer]])


def _parameters(shape: LayerShape, division: Division, is_split: bool) -> tuple[Shape, ...]:
    """The weights and biases of the largest part of a layer."""
    if not is_split:
        return shape.parameter_shapes
    weight, *bias = shape.parameter_shapes
    if division.traits.cuts == "channels":
        return ((weight[0], _largest(weight[1], division.parts), *weight[2:]), *bias)
    filters = _largest(weight[0], division.parts)
    return ((filters, *weight[1:]), *((filters,) for _ in bias))
