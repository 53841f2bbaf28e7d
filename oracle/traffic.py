"""The messages of one training iteration under each strategy: operation, bytes and who takes part.

After formulas.md ("ParaDL, per iteration"), with the words of microbench/cases.py. `nbytes` is m,
the WHOLE buffer: the reduced vector, the gathered result; of a halo the message to one neighbour.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from foundation.collectives import Operation
from foundation.layers import split_sizes
from oracle.division import REPLICATED, SPATIAL, Division
from oracle.model import Layer, ModelSpec
from oracle.shards import require_possible, split_layers
from oracle.spatial import WINDOWED, halo_rows
from oracle.workload import workload

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


@dataclass(frozen=True)
class Flow:
    """`count` equal operations of an iteration among the PEs that share a layer.

    `items` of one sample; `why` is of the first of them.
    """

    operation: Operation
    items: int
    phase: Literal["halo", "layerwise"]
    direction: Literal["forward", "backward"]
    why: str
    count: int = 1


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
    inside = [flow_message(flow, division, item_bytes) for flow in layer_flows(model, division)]
    return inside + gradient_messages(model, division)


def layer_flows(model: ModelSpec, division: Division) -> list[Flow]:
    """What the PEs that share layers send in the forward, then the backward; found once a model.

    The same for all batches and p1.
    """
    key = ("flows", division.geometry)
    if key not in model.cache:
        flows: list[Flow] = []
        if division.parts > 1 and division.strategy in SPATIAL:
            flows = _spatial(model, division)
        elif division.parts > 1:
            flows = _shared_layers(model, division)
        model.cache[key] = flows
    found: list[Flow] = model.cache[key]
    return found


def flow_message(flow: Flow, division: Division, item_bytes: int = 4) -> Message:
    """One operation of a flow, as the PEs that share layers do it."""
    return Message(
        flow.operation, message_bytes(flow.items * division.local_batch, item_bytes),
        division.parts, groups=division.replicas,
        grid=division.grid if flow.operation == "halo" else (), why=flow.why,
    )  # fmt: skip


def grouped_flows(model: ModelSpec, division: Division) -> list[Flow]:
    """`layer_flows` with equal ones counted."""
    key = ("grouped flows", division.geometry)
    if key not in model.cache:
        same: dict[tuple[object, ...], list[Flow]] = {}
        for flow in layer_flows(model, division):
            about = (flow.operation, flow.items, flow.phase, flow.direction)
            same.setdefault(about, []).append(flow)
        model.cache[key] = [replace(flows[0], count=len(flows)) for flows in same.values()]
    found: list[Flow] = model.cache[key]
    return found


def message_bytes(items: int, item_bytes: int = 4) -> int:
    """Bytes of a message of so many items: whole float32 items, one at least."""
    return max(MULTIPLE, -(-items * item_bytes // MULTIPLE) * MULTIPLE)


def _pipeline(model: ModelSpec, division: Division, item_bytes: int) -> list[Message]:
    """|y| of a micro-batch from stage to stage, and dL/dy of the same size back."""
    return [
        Message("p2p", message_bytes(division.local_batch * layer.shape.output_items, item_bytes), 2,
                why=f"y of {layer.name} to the next stage")
        for layer in model.layers[:-1]
        if not layer.shape.is_free
    ]  # fmt: skip


def _spatial(model: ModelSpec, division: Division) -> list[Flow]:
    """Halos of every cut layer, and the allgather where whole layers read a cut one.

    A PE that has the whole gradient there takes its own part of it: nothing is sent back.
    """
    forward: list[Flow] = []
    backward: list[Flow] = []
    known: dict[int, tuple[int, int]] = {}
    for layer, first in zip(split_layers(model, division), model.alike, strict=False):
        if first not in known:
            x, dy = (halo_items(layer, division.grid, way) for way in (True, False))
            known[first] = x, dy
        x, dy = known[first]
        if x:
            forward.append(Flow("halo", x, "halo", "forward", f"halo of x of {layer.name}"))
        if dy and layer.needs_input_grad:
            why = f"halo of dL/dy of {layer.name}"
            backward.append(Flow("halo", dy, "halo", "backward", why))
    gathers = [
        Flow("allgather", layer.shape.output_items, "layerwise", "forward",
             f"y of {layer.name}, where the split ends")
        for layer in split_ends(model, division)
    ]  # fmt: skip
    return forward + gathers + backward[::-1]


def split_ends(model: ModelSpec, division: Division) -> list[Layer]:
    """The split layers of a spatial strategy that whole layers read."""
    split = split_layers(model, division)
    cut = {layer.name: layer for layer in split}
    read = [name for layer in model.layers[len(split) :] for name in layer.inputs if name in cut]
    return [cut[name] for name in dict.fromkeys(read)]


def halo_items(layer: Layer, grid: tuple[int, ...], forward: bool) -> int:
    """Items of one sample that a PE sends to one neighbour: of x in the forward, else of dL/dy.

    C x halo rows x the part's other dimensions; the largest of the dimensions that are cut. Corners,
    which diagonal neighbours have, are not counted.
    """
    shape = layer.shape
    if shape.kind not in WINDOWED:
        return 0
    whole = shape.input_shapes[0] if forward else shape.output_shape
    sizes = [max(split_sizes(whole[1 + d], parts)) for d, parts in enumerate(grid)]
    part = [*sizes, *whole[1 + len(grid) :]]
    rows = [halo_rows(shape, d, parts)[0 if forward else 1] for d, parts in enumerate(grid)]
    return max(
        whole[0] * taken * math.prod(part[:d] + part[d + 1 :]) for d, taken in enumerate(rows)
    )


def _shared_layers(model: ModelSpec, division: Division) -> list[Flow]:
    """Filter: allgather of y (not of the last layer), allreduce of dL/dx (not of the first).

    Channel: allreduce of y, also of the last; allgather of dL/dx, not of the first split layer.
    Last and first are those of the model: a layer that stays whole may come after or before.
    """
    split = split_layers(model, division)
    by_filter = division.strategy != "channel"
    last = last_weighted(model)
    joined = [layer for layer in split if layer.name != last]
    given = [x for x in split if x.needs_input_grad] if by_filter else split[1:]
    forward = [
        Flow("allgather" if by_filter else "allreduce", layer.shape.output_items, "layerwise",
             "forward", f"y of {layer.name}")
        for layer in (joined if by_filter else split)
    ]  # fmt: skip
    backward = [
        Flow("allreduce" if by_filter else "allgather", layer.shape.input_items, "layerwise",
             "backward", f"dL/dx of {layer.name}")
        for layer in reversed(given)
    ]  # fmt: skip
    return forward + backward


def last_weighted(model: ModelSpec) -> str:
    """The name of the last convolution or fully connected layer."""
    return [layer.name for layer in model.layers if layer.shape.kind in ("conv", "linear")][-1]


def gradient_messages(model: ModelSpec, division: Division) -> list[Message]:
    """The exchange of weight gradients between PEs that hold the same weights; one or none.

    Of data with a sharded optimizer it is a reduce-scatter, and an allgather of the weights after
    the update.
    """
    p, parts = division.p, division.parts
    if p == 1 or (division.replicas == 1 and division.strategy not in REPLICATED):
        return []
    nbytes = max(MULTIPLE, workload(model, division).weights.nbytes)
    if division.sharded_optimizer:
        return [Message("reduce_scatter", nbytes, p, why="gradients"),
                Message("allgather", nbytes, p, why="updated weights")]  # fmt: skip
    if parts > 1 and division.strategy not in SPATIAL:
        return [Message("allreduce", nbytes, division.replicas, stride=parts, groups=parts,
                        why="gradients of a shard, segmented")]  # fmt: skip
    # one group of a hybrid has no leaders to speak to, and groups of one PE are those of data
    if division.replicas > 1 and parts > 1:
        return [Message("hierarchical_allreduce", nbytes, p, inner=parts,
                        why="gradients, by a leader of each group")]  # fmt: skip
    return [Message("allreduce", nbytes, p, why="gradients")]
