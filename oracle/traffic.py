"""The messages of one training iteration under each strategy: operation, bytes and who takes part.

After formulas.md ("ParaDL, per iteration"), with the words of microbench/cases.py. `nbytes` is m,
the WHOLE buffer: the reduced vector, the gathered result; of a halo the message to one neighbour.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from foundation.collectives import Operation
from foundation.layers import split_sizes
from oracle.model import Layer, ModelSpec
from oracle.shards import (
    SPATIAL,
    Division,
    rank_parameters,
    require_possible,
    split_layers,
)
from oracle.spatial import halo_rows

MULTIPLE = 4  # cases count whole float32 items


@dataclass(frozen=True)
class Message:
    """One operation of an iteration; `groups` groups of `group_size` PEs do it at once.

    Members of a group are `stride` PEs apart; `grid` is of a halo exchange, `inner` of a
    hierarchical allreduce (microbench/groups.py, cases.py). `why` is for people.
    """

    operation: Operation
    nbytes: int
    group_size: int
    stride: int = 1
    groups: int = 1
    grid: tuple[int, ...] = ()
    inner: int = 0
    why: str = ""


def messages(model: ModelSpec, division: Division, item_bytes: int = 4) -> list[Message]:
    """Every message of one iteration, forward, backward, then the gradients; none on one PE.

    Gradients travel in float32 whatever `item_bytes` the activations have. Of a pipeline there is
    one for each layer's output, of which the stages' boundaries are some. Raises InputError where
    the model cannot be divided so.
    """
    require_possible(model, division)
    if division.p == 1:
        return []
    if division.strategy == "pipeline":
        return _pipeline(model, division, item_bytes)
    inside: list[Message] = []
    if division.strategy in SPATIAL:
        inside = _spatial(model, division, item_bytes)
    elif division.parts > 1:
        inside = _shared_layers(model, division, item_bytes)
    return inside + _gradients(model, division)


def _nbytes(items: int, item_bytes: int) -> int:
    return max(MULTIPLE, -(-items * item_bytes // MULTIPLE) * MULTIPLE)


def _pipeline(model: ModelSpec, division: Division, item_bytes: int) -> list[Message]:
    """|y| of a micro-batch from stage to stage, and dL/dy of the same size back."""
    return [
        Message("p2p", _nbytes(division.local_batch * layer.shape.output_items, item_bytes), 2,
                why=f"y of {layer.name} to the next stage")
        for layer in model.layers[:-1]
        if not layer.shape.is_free
    ]  # fmt: skip


def _spatial(model: ModelSpec, division: Division, item_bytes: int) -> list[Message]:
    """Halos of every cut layer, and the allgather where whole layers read a cut one.

    A PE that has the whole gradient there takes its own part of it: nothing is sent back.
    """
    split = split_layers(model, division)
    forward: list[Message] = []
    backward: list[Message] = []
    for layer in split:
        for way, found in (("x", forward), ("dL/dy", backward)):
            if way == "x" or layer.needs_input_grad:
                items = division.local_batch * halo_items(layer, division.grid, way == "x")
                if items:
                    found.append(
                        Message("halo", _nbytes(items, item_bytes), division.parts,
                                groups=division.replicas, grid=division.grid,
                                why=f"halo of {way} of {layer.name}")
                    )  # fmt: skip
    cut = {layer.name: layer for layer in split}
    ends = {
        name: cut[name]
        for layer in model.layers[len(split) :]
        for name in layer.inputs
        if name in cut
    }
    gathers = [
        Message("allgather",
                _nbytes(division.local_batch * layer.shape.output_items, item_bytes),
                division.parts, groups=division.replicas,
                why=f"y of {layer.name}, where the split ends")
        for layer in ends.values()
    ]  # fmt: skip
    return forward + gathers + backward[::-1]


def halo_items(layer: Layer, grid: tuple[int, ...], forward: bool) -> int:
    """Items of one sample that a PE sends to one neighbour: of x in the forward, else of dL/dy.

    C x halo rows x the part's other dimensions. On a 2-D grid the larger of the two directions.
    """
    shape = layer.shape
    whole = shape.input_shapes[0] if forward else shape.output_shape
    sizes = [max(split_sizes(whole[1 + d], parts)) for d, parts in enumerate(grid)]
    part = [*sizes, *whole[1 + len(grid) :]]
    rows = [halo_rows(shape, d, parts)[0 if forward else 1] for d, parts in enumerate(grid)]
    return max(
        whole[0] * taken * math.prod(part[:d] + part[d + 1 :]) for d, taken in enumerate(rows)
    )


def _shared_layers(model: ModelSpec, division: Division, item_bytes: int) -> list[Message]:
    """Filter: allgather of y (not of the last layer), allreduce of dL/dx (not of the first).

    Channel: allreduce of y, also of the last; allgather of dL/dx, not of the first split layer.
    Last and first are those of the model: a layer that stays whole may come after or before.
    """
    split = split_layers(model, division)
    joined = [layer for layer in split if layer.name != last_weighted(model)]
    by_filter = division.strategy != "channel"
    first: Operation = "allgather" if by_filter else "allreduce"
    second: Operation = "allreduce" if by_filter else "allgather"

    def message(operation: Operation, items: int, why: str) -> Message:
        nbytes = _nbytes(division.local_batch * items, item_bytes)
        return Message(operation, nbytes, division.parts, groups=division.replicas, why=why)

    forward = [
        message(first, layer.shape.output_items, f"y of {layer.name}")
        for layer in (joined if by_filter else split)
    ]
    backward = [
        message(second, layer.shape.input_items, f"dL/dx of {layer.name}")
        for layer in reversed([x for x in split if x.needs_input_grad] if by_filter else split[1:])
    ]
    return forward + backward


def last_weighted(model: ModelSpec) -> str:
    """The name of the last convolution or fully connected layer."""
    return [layer.name for layer in model.layers if layer.shape.kind in ("conv", "linear")][-1]


def _gradients(model: ModelSpec, division: Division) -> list[Message]:
    """The exchange of weight gradients between PEs that hold the same weights."""
    shapes = rank_parameters(model, division)
    nbytes = _nbytes(sum(math.prod(shape) for shape in shapes), MULTIPLE)
    if division.strategy in ("data", "spatial"):
        return [Message("allreduce", nbytes, division.p, why="gradients")]
    if division.strategy == "data+spatial" and division.inner > 1:
        return [Message("hierarchical_allreduce", nbytes, division.p, inner=division.inner,
                        why="gradients, by a leader of each group")]  # fmt: skip
    if division.replicas > 1:
        return [Message("allreduce", nbytes, division.replicas, stride=division.parts,
                        groups=division.parts, why="gradients of a shard, segmented")]  # fmt: skip
    return []
