"""Stages of a pipeline: contiguous runs of layers, and the tensors that cross between them.

Border g lies before layer g. Every tensor made before it and read after it crosses: the output of a
chain, and the skip connections of residual blocks and inceptions, which the stages in between pass on.
Each stage reads the model's input from the data set if it needs it, and a view (flatten) is the tensor
behind it.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from calib.foundation.division import Division
from calib.foundation.layers import Shape
from calib.foundation.operators import DIFFERENTIABLE
from calib.oracle.layout.item_bytes import item_bytes
from calib.oracle.layout.workload import Tensors, activation_items, tensors
from calib.oracle.model.spec import ModelSpec
from calib.oracle.once import once

# (first layer, first layer of the next stage) of every stage
Borders = list[tuple[int, int]]

# stages are balanced in integer ticks, so that equal stages compare equal
TICKS_PER_SECOND = 2.0**64


class Crossing(NamedTuple):
    """Items per sample of the tensors across a border: values forward, gradients backward.

    One message each. A tensor with no weights before it has no gradient.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]


def with_stages(
    division: Division, forward: Sequence[float], backward: Sequence[float]
) -> Division:
    """The division with boundaries balanced by the layers' seconds, unless it has some."""
    if division.p == 1 or division.boundaries:
        return division
    seconds = tuple(map(operator.add, forward, backward))
    return replace(division, boundaries=balanced(seconds, division.p))


def stage_borders(model: ModelSpec, boundaries: tuple[int, ...]) -> Borders:
    """(first layer, first layer of the next stage) of every stage."""
    return list(pairwise((0, *boundaries, len(model.layers))))


def stage_names(model: ModelSpec, boundaries: tuple[int, ...]) -> str:
    """The stages as first..last layer."""
    layers = model.layers
    return " | ".join(
        layers[a].name if b == a + 1 else f"{layers[a].name}..{layers[b - 1].name}"
        for a, b in stage_borders(model, boundaries)
    )


class TensorGraph(NamedTuple):
    """Where tensors are made and read.

    `place`: the index of the layer that makes each output; `sources`: the output whose tensor it is,
    another for a view; `borders`: the sources before each border that are read after it.
    """

    place: dict[str, int]
    sources: dict[str, str]
    borders: list[list[str]]


@once
def tensor_graph(model: ModelSpec) -> TensorGraph:
    """The graph of a model's tensors; a view of the model's input is its own source."""
    place: dict[str, int] = {}
    sources: dict[str, str] = {}
    last_read: dict[str, int] = {}
    for index, layer in enumerate(model.layers):
        read = [sources[name] for name in layer.inputs if name in place]
        last_read.update(dict.fromkeys(read, index))
        for name in layer.outputs:
            place[name] = index
            sources[name] = read[0] if layer.shape.is_free and read else name
    borders: list[list[str]] = [[] for _ in range(len(model.layers) + 1)]
    for name, index in place.items():
        for border in range(index + 1, last_read.get(name, index) + 1):
            borders[border].append(name)
    return TensorGraph(place, sources, borders)


class Sent(NamedTuple):
    """A tensor as it is sent: items of the activations' type per sample; whether a gradient returns."""

    items: int
    gradient: bool


