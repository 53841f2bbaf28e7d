"""Units of fully sharded training: the weights that a rank gathers, frees and reduces at once.

A unit is a block, as FSDP is usually told to wrap: the outermost module on a layer's path that has a
number, as ModuleList and Sequential give one. A list in a list numbers twice, and its items are the
blocks unless they are layers: stages.0.1 of stages.0.1.conv, blocks.0 of blocks.0.1. A top-level module
without any is a unit of its own. What is left, first and last layers mostly, is the root's, which is
gathered once and kept until the backward ends. Prediction and training both read this file.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from calib.foundation.layers import Shape
from calib.oracle.model.recomputed import regions
from calib.oracle.model.spec import ModelSpec
from calib.oracle.once import once

ROOT = ""
_NUMBERED = re.compile(r"(?:[^.]+\.)*?(?:\d+(?:\.\d+)*(?=\.)|\d+$)")


class Unit(NamedTuple):
    """Weights that are gathered together, `gathers` times an iteration."""

    name: str
    shapes: tuple[Shape, ...]
    gathers: int

    @property
    def items(self) -> int:
        """Number of weights and biases."""
        return sum(map(math.prod, self.shapes))

    def shard_items(self, p: int) -> int:
        """Items of a rank's shard; the last shards are filled up with zeros."""
        return -(-self.items // p)


def units_of(paths: Iterable[str]) -> dict[str, str]:
    """The unit of every module with weights of a model, by their paths."""
    paths = list(paths)
    found = {path: match[0] for path in paths if (match := _NUMBERED.match(path))}
    tops_with_blocks = {path.partition(".")[0] for path in found}
    for path in paths:
        top, inside, _ = path.partition(".")
        found.setdefault(path, top if inside and top not in tops_with_blocks else ROOT)
    return found


@once
def model_units(model: ModelSpec) -> tuple[Unit, ...]:
    """The units of a model, in the order in which a forward meets them.

    A unit is gathered for every run of its layers, in the forward and in the backward, which runs
    checkpointed regions again. What layers of several units share is the root's.
    """
    weighted = [layer for layer in model.layers if layer.shape.parameter_shapes]
    unit_of = units_of(layer.name for layer in weighted)
    of_several = {
        (owner, layer.shape.parameter_shapes[at])
        for layer in weighted
        for at, owner in layer.shared_parameters.items()
        if unit_of[owner] != unit_of[layer.name]
    }
    shapes: dict[str, tuple[Shape, ...]] = {}
    for layer in weighted:
        for shape in layer.own_parameters:
            name = ROOT if (layer.name, shape) in of_several else unit_of[layer.name]
            shapes[name] = (*shapes.get(name, ()), shape)
    units = [unit_of.get(layer.name, ROOT) for layer in model.layers]
    runs = Counter(
        name
        for places in (range(len(units)), _backward(model))
        for name, _ in itertools.groupby(units[at] for at in places if units[at] != ROOT)
    )
    return tuple([Unit(name, of, runs.get(name, 1)) for name, of in shapes.items()])


def _backward(model: ModelSpec) -> Iterator[int]:
    """The layers whose weights a backward needs, in order."""
    saving = {region.saving: region for region in regions(model)}
    for place in reversed(range(len(model.layers))):
        yield place
        if place in saving:  # its node is about to run, and first its region runs again
            yield from range(saving[place].first, place + 1)
            yield place
