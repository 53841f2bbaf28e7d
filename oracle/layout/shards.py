"""What a rank runs under each strategy: the shape of every layer's part. Pure geometry, no torch.

The rules are those of formulas.md ("ParaDL, per iteration" and "PE limits"). Measurement, prediction
and training all split layers by this file.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

from calib.foundation.division import CutWhat, Division
from calib.foundation.errors import InputError
from calib.foundation.layers import LayerShape, Shape, split_sizes
from calib.oracle.layout.cuts import Cut, Passed, linear_weights, part_of
from calib.oracle.layout.grids import best_grid, why_no_grid
from calib.oracle.layout.region_tokens import token_parts
from calib.oracle.layout.regions import Narrowest, narrowest_cut, region_cuts
from calib.oracle.layout.sequence import sequence_limit, sequence_parts
from calib.oracle.layout.spatial import first_whole_layer, part_sizes, reads_beyond, spatial_part
from calib.oracle.layout.tokens import NO_PARTS, TokenParts, narrowest_tokens
from calib.oracle.layout.units import model_units
from calib.oracle.model.layer import Layer
from calib.oracle.model.spec import ModelSpec
from calib.oracle.once import once, once_per_geometry

WEIGHTED = ("conv", "linear")


@dataclass(frozen=True)
class Shard:
    """A layer as a rank runs it; `split`: it is a part of the model's layer."""

    name: str
    layer: LayerShape
    batch: int
    needs_input_grad: bool
    split: bool


def possible_division(model: ModelSpec, division: Division) -> Division:
    """`fitted`, if the model can be divided so.

    Raises
    ------
    InputError
        It cannot: the limit on ranks and its reason.
    """
    found = fitted(model, division)
    require_possible(model, found)
    return found


def fitted(model: ModelSpec, division: Division) -> Division:
    """The division with the best grid for a model's images, unless one was chosen."""
    if division.traits.cuts == "image" and not division.grid:
        return replace(division, grid=best_grid(model, division.parts, division.split_until))
    return division


def require_possible(model: ModelSpec, division: Division) -> None:
    """Raise InputError with the reason if the model cannot be divided so."""
    reasons = why_impossible(model, division)
    if reasons:
        raise InputError(reasons[0])


def why_impossible(model: ModelSpec, division: Division) -> list[str]:
    """Why the model cannot be divided so, with the rank limit; empty if it can."""
    if division.faults:
        return division.faults
    if model.is_profiled and division.p > 1 and not division.traits.whole:
        return [
            f"{division.strategy} of {model.name}: it was profiled as one layer, and has no parts"
        ]
    if not division.traits.stages:
        return _why_no_parts(model, division)
    if division.p > len(model.layers):
        return [
            f"pipeline parallelism of {model.name} on p = {division.p}: it has only "
            f"{len(model.layers)} layers, one for each stage"
        ]
    return why_no_layers(model, "", division.boundaries)


def why_no_layers(model: ModelSpec, split_until: str, boundaries: tuple[int, ...]) -> list[str]:
    """Names and numbers of layers that the model does not have; empty if it has all."""
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
    """Why the layers cannot be split into so many parts; empty if they can."""
    if division.parts == 1:
        return []
    if division.traits.cuts == "image":
        return why_no_layers(model, division.split_until, ()) or why_no_grid(
            model, division.cells, division.split_until
        )
    if division.traits.cuts in ("regions", "tokens"):
        return (_why_no_regions if division.traits.cuts == "regions" else _why_no_tokens)(
            model, division
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
        f"{name} has only {width} {division.traits.cuts}, so {p2} is at most {width}"
    ]


def _why_no_regions(model: ModelSpec, division: Division) -> list[str]:
    """Why the regions cannot be cut into so many equal parts; empty if they can."""
    found = narrowest_cut(model)
    if found is None:
        return [
            f"{model.name} has nothing that {division.strategy} parallelism could divide: no linear "
            "layer ends what another begins, head by head or feature by feature"
        ]
    p = "p2" if division.traits.hybrid else "p"
    mark = " with sequence parallelism" if division.cuts_tokens else ""
    of = f"{division.strategy} parallelism{mark} of {model.name} on {p} = {division.parts}"

    def why_no_divisor(found: Narrowest, what: str) -> list[str]:
        if found.allows(division.parts):
            return []
        most = f"{found.common} and divides {found.common}"
        most = str(found.fewest) if found.filled else most
        return [f"{of}: {found.name} has {found.fewest} {what}, so {p} is at most {most}"]

    reasons = why_no_divisor(found, "heads or features")
    if not division.cuts_tokens:
        return reasons
    tokens = narrowest_tokens(model, token_parts(model))
    if tokens is None:
        return [
            f"sequence parallelism of {model.name}: no region ends with a tensor that has tokens "
            "beside samples and features"
        ]
    return reasons + why_no_divisor(tokens, "tokens")