@once
def sent_tensors(model: ModelSpec) -> dict[str, Sent]:
    """Every output that can be sent from stage to stage, by its name.

    What depends on no sample and has no gradient, as a mask or a first hidden state, each stage makes
    itself. What has no batch but a gradient counts for each sample.
    """
    found, each, wide = {}, model.items.activation_bytes, item_bytes(model)
    constant: set[str] = set()  # made of nothing, or of such alone
    for layer in model.layers[:-1]:
        of = layer.shape.operator
        fixed = of is not None and of.is_constant and not layer.shape.parameter_shapes
        if fixed and constant.issuperset(layer.inputs):
            constant.update(layer.outputs)
            continue
        for number, (name, shape) in enumerate(layer.outputs.items(), len(layer.inputs)):
            item = "" if of is None else of.type(number)
            gradient = layer.has_gradient and item in DIFFERENTIABLE
            if layer.shape.is_free or (of is not None and of.axis(number) == -1 and not gradient):
                continue
            nbytes = math.prod(shape) * wide[name]
            found[name] = Sent(-(-nbytes // each), gradient)
    return found


@once
def crossings(model: ModelSpec) -> tuple[Crossing, ...]:
    """The tensors across each border; none cross border 0, before the first layer."""
    same: dict[Crossing, Crossing] = {}
    found, known = [], sent_tensors(model)
    for sources in tensor_graph(model).borders[:-1]:
        sent = [known[name] for name in sources if name in known]  # the input is not sent
        crossing = Crossing(
            tuple([of.items for of in sent]), tuple([of.items for of in sent if of.gradient])
        )
        found.append(same.setdefault(crossing, crossing))
    return tuple(found)


@lru_cache(maxsize=256)
def balanced(seconds: tuple[float, ...], p: int) -> tuple[int, ...]:
    """The first layer of each later stage, so that the slowest of p stages is as fast as possible.

    `seconds` are those of each layer; p is at most their number. Exact: the bounds of the parametric
    search are always sums of layers (exact bisection of Pinar and Aykanat, "Fast optimal load balancing
    algorithms for 1D partitioning", 2004); each trial costs p log(layers).
    """
    ticks = [max(0, int(time * TICKS_PER_SECOND)) for time in seconds]
    sums = list(accumulate(ticks, initial=0))
    low = max(*ticks, -(-sums[-1] // p))
    # always enough: every stage then takes more than its share
    high = min(sums[-1], sums[-1] // p + max(ticks))
    trial = low  # with many stages, the slowest layer is the answer
    while low < high:
        ends = _filled(sums, trial, p)
        loads = [sums[b] - sums[a] for a, b in pairwise((0, *ends))]
        if ends[-1] == len(ticks):
            high = max(loads)
        else:  # no stage takes another layer below this limit
            low = min(load + ticks[end] for load, end in zip(loads, ends, strict=True))
        trial = (low + high) // 2
    ends = _filled(sums, high, p)
    ends += [len(ticks)] * (p - len(ends))
    # every stage needs a layer: those left over take one each, which is never too slow
    return tuple(
        min(end, len(ticks) - left) for left, end in zip(range(p - 1, 0, -1), ends, strict=False)
    )


def _filled(sums: Sequence[int], limit: int, p: int) -> list[int]:
    """Ends of at most p stages that each take as many layers as the limit allows."""
    ends: list[int] = []
    end, last = 0, len(sums) - 1
    while len(ends) < p and end < last:
        end = bisect_right(sums, sums[end] + limit, end) - 1
        ends.append(end)
    return ends


def by_stage(seconds: Sequence[float], borders: Borders) -> list[float]:
    """Sum the seconds of the layers of every stage."""
    return [math.fsum(seconds[a:b]) for a, b in borders]


@once
def weights_before(model: ModelSpec) -> tuple[list[int], list[int]]:
    """The number of weight tensors before each border, and their bytes."""
    shapes = [layer.own_parameters for layer in model.layers]
    counts = accumulate([len(of) for of in shapes], initial=0)
    each = model.items.weight_bytes
    kinds = {of: each * sum(map(math.prod, of)) for of in set(shapes)}
    nbytes = accumulate([kinds[of] for of in shapes], initial=0)
    return list(counts), list(nbytes)


@once
def weights_of(model: ModelSpec, first: int, end: int) -> Tensors:
    """The weights of layers `first` to `end` - 1, with those that they share with earlier layers."""
    own = tuple(shape for layer in model.layers[first:end] for shape in layer.own_parameters)
    tied = tuple(shape for _, shape in _shared_with(model, first, end))
    return tensors(own + tied, model.items)


def weight_sizes(model: ModelSpec, borders: Borders) -> list[tuple[int, int]]:
    """The number of weight tensors of every stage, and their bytes."""
    if model.tied_layers:
        weights = [weights_of(model, a, b) for a, b in borders]
        return [(of.ntensors, of.nbytes) for of in weights]
    counts, nbytes = weights_before(model)
    return [(counts[b] - counts[a], nbytes[b] - nbytes[a]) for a, b in borders]


def _shared_with(model: ModelSpec, first: int, end: int) -> dict[tuple[str, Shape], None]:
    """Weights of layers before `first` that layers up to `end` - 1 share: owner and shape."""
    earlier = {layer.name for layer in model.layers[:first]} if model.tied_layers else set()
    return {
        (owner, layer.shape.parameter_shapes[at]): None
        for layer in model.layers[first:end]
        for at, owner in layer.shared_parameters.items()
        if owner in earlier
    }


class Tie(NamedTuple):
    """A weight that several stages hold: the layer that has it first, its shape, the stages."""

    owner: str
    shape: Shape
    stages: tuple[int, ...]


def ties(model: ModelSpec, boundaries: tuple[int, ...]) -> list[Tie]:
    """The weights whose gradients several stages add up (Megatron-LM's tied embeddings)."""
    if not model.tied_layers:
        return []
    place = {layer.name: index for index, layer in enumerate(model.layers)}
    found: dict[tuple[str, Shape], list[int]] = {}
    for stage, (first, end) in enumerate(stage_borders(model, boundaries)):
        for owner, shape in _shared_with(model, first, end):
            known = found.setdefault((owner, shape), [bisect_right(boundaries, place[owner])])
            known.append(stage)
    return [Tie(owner, shape, tuple(stages)) for (owner, shape), stages in found.items()]


@once
def activations_before(model: ModelSpec) -> list[int]:
    """sum(|x| + |y|) of one sample over the layers before each border."""
    kinds = {first: activation_items([model.layers[first]]) for first in set(model.alike)}
    return list(accumulate([kinds[first] for first in model.alike], initial=0))


def with_boundaries(model: ModelSpec, division: Division) -> Division:
    """A possible pipeline with boundaries, balanced by forward FLOPs unless it has some.

    Other divisions are returned as they are.
    """
    if not division.traits.stages or division.p == 1 or division.boundaries:
        return division
    return replace(division, boundaries=balanced(operations(model), division.p))


def stages_waves(division: Division) -> list[int]:
    """The most micro-batches whose activations each stage holds at once."""
    p, segments = division.p, division.segments
    if division.schedule == "1f1b":
        return [min(segments, p - stage) for stage in range(p)]
    return [segments] * p


@once
def operations(model: ModelSpec) -> tuple[float, ...]:
    """Forward petaFLOPs of each layer, per sample."""
    shapes = [layer.shape for layer in model.layers]
    # for balanced(), whose ticks of 2^-64 suit numbers of this size
    return tuple(0.0 if s.is_free else s.forward_flops(1) / 1e15 for s in shapes)
