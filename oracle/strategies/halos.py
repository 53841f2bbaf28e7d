"""Halos under spatial: the messages of the paper's formula, and the copies that join them.

oracle/layout/traffic.py has the messages that training sends, oracle/layout/spatial.py the rows that a
part needs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from calib.foundation.division import Division
from calib.foundation.layers import Direction, Shape, split_sizes
from calib.oracle.layout.shards import split_places
from calib.oracle.layout.spatial import WINDOWED, halo_rows, window
from calib.oracle.layout.traffic import split_ends
from calib.oracle.layout.workload import repeats
from calib.oracle.model.layer import Layer
from calib.oracle.model.recomputed import read_again
from calib.oracle.model.spec import ModelSpec
from calib.oracle.once import once_per_geometry

TENSORS: dict[Direction, str] = {"forward": "x", "backward": "dL/dy"}


@dataclass(frozen=True)
class JoinLoop:
    """`count` concatenations of `pieces` tensors into `items` items per sample."""

    pieces: int
    items: int
    count: int = 1


@once_per_geometry
def joins(model: ModelSpec, division: Division) -> dict[str, list[JoinLoop]]:
    """Concatenations by kind: halos of x and of dL/dy with their parts, and all parts of y at the end.

    A pooling joins nothing in the backward: the rows that come back are added in place. What
    checkpointed regions read again is joined again.
    """
    split, again = split_places(model, division), read_again(model)
    x = [*split, *(place for place in split if again[place])]
    dy = [place for place in split if _gives_back(model.layers[place])]
    found: dict[str, Counter[tuple[int, int]]] = {}
    for direction, places in zip(TENSORS, (x, dy), strict=True):
        of = found.setdefault(f"halos of {TENSORS[direction]} and their parts", Counter())
        for layer, n in _windowed(model, places):
            for about in _joins_of(layer, division.cells, direction):
                of[about] += n
    ends = split_ends(model, division)
    joined = [*ends, *(place for place, reader in ends.items() if again[reader])]
    items = (model.layers[place].shape.output_items for place in joined)
    found["the parts of y, where the split ends"] = Counter((division.parts, n) for n in items)
    return {
        what: [JoinLoop(*about, n) for about, n in of.items()] for what, of in found.items() if of
    }


def _gives_back(layer: Layer) -> bool:
    return layer.shape.kind == "conv" and layer.needs_input_grad


def _windowed(model: ModelSpec, places: Sequence[int]) -> list[tuple[Layer, int]]:
    """The distinct layers with a window among those at `places`, and the count of each."""
    layers = model.layers
    return [
        (layers[of.kind], of.count)
        for of in repeats(model, places)
        if layers[of.kind].shape.kind in WINDOWED
    ]


def _joins_of(layer: Layer, grid: tuple[int, ...], direction: Direction) -> list[tuple[int, int]]:
    """(tensors, items of the result) of the concat in each dimension that has a halo."""
    forward, shape = direction == "forward", layer.shape
    sizes = _largest(shape.input_shapes[0] if forward else shape.output_shape, grid)
    joins = []
    for d, parts in enumerate(grid):
        rows = halo_rows(shape, d, parts)[0 if forward else 1] if parts > 1 else 0
        if rows:
            near = min(2, parts - 1)
            sizes[1 + d] += near * rows
            if forward:  # the rows that the part runs on
                along = window(shape, d)
                outputs = (0, split_sizes(shape.output_shape[1 + d], parts)[0])
                first, stop = along.inputs_of(outputs)
                sizes[1 + d] = stop - first
            joins.append((1 + near, math.prod(sizes)))
    return joins


def _largest(whole: Shape, grid: tuple[int, ...]) -> list[int]:
    """The largest part of a tensor of one sample."""
    cut = [split_sizes(whole[1 + d], parts)[0] for d, parts in enumerate(grid)]
    return [whole[0], *cut, *whole[1 + len(grid) :]]


@once_per_geometry
def paper_halos(model: ModelSpec, division: Division) -> dict[Direction, tuple[int, int]]:
    """(messages, items per sample) that an inner rank sends in sequence; empty without halos.

    As in the formula, every split layer with K > 1 along a cut dimension counts, also pooling, and the
    first layer's dL/dy: C floor(K/2) times the largest part of the other dimensions, to two neighbours,
    or to one if there are 2 parts.
    """
    sums = {direction: (0, 0) for direction in TENSORS}
    for layer, count in _windowed(model, split_places(model, division)):
        for direction in TENSORS:
            n, items = _paper_halos_of(layer, division.cells, direction)
            before = sums[direction]
            sums[direction] = before[0] + count * n, before[1] + count * items
    return {d: found for d, found in sums.items() if found[0]}


def _paper_halos_of(layer: Layer, grid: tuple[int, ...], direction: Direction) -> tuple[int, int]:
    shape = layer.shape
    whole = shape.input_shapes[0] if direction == "forward" else shape.output_shape
    sizes = _largest(whole, grid)
    messages = items = 0
    for d, parts in enumerate(grid):
        kernel = window(shape, d).kernel
        if parts > 1 and kernel > 1:
            near = min(2, parts - 1)
            messages += near
            items += near * (kernel // 2) * math.prod(sizes[: 1 + d] + sizes[2 + d :])
    return messages, items


def end_items(model: ModelSpec, division: Division) -> list[int]:
    """|y| of the split layers that whole ones read."""
    return [model.layers[place].shape.output_items for place in split_ends(model, division)]
