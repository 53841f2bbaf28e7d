"""Stages of a pipeline: contiguous runs of layers in the model's order, and what crosses between them.

A border g is the one before layer g. Through it goes every tensor that is made before it and read
behind it: the output of a chain, and the joins of residual blocks and inceptions that span it, which
the stages between hand on. The model's input is read from the data set by whoever needs it, and a
view (flatten) is the tensor that it looks at.
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
from calib.foundation.layers import ITEM_BYTES
from calib.oracle.layout.workload import Tensors, activation_items, tensors
from calib.oracle.model.spec import ModelSpec
from calib.oracle.once import once

# (first layer, first layer of the next stage) of every stage
Borders = list[tuple[int, int]]

# sums of times are compared as whole numbers of these, so that equal stages are equal: 2^-64 s
TICKS_PER_SECOND = 2.0**64


class Crossing(NamedTuple):
    """Items of one sample of the tensors through a border: values forward, gradients backward.

    One message each. Where nothing before a tensor has weights, its gradient is not made.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]


def with_stages(
    division: Division, forward: Sequence[float], backward: Sequence[float]
) -> Division:
    """The same with the boundaries of balanced stages, by the layers' seconds, where it has none."""
    if division.p == 1 or division.boundaries:
        return division
    seconds = tuple(map(operator.add, forward, backward))
    return replace(division, boundaries=balanced(seconds, division.p))


def stage_borders(model: ModelSpec, boundaries: tuple[int, ...]) -> Borders:
    """(first layer, first layer of the next stage) of every stage."""
    return list(pairwise((0, *boundaries, len(model.layers))))


def stage_names(model: ModelSpec, boundaries: tuple[int, ...]) -> str:
    """The stages as first..last layer, in one line."""
    layers = model.layers
    return " | ".join(
        layers[a].name if b == a + 1 else f"{layers[a].name}..{layers[b - 1].name}"
        for a, b in stage_borders(model, boundaries)
    )


@once
def crossings(model: ModelSpec) -> tuple[Crossing, ...]:
    """What crosses each border; number 0, before the first layer, has nothing."""
    made: dict[str, int] = {}  # by name of the layer or of a view of its output: the layer's index
    last_read: dict[int, int] = {}
    for index, layer in enumerate(model.layers):
        sources = [made[name] for name in layer.inputs if name in made]
        last_read.update(dict.fromkeys(sources, index))
        if not layer.shape.is_free:
            made[layer.name] = index
        elif sources:
            made[layer.name] = sources[0]
    forward: list[list[int]] = [[] for _ in model.layers]
    backward: list[list[int]] = [[] for _ in model.layers]
    for index, last in sorted(last_read.items()):
        layer = model.layers[index]
        items = layer.shape.output_items
        has_gradient = layer.needs_input_grad or bool(layer.shape.parameter_shapes)
        for border in range(index + 1, last + 1):
            forward[border].append(items)
            if has_gradient:
                backward[border].append(items)
    found = (Crossing(tuple(f), tuple(b)) for f, b in zip(forward, backward, strict=True))
    same: dict[Crossing, Crossing] = {}
    return tuple(same.setdefault(crossing, crossing) for crossing in found)


@lru_cache(maxsize=256)
def balanced(seconds: tuple[float, ...], p: int) -> tuple[int, ...]:
    """The first layer of each stage but the first: p stages whose slowest is as fast as can be.

    `seconds` of each layer; p at most as many as them. Exact: the bounds of a parametric search are
    always sums of layers (exact bisection of Pinar and Aykanat, "Fast optimal load balancing algorithms
    for 1D partitioning", 2004), p log(layers) for each limit that is tried.
    """
    ticks = [max(0, int(time * TICKS_PER_SECOND)) for time in seconds]
    sums = list(accumulate(ticks, initial=0))
    low = max(*ticks, -(-sums[-1] // p))
    high = min(
        sums[-1], sums[-1] // p + max(ticks)
    )  # always enough: a stage is filled beyond its part
    trial = low  # where there are many stages, the slowest layer is the answer
    while low < high:
        ends = _filled(sums, trial, p)
        loads = [sums[b] - sums[a] for a, b in pairwise((0, *ends))]
        if ends[-1] == len(ticks):
            high = max(loads)
        else:  # any less than one layer more somewhere gives the same stages again
            low = min(load + ticks[end] for load, end in zip(loads, ends, strict=True))
        trial = (low + high) // 2
    ends = _filled(sums, high, p)
    ends += [len(ticks)] * (p - len(ends))
    # every stage has a layer: those that are left over take one each, none of which is too slow
    return tuple(
        min(end, len(ticks) - left) for left, end in zip(range(p - 1, 0, -1), ends, strict=False)
    )


def _filled(sums: Sequence[int], limit: int, p: int) -> list[int]:
    """Where stages end that take as many layers as the limit allows, at most p of them."""
    ends: list[int] = []
    end, last = 0, len(sums) - 1
    while len(ends) < p and end < last:
        end = bisect_right(sums, sums[end] + limit, end) - 1
        ends.append(end)
    return ends


def by_stage(seconds: Sequence[float], borders: Borders) -> list[float]:
    """The sum over the layers of every stage."""
    return [math.fsum(seconds[a:b]) for a, b in borders]


@once
def weights_before(model: ModelSpec) -> tuple[list[int], list[int]]:
    """How many tensors of weights the layers before each border have, and their bytes."""
    shapes = [layer.shape.parameter_shapes for layer in model.layers]
    counts = accumulate([len(of) for of in shapes], initial=0)
    kinds = {of: ITEM_BYTES * sum(map(math.prod, of)) for of in set(shapes)}
    nbytes = accumulate([kinds[of] for of in shapes], initial=0)
    return list(counts), list(nbytes)


@once
def weights_of(model: ModelSpec, first: int, end: int) -> Tensors:
    """The weights of layers `first` to `end` - 1."""
    layers = model.layers[first:end]
    return tensors(tuple(s for x in layers for s in x.shape.parameter_shapes))


@once
def activations_before(model: ModelSpec) -> list[int]:
    """sum(|x| + |y|) of one sample over the layers before each border."""
    kinds = {first: activation_items([model.layers[first]]) for first in set(model.alike)}
    return list(accumulate([kinds[first] for first in model.alike], initial=0))


def with_boundaries(model: ModelSpec, division: Division) -> Division:
    """A possible pipeline with the boundaries of its stages, balanced by forward FLOPs by default.

    A division of another strategy is as it was.
    """
    if not division.traits.stages or division.p == 1 or division.boundaries:
        return division
    return replace(division, boundaries=balanced(operations(model), division.p))


def stages_waves(division: Division) -> list[int]:
    """Micro-batches of which each stage holds the activations at once."""
    p, segments = division.p, division.segments
    if division.schedule == "1f1b":
        return [min(segments, p - stage) for stage in range(p)]
    return [segments] * p


@once
def operations(model: ModelSpec) -> tuple[float, ...]:
    """Forward FLOPs of each layer, of one sample, in units of 1e15."""
    shapes = [layer.shape for layer in model.layers]
    # balanced() counts in 2^-64: a petaflop is as good as a second
    return tuple(0.0 if s.is_free else s.forward_flops(1) / 1e15 for s in shapes)
