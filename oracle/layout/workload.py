"""What a rank runs, equal layers counted once: the keys of cost look-ups.

A network repeats its layers (ResNet-152 has 516, of some 50 shapes), and all batches and p1 of a
strategy share the parts of its layers: they are found once for a model and a layout of parts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from calib.foundation.division import Division
from calib.foundation.layers import DTYPE_BYTES, LayerShape, Shape
from calib.oracle.layout.repeats import kinds_of
from calib.oracle.layout.shards import largest_part, rank_parameters, split_flags
from calib.oracle.model.layer import Layer
from calib.oracle.model.spec import ModelSpec, tensors_key

Select = Literal["all", "split", "whole"]
FREE = -1


@dataclass(frozen=True)
class LayerPiece:
    """A distinct layer as a rank runs it: the largest part, or the whole."""

    shape: LayerShape
    needs_input_grad: bool


@dataclass(frozen=True)
class Tensors:
    """A list of tensors that is updated or packed: their shapes or its key, how many, their bytes."""

    named: str | tuple[Shape, ...]
    ntensors: int
    nbytes: int

    @property
    def key(self) -> str:
        """What a measured time of the list is found by; "" of none. Made where it is asked."""
        return self.named if isinstance(self.named, str) else _key(self.named)

    def __hash__(self) -> int:
        """Of two numbers: hashing hundreds of shapes takes long."""
        return hash((self.ntensors, self.nbytes))


@lru_cache(maxsize=256)
def _key(shapes: tuple[Shape, ...]) -> str:
    return tensors_key(shapes)


@dataclass(frozen=True, eq=False)
class Workload:
    """The layers of a rank. `index` has the piece of every layer of the model (FREE of a view).

    `split` says of every layer whether it is a part; `counts` how often each piece runs; `weights`
    are the rank's; `layers` run a kernel, and `output_items` is their |y| of one sample.
    """

    pieces: tuple[LayerPiece, ...]
    index: tuple[int, ...]
    split: tuple[bool, ...]
    counts: dict[Select, dict[int, int]]
    weights: Tensors
    layers: int
    output_items: int


def workload(model: ModelSpec, division: Division) -> Workload:
    """The workload of a rank of a possible division; found once for each layout of parts."""
    key = ("workload", division.geometry)
    if key not in model.cache:
        model.cache[key] = _workload(model, division)
    found: Workload = model.cache[key]
    return found


def _workload(model: ModelSpec, division: Division) -> Workload:
    split = split_flags(model, division)
    # layers of equal shape have equal parts: the parts are made once
    kinds = list(zip(kinds_of(model), split, strict=True))
    pieces: dict[tuple[object, ...], int] = {}
    distinct: list[LayerPiece] = []
    number: dict[tuple[int, bool], int] = {}
    counts: dict[Select, dict[int, int]] = {"all": {}, "split": {}, "whole": {}}
    for kind, times in Counter(kinds).items():
        first, is_split = kind
        shape, needs_grad = model.layers[first].shape, model.layers[first].needs_input_grad
        if shape.is_free:
            number[kind] = FREE
            continue
        part = largest_part(shape, division) if is_split else shape
        piece = number[kind] = pieces.setdefault((_identity(part), needs_grad), len(distinct))
        if piece == len(distinct):
            distinct.append(LayerPiece(part, needs_grad))
        for select in ("all", "split" if is_split else "whole"):
            of: dict[int, int] = counts[select]
            of[piece] = of.get(piece, 0) + times
    return Workload(
        pieces=tuple(distinct),
        index=tuple([number[kind] for kind in kinds]),
        split=split,
        counts=counts,
        weights=_weights(model, division),
        layers=sum(counts["all"].values()),
        output_items=sum([distinct[k].shape.output_items * n for k, n in counts["all"].items()]),
    )


def _weights(model: ModelSpec, division: Division) -> Tensors:
    """The rank's weights: all of them, but of filter and channel."""
    whole = division.parts == 1 or division.traits.cuts == "image"
    key = ("weights", None if whole else division.geometry)
    if key not in model.cache:
        model.cache[key] = tensors(rank_parameters(model, division))
    found: Tensors = model.cache[key]
    return found


def _identity(shape: LayerShape) -> tuple[object, ...]:
    """Equal for equal layers, and quick to make."""
    parts = (shape.input_shapes, shape.output_shape, shape.parameter_shapes)
    return (shape.kind, *parts, tuple(shape.attributes.items()))


def tensors(shapes: tuple[Shape, ...]) -> Tensors:
    """A list of float32 tensors of these shapes."""
    return Tensors(shapes, len(shapes), DTYPE_BYTES["float32"] * sum(map(math.prod, shapes)))


def activation_items(layers: Iterable[Layer]) -> int:
    """sum(|x| + |y|) of one sample."""
    return sum(
        layer.shape.input_items + layer.shape.output_items
        for layer in layers
        if not layer.shape.is_free
    )
