"""What a rank runs, with equal layers counted: the keys of cost look-ups.

A network repeats its layers (ResNet-152 has 516 of some 50 kinds), and a strategy cuts them into the
same parts at every batch and p1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal

from calib.fitting.parameters.work import LayerWork
from calib.foundation.division import Division
from calib.foundation.execution import DTYPES, USUAL, ItemType
from calib.foundation.layers import LayerShape, Shape
from calib.oracle.layout.shards import (
    largest_parts,
    partial_parameters,
    rank_parameters,
    saving_late,
)
from calib.oracle.model.layer import Layer, contents
from calib.oracle.model.recomputed import run_again
from calib.oracle.model.spec import ModelSpec, tensors_key
from calib.oracle.once import once, once_per_geometry

Select = Literal["all", "split", "whole"]
FREE = -1


@dataclass(frozen=True, slots=True)
class Repeat:
    """A kind of layer (see `kinds_of`) in a selection: its first layer there, and how many."""

    kind: int
    first: int
    count: int


@once
def kinds_of(model: ModelSpec) -> tuple[int, ...]:
    """For every layer the first of equal shape and equal need of dL/dx."""
    seen: dict[tuple[int, bool], int] = {}
    return tuple(
        seen.setdefault((first, layer.needs_input_grad), index)
        for index, (first, layer) in enumerate(zip(model.alike, model.layers, strict=True))
    )


def repeats(model: ModelSpec, places: Sequence[int]) -> list[Repeat]:
    """The kinds among the layers at these places, in order."""
    of = kinds_of(model)
    kinds = [of[place] for place in places]
    first = dict(zip(reversed(kinds), reversed(places), strict=True))
    return [Repeat(kind, first[kind], count) for kind, count in Counter(kinds).items()]


@dataclass(frozen=True, eq=False)
class LayerPiece:
    """A distinct layer as a rank runs it, the largest part or the whole; compared by identity."""

    shape: LayerShape
    needs_input_grad: bool
    items: ItemType = DTYPES[USUAL]

    @cached_property
    def work(self) -> LayerWork:
        """Its work at any batch."""
        return LayerWork(self.shape, self.needs_input_grad, self.items)


@dataclass(frozen=True)
class Tensors:
    """Tensors that are updated or packed together: their shapes or their key, count and bytes."""

    named: str | tuple[Shape, ...]
    ntensors: int
    nbytes: int

    @property
    def key(self) -> str:
        """The key of the list's measured times; "" if it has none. Hashed on demand."""
        return self.named if isinstance(self.named, str) else _key(self.named)

    @cached_property
    def largest_bytes(self) -> int:
        """Bytes of the largest tensor; 0 if the shapes are unknown."""
        items = [] if isinstance(self.named, str) else [*map(math.prod, self.named)]
        return self.nbytes * max(items) // sum(items) if any(items) else 0

    def __hash__(self) -> int:
        """By two numbers, as hashing hundreds of shapes is slow."""
        return hash((self.ntensors, self.nbytes))


@lru_cache(maxsize=256)
def _key(shapes: tuple[Shape, ...]) -> str:
    return tensors_key(shapes)


@dataclass(frozen=True, eq=False)
class Workload:
    """The layers of a rank. `index` has the piece of every layer of the model (FREE for a view).

    `split`: whether each layer is a part; `counts`: how often each piece runs; `weights`: the rank's;
    `layers`: how many run a kernel, and `output_items` their |y| per sample; `again`: how often the
    backward runs the forward of each piece again (checkpointed regions).
    """

    pieces: tuple[LayerPiece, ...]
    index: tuple[int, ...]
    split: tuple[bool, ...]
    counts: dict[Select, dict[int, int]]
    weights: Tensors
    layers: int
    output_items: int
    again: dict[int, int] = field(default_factory=dict)


@once_per_geometry
def workload(model: ModelSpec, division: Division) -> Workload:
    """The workload of a rank of a possible division."""
    parts = largest_parts(model, division)
    numbers = {id(part): part for part in parts.values()}
    split = tuple([place in parts for place in range(len(model.layers))])
    # equal parts of equal layers are one object
    kinds = [
        (kind, id(parts[place]) if split[place] else None)
        for place, kind in enumerate(kinds_of(model))
    ]
    pieces: dict[tuple[object, ...], int] = {}
    distinct: list[LayerPiece] = []
    number: dict[tuple[int, int | None], int] = {}
    counts: dict[Select, dict[int, int]] = {"all": {}, "split": {}, "whole": {}}
    for kind, times in Counter(kinds).items():
        first, of_part = kind
        whole = _whole(model, first)
        if whole.shape.is_free:
            number[kind] = FREE
            continue
        part = whole
        if of_part is not None:
            part = LayerPiece(numbers[of_part], whole.needs_input_grad, model.items)
        piece = number[kind] = pieces.setdefault(
            (contents(part.shape), part.needs_input_grad), len(distinct)
        )
        if piece == len(distinct):
            distinct.append(part)
        for select in ("all", "whole" if of_part is None else "split"):
            of: dict[int, int] = counts[select]
            of[piece] = of.get(piece, 0) + times
    runs_again = run_again(model, (), saving_late(model, division))
    again = (number[kind] for kind, runs in zip(kinds, runs_again, strict=True) if runs)
    shared = division.parts > 1 and not division.traits.replicated
    return Workload(
        pieces=tuple(distinct),
        index=tuple([number[kind] for kind in kinds]),
        split=split,
        counts=counts,
        weights=(
            tensors(rank_parameters(model, division), model.items)
            if shared
            else model_weights(model)
        ),
        layers=sum(counts["all"].values()),
        output_items=sum([distinct[k].shape.output_items * n for k, n in counts["all"].items()]),
        again=Counter([piece for piece in again if piece != FREE]),
    )


def layer_keys(model: ModelSpec, division: Division) -> list[str | None]:
    """The key of each layer of the model as a rank runs it; None of a view."""
    batch, of = division.local_batch, workload(model, division)
    keys = [x.shape.key(batch, model.execution, x.needs_input_grad) for x in of.pieces]
    return [None if place == FREE else keys[place] for place in of.index]


@once_per_geometry
def exchanged_weights(model: ModelSpec, division: Division) -> Tensors:
    """A rank's weights whose gradients are exchanged after the backward, where any are."""
    if division.cuts_tokens:
        return tensors(partial_parameters(model, division), model.items)
    return workload(model, division).weights


@once
def _whole(model: ModelSpec, place: int) -> LayerPiece:
    """A whole layer, one object for all workloads."""
    layer = model.layers[place]
    return LayerPiece(layer.shape, layer.needs_input_grad, model.items)


@once
def model_weights(model: ModelSpec) -> Tensors:
    """All weights and biases."""
    return tensors(model.parameter_shapes, model.items)


def tensors(shapes: tuple[Shape, ...], items: ItemType = DTYPES[USUAL]) -> Tensors:
    """Weights, or their gradients, of these shapes."""
    return Tensors(shapes, len(shapes), items.weight_bytes * sum(map(math.prod, shapes)))


def activation_items(layers: Iterable[Layer]) -> int:
    """sum(|x| + |y|) of one sample."""
    return sum(layer.shape.tensor_items for layer in layers if not layer.shape.is_free)