def _why_no_tokens(model: ModelSpec, division: Division) -> list[str]:
    """Why tokens and heads cannot be cut into so many parts; empty if they can."""
    found = sequence_limit(model)
    if found is None:
        return [
            f"{model.name} has nothing that {division.strategy} parallelism could divide: no attention "
            "whose heads and tokens can be told apart"
        ]
    if found.tokens.allows(division.parts) and found.heads.allows(division.parts):
        return []
    return [
        f"{division.strategy} parallelism of {model.name} on p = {division.parts}: {found.why}, so p is "
        f"at most {found.most}"
    ]


@once
def narrowest(model: ModelSpec, cuts: CutWhat) -> tuple[int, str] | None:
    """Width and name of the layer that limits p of filter or channel; None if none is split."""
    layers = [model.layers[place] for place in weighted_places(model, cuts)]
    return min(((_width(layer.shape, cuts), layer.name) for layer in layers), default=None)


def split_layers(model: ModelSpec, division: Division) -> list[Layer]:
    """The layers that the strategy splits, in order; every rank has the others whole.

    spatial: all up to the first that cannot be split; filter: convolutions and fully connected layers;
    channel: the same but the first (an image has 3 channels). Grouped convolutions stay whole, as do
    layers that share weights, and operators. tensor and sequence: all that regions.py and sequence.py
    find, and tensor with sequence parallelism also what region_tokens.py does.
    """
    return [model.layers[place] for place in split_places(model, division)]


def last_split(model: ModelSpec, division: Division) -> str:
    """The name of the last layer that a spatial strategy splits; "" for other strategies."""
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
    if division.traits.cuts in ("regions", "tokens"):
        return sorted(_cuts(model, division))
    return weighted_places(model, division.traits.cuts)


def _cuts(model: ModelSpec, division: Division) -> dict[int, Passed]:
    """How layers are cut by tensor and sequence, by their places."""
    inside = region_cuts(model) if division.traits.cuts == "regions" else {}
    return {**inside, **parts_of_tokens(model, division).passed}


def parts_of_tokens(model: ModelSpec, division: Division) -> TokenParts:
    """What the ranks have parts of the tokens of; nothing where a strategy cuts none."""
    if division.cuts_tokens:
        return token_parts(model)
    by_heads = sequence_parts(model) if division.traits.cuts == "tokens" else None
    return by_heads or NO_PARTS


@once
def weighted_places(model: ModelSpec, cuts: CutWhat) -> Sequence[int]:
    """The indices of the layers that filter or channel splits, on any number of ranks."""
    layers = model.layers
    weighted = [index for index, layer in enumerate(layers) if layer.shape.kind in WEIGHTED]
    if cuts == "channels":
        weighted = weighted[1:]
    return [
        index
        for index in weighted
        if layers[index].shape.attributes.get("groups", 1) == 1
        and layers[index].name not in model.tied_layers
    ]


def split_flags(model: ModelSpec, division: Division) -> tuple[bool, ...]:
    """For every layer, whether the strategy splits it."""
    chosen = set(split_places(model, division))
    return tuple([index in chosen for index in range(len(model.layers))])


@once_per_geometry
def saving_late(model: ModelSpec, division: Division) -> frozenset[int]:
    """The layers whose parts save x when they have run, with the halo that they joined to it.

    They are convolutions, and run again where a checkpointed region ends with one
    (training/split/spatial_layers.py).
    """
    if division.traits.cuts != "image":
        return frozenset()
    shapes = {place: model.layers[place].shape for place in split_places(model, division)}
    return frozenset(
        place
        for place, shape in shapes.items()
        if shape.kind == "conv" and reads_beyond(shape, division.cells)
    )


def rank_shards(model: ModelSpec, division: Division) -> list[Shard]:
    """Every layer as the ranks run it, in order, without free ones.

    Unequal parts give one shard for each distinct size, the largest first. Raises InputError if the
    model cannot be divided so.
    """
    require_possible(model, division)
    largest = largest_parts(model, division)
    return [
        Shard(layer.name, part, division.local_batch, layer.needs_input_grad, place in largest)
        for place, layer in enumerate(model.layers)
        if not layer.shape.is_free
        for part in (
            _parts(layer.shape, largest[place], division) if place in largest else [layer.shape]
        )
    ]


def _parts(shape: LayerShape, largest: LayerShape, division: Division) -> list[LayerShape]:
    """The distinct parts of a split layer, the largest first."""
    cuts = division.traits.cuts
    if cuts in ("regions", "tokens"):
        return [largest]
    if cuts == "image":
        sizes = part_sizes(shape, division.cells)
        distinct = itertools.product(*(sorted(set(along), reverse=True) for along in sizes))
        return [spatial_part(shape, lengths) for lengths in distinct]
    part = channel_part if cuts == "channels" else filter_part
    widths = split_sizes(_width(shape, cuts), division.parts)
    return [part(shape, width) for width in sorted(set(widths), reverse=True)]


@once_per_geometry
def largest_parts(model: ModelSpec, division: Division) -> dict[int, LayerShape]:
    """The largest part of every split layer, which the other ranks wait for, by the layer's place.

    Equal parts of equal layers are one object.
    """
    parts: dict[tuple[object, ...], LayerShape] = {}
    found: dict[int, LayerShape] = {}
    what = division.traits.cuts
    cuts = _cuts(model, division) if what in ("regions", "tokens") else {}
    for place in split_places(model, division):
        key = model.alike[place], cuts.get(place)
        if key not in parts:
            shape = model.layers[place].shape
            if not cuts:
                parts[key] = _largest_part(shape, division)
            else:
                cut = region_part if what == "regions" else part_of
                parts[key] = cut(shape, cuts[place], division.parts)
        found[place] = parts[key]
    return found


def _largest_part(shape: LayerShape, division: Division) -> LayerShape:
    cuts = division.traits.cuts
    if cuts == "image":
        whole = shape.output_shape[1:]
        return spatial_part(shape, tuple(map(_largest, whole, division.cells)))
    part = channel_part if cuts == "channels" else filter_part
    return part(shape, _largest(_width(shape, cuts), division.parts))


def _largest(n: int, parts: int) -> int:
    """The first of `split_sizes`."""
    return -(-n // parts)


def _width(shape: LayerShape, cuts: CutWhat) -> int:
    """C (channels, input features) or F (filters, output features) of a weighted layer."""
    tensor = shape.input_shapes[0] if cuts == "channels" else shape.output_shape
    return tensor[0 if shape.kind == "conv" else -1]


def filter_part(shape: LayerShape, filters: int) -> LayerShape:
    """A convolution or fully connected layer with `filters` of its filters and their biases."""
    weight, *bias = shape.parameter_shapes
    whole = shape.output_shape
    output = (filters, *whole[1:]) if shape.kind == "conv" else (*whole[:-1], filters)
    parameters = ((filters, *weight[1:]), *((filters,) for _ in bias))
    return shape.model_copy(update={"output_shape": output, "parameter_shapes": parameters})


def channel_part(shape: LayerShape, channels: int) -> LayerShape:
    """The layer on `channels` of its input channels, without bias, which is added after the sum."""
    weight = shape.parameter_shapes[0]
    whole = shape.input_shapes[0]
    inputs = (channels, *whole[1:]) if shape.kind == "conv" else (*whole[:-1], channels)
    parameters = ((weight[0], channels, *weight[2:]),)
    return shape.model_copy(update={"input_shapes": (inputs,), "parameter_shapes": parameters})


def region_part(shape: LayerShape, passed: Passed, parts: int) -> LayerShape:
    """A layer on one of `parts` parts; one that ends a region has no bias, added after the sum."""
    part, of = part_of(shape, passed, parts), linear_weights(shape)
    if of is None:
        return part
    held, is_row = [*shape.parameter_shapes], passed.inputs[0] is not None
    weight = Cut(of.inputs if is_row else of.outputs).part(held[of.place], parts)
    if not is_row:
        held = [Cut(0).part(each, parts) if len(each) == 1 else weight for each in held]
        return part.model_copy(update={"parameter_shapes": tuple(held)})
    changes: dict[str, Any] = {"parameter_shapes": (weight,)}
    if len(held) > 1 and part.operator is not None:
        name = "aten.mm.default" if part.operator.base == "addmm" else part.operator.name
        call = {"name": name, "arguments": json.dumps([{"input": 0}, {"parameter": 0}])}
        changes["operator"] = part.operator.model_copy(update=call)
    return part.model_copy(update=changes)


def biases(shape: LayerShape) -> tuple[Shape, ...]:
    """Of a convolution or linear layer: what is added after the sum of terms, whole on every rank."""
    return tuple([of for of in shape.parameter_shapes if len(of) == 1])


def partial_parameters(model: ModelSpec, division: Division) -> tuple[Shape, ...]:
    """Of weights whose gradients are parts of a sum over the ranks, each of its tokens.

    Those of layers that run on parts of the tokens, and biases that are added to such parts.
    """
    if not division.cuts_tokens:
        return ()
    found, layers = token_parts(model), model.layers
    of = {at: layers[at].shape.parameter_shapes for at in found.passed}
    of |= {at: biases(layers[at].shape) for at in found.scattered}
    return tuple([shape for at in sorted(of) for shape in of[at]])


def rank_parameters(model: ModelSpec, division: Division) -> tuple[Shape, ...]:
    """Shapes of the weights and biases of the rank that holds most, as its optimizer sees them.

    channel, and the rows of tensor: every rank adds the biases after the exchange and holds them whole.
    pipeline: the weights of all stages, as the stages depend on the balance. fully_sharded: a flat
    shard of each unit.
    """
    if division.shards:
        return tuple([(unit.shard_items(division.p),) for unit in model_units(model)])
    if division.parts == 1 or division.traits.replicated:
        return model.parameter_shapes
    held = [layer.own_parameters for layer in model.layers]
    for place, part in largest_parts(model, division).items():
        whole, cut = model.layers[place].shape, part.parameter_shapes
        added = biases(whole) if len(cut) < len(whole.parameter_shapes) else ()
        held[place] = (*cut, *added)
    return tuple([shape for of in held for shape in of])
