"""The messages of one training iteration under each strategy: operation, bytes and ranks.

After formulas.md ("ParaDL, per iteration"), in the words of microbench/cases.py. `nbytes` is m, the
WHOLE buffer: the reduced vector, the gathered result; for a halo the message to one neighbour.
"""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from calib.foundation.collectives import Operation
from calib.foundation.division import Division
from calib.foundation.layers import Direction, LayerShape, Shape
from calib.oracle.layout.regions import regions
from calib.oracle.layout.shards import (
    partial_parameters,
    parts_of_tokens,
    require_possible,
    split_places,
)
from calib.oracle.layout.spatial import WINDOWED, halo_rows
from calib.oracle.layout.stages import sent_tensors, ties, with_boundaries
from calib.oracle.layout.tokens import Move, TokenParts, moves_again, sent_bytes
from calib.oracle.layout.units import model_units
from calib.oracle.layout.workload import exchanged_weights, kinds_of, repeats
from calib.oracle.model.recomputed import read_again, run_again
from calib.oracle.model.spec import ModelSpec
from calib.oracle.once import once, once_per_geometry

MULTIPLE = 4  # cases count whole float32 items


class Message(NamedTuple):
    """One operation of an iteration, by `groups` groups of `group_size` ranks at once.

    Members of a group are `stride` ranks apart. `grid` belongs to a halo exchange, `inner` to a
    hierarchical allreduce (microbench/groups.py, cases.py); `why` is for people.
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
    """`count` equal operations of an iteration among the ranks that share a layer.

    `items` are per sample; `why` describes the first operation.
    """

    operation: Operation
    items: int
    phase: Literal["halo", "layerwise"]
    direction: Literal["forward", "backward"]
    why: str
    count: int = 1


@dataclass(frozen=True)
class Sending:
    """One kind of operation in one direction, for the layers at `places` in execution order.

    `items` per sample by the kind of layer (`kinds_of`); `why` has {} for the layer's name.
    """

    operation: Operation
    phase: Literal["halo", "layerwise"]
    direction: Literal["forward", "backward"]
    why: str
    places: Sequence[int]
    items: Mapping[int, int]

    def flow(self, model: ModelSpec, place: int, items: int, count: int = 1) -> Flow:
        """The flow of a layer, and of `count` - 1 others with as many items."""
        why = self.why.format(model.layers[place].name)
        return Flow(self.operation, items, self.phase, self.direction, why, count)


def messages(model: ModelSpec, division: Division) -> list[Message]:
    """List every message of one iteration: forward, backward, then gradients; none on one rank.

    Parameters
    ----------
    model, division
        A model, whose execution says how many bytes an item has, and how its training is divided.

    Returns
    -------
    list of Message
        For a pipeline one per layer output, as any of them may be at a boundary.

    Raises
    ------
    InputError
        The model cannot be divided so.
    """
    require_possible(model, division)
    if division.p == 1:
        return []
    if division.traits.stages:
        return _pipeline(model, division) + tied_messages(model, division)
    if division.shards:
        return unit_messages(model, division)
    inside = [flow_message(model, flow, division) for flow in layer_flows(model, division)]
    return inside + gradient_messages(model, division)


def layer_flows(model: ModelSpec, division: Division) -> list[Flow]:
    """What the ranks that share layers send: each flow of the forward, then of the backward.

    It does not depend on the batch or p1.
    """
    kinds = kinds_of(model)
    return [
        sending.flow(model, place, sending.items[kinds[place]])
        for sending in sendings(model, division)
        for place in sending.places
    ]


def flow_message(model: ModelSpec, flow: Flow, division: Division) -> Message:
    """One operation of a flow as a message."""
    return Message(
        flow.operation,
        message_bytes(flow.items * division.local_batch, model.items.activation_bytes),
        division.parts,
        groups=division.replicas,
        grid=division.cells if flow.operation == "halo" else (),
        why=flow.why,
    )


@once_per_geometry
def grouped_flows(model: ModelSpec, division: Division) -> list[Flow]:
    """`layer_flows`, with equal flows counted."""
    return [
        sending.flow(model, place, items, count)
        for sending in sendings(model, division)
        for items, (place, count) in equal_flows(model, sending).items()
    ]


def equal_flows(model: ModelSpec, sending: Sending) -> dict[int, tuple[int, int]]:
    """By number of items: the first place, and the count."""
    same: dict[int, tuple[int, int]] = {}
    for of in repeats(model, sending.places):
        items = sending.items[of.kind]
        first, count = same.get(items, (of.first, 0))
        same[items] = first, count + of.count
    return same


def sendings(model: ModelSpec, division: Division) -> list[Sending]:
    """What the ranks that share layers send, by kind of operation and direction."""
    if division.parts == 1:
        return []
    if division.traits.cuts in ("regions", "tokens"):
        parts = parts_of_tokens(model, division)
        summed = _regions(model, parts) if division.traits.cuts == "regions" else []
        return summed + _moves(model, parts.moves, division.parts)
    return (_spatial if division.traits.cuts == "image" else _shared_layers)(model, division)


def message_bytes(items: int, item_bytes: int) -> int:
    """Bytes of a message, rounded up to whole float32 items; at least one."""
    return max(MULTIPLE, -(-items * item_bytes // MULTIPLE) * MULTIPLE)


def _pipeline(model: ModelSpec, division: Division) -> list[Message]:
    """|y| of a micro-batch from stage to stage; dL/dy returns with the same size."""
    item_bytes = model.items.activation_bytes
    return [
        Message(
            "p2p",
            message_bytes(division.local_batch * sent.items, item_bytes),
            2,
            why=f"y of {name} to the next stage",
        )
        for name, sent in sent_tensors(model).items()
    ]


def _spatial(model: ModelSpec, division: Division) -> list[Sending]:
    """Halos of every cut layer, and the allgather where whole layers read a cut one.

    At the end of the split every rank has the whole gradient and takes its own part, so nothing is sent
    back. In the backward a convolution takes dL/dy from its neighbours; a pooling returns dL/dx of the
    halo rows to their owners. Where checkpointed regions need again what a layer reads, that is sent
    again.
    """
    kinds, split = kinds_of(model), split_places(model, division)
    layers = {kind: model.layers[kind] for kind in dict.fromkeys(kinds[: len(split)])}
    both = {kind: halo_items(layer.shape, division.cells) for kind, layer in layers.items()}
    x, dy = ({kind: items[way] for kind, items in both.items()} for way in (0, 1))
    back = {kind for kind, layer in layers.items() if dy[kind] and layer.needs_input_grad}
    wide = [place for place in split if x[kinds[place]]]
    ends, again = _split_ends(model, len(split)), read_again(model)
    y = {kinds[place]: model.layers[place].shape.output_items for place in ends}
    wide_again = [place for place in wide if again[place]]
    ends_again = [place for place, reader in ends.items() if again[reader]]
    why = "y of {}, where the split ends"
    return [
        Sending("halo", "halo", "forward", "halo of x of {}", wide, x),
        Sending("allgather", "layerwise", "forward", why, [*ends], y),
        Sending("halo", "halo", "backward", "halo of x of {}, again", wide_again, x),
        Sending("allgather", "layerwise", "backward", f"{why}, again", ends_again, y),
        Sending(
            "halo",
            "halo",
            "backward",
            "halo of dL/dy of {}",
            [place for place in reversed(split) if kinds[place] in back],
            dy,
        ),
    ]


def split_ends(model: ModelSpec, division: Division) -> dict[int, int]:
    """The split layers of a spatial strategy that whole layers read, with the first that does."""
    return _split_ends(model, len(split_places(model, division)))


@once
def _split_ends(model: ModelSpec, end: int) -> dict[int, int]:
    """The layers before `end` that later ones read, in the order of reading."""
    before = {layer.name: place for place, layer in enumerate(model.layers[:end])}
    ends: dict[int, int] = {}
    for place, layer in enumerate(model.layers[end:], end):
        for name in layer.inputs:
            if name in before:
                ends.setdefault(before[name], place)
    return ends


def halo_items(shape: LayerShape, grid: tuple[int, ...]) -> tuple[int, int]:
    """Items per sample that a rank sends to one neighbour: of x forward, of dL/dy backward.

    C x halo rows x the part's other dimensions, at the cut dimension where that is largest. A pooling's
    backward sends dL/dx of the forward's halo rows (formulas.md and the paper form have dL/dy). Corners,
    which come from diagonal neighbours, are not counted: along the second dimension training's messages
    are longer by the halo of the first.
    """
    if shape.kind not in WINDOWED:
        return 0, 0
    rows = [halo_rows(shape, d, parts) for d, parts in enumerate(grid)]
    of_x, of_dy = zip(*rows, strict=True)
    x = max(map(operator.mul, of_x, _faces(shape.input_shapes[0], grid)))
    if shape.kind != "conv":
        return x, x
    return x, max(map(operator.mul, of_dy, _faces(shape.output_shape, grid)))


def _faces(whole: Shape, grid: tuple[int, ...]) -> list[int]:
    """Items of one row of the largest part, across each dimension that is cut."""
    cut = [-(-n // parts) for n, parts in zip(whole[1:], grid, strict=False)]
    part = [*cut, *whole[1 + len(grid) :]]
    return [whole[0] * math.prod(part[:d] + part[d + 1 :]) for d in range(len(grid))]


def _shared_layers(model: ModelSpec, division: Division) -> list[Sending]:
    """Filter: allgather of y, allreduce of dL/dx. Channel: allreduce of y, allgather of dL/dx.

    For every split layer, as training/split/shared_layers.py sends them; dL/dx only if it is needed.
    formulas.md and the paper form (strategies/shared_layers.py) leave out filter's last y and channel's
    first dL/dx. But the loss needs all logits, and the layer before channel's first split one has
    weights, whose gradients need the whole dL/dx. What checkpointed regions run again is sent again.
    """
    layers, kinds = model.layers, kinds_of(model)
    split = split_places(model, division)
    shapes = {kind: layers[kind].shape for kind in dict.fromkeys(kinds[place] for place in split)}
    y = {kind: shape.output_items for kind, shape in shapes.items()}
    x = {kind: shape.input_items for kind, shape in shapes.items()}
    forward: Operation = "allgather"
    backward: Operation = "allreduce"
    if division.traits.cuts == "channels":
        forward, backward = backward, forward
    given = [place for place in split if layers[place].needs_input_grad]
    again = [place for place in split if run_again(model)[place]]
    return [
        Sending(forward, "layerwise", "forward", "y of {}", split, y),
        Sending(forward, "layerwise", "backward", "y of {}, again", again, y),
        Sending(backward, "layerwise", "backward", "dL/dx of {}", given[::-1], x),
    ]


def _regions(model: ModelSpec, parts: TokenParts) -> list[Sending]:
    """tensor: allreduce of y where a region ends, and of dL/dx where it begins, once for each x.

    Where tokens are cut there are moves in their place. What checkpointed regions run again is summed
    again.
    """
    layers, kinds, found = model.layers, kinds_of(model), regions(model)
    rows = sorted(at for of in found for at in of.rows if at not in parts.scattered)
    again = [at for at in rows if run_again(model)[at]]
    entries = {at for of in found for at in of.entries.values()} - parts.gathered.keys()
    given = sorted((at for at in entries if layers[at].needs_input_grad), reverse=True)
    y = {kinds[at]: layers[at].shape.output_items for at in rows}
    x = {kinds[at]: layers[at].shape.input_items for at in given}
    return [
        Sending("allreduce", "layerwise", "forward", "y of {}", rows, y),
        Sending("allreduce", "layerwise", "backward", "y of {}, again", again, y),
        Sending("allreduce", "layerwise", "backward", "dL/dx of {}", given, x),
    ]


def _moves(model: ModelSpec, moves: Sequence[Move], ranks: int) -> list[Sending]:
    """Where tokens are cut: what is sent for the tensors that are moved, and for their gradients.

    The buffer of an all-to-all is a rank's part of the tensor. Items are of the activations' type.
    """
    kinds, sendings = kinds_of(model), list[Sending]()
    ways: tuple[tuple[Direction, str, Sequence[Move]], ...] = (
        ("forward", "{} of {{}}", moves),
        ("backward", "{} of {{}}, again", [of for of in moves if moves_again(model, of)]),
        ("backward", "dL/d{} of {{}}", moves[::-1]),
    )
    for direction, why, those in ways:
        places: dict[tuple[Operation, str, int], list[int]] = defaultdict(list)
        for of in those:
            operation = of.backward if "dL/d" in why else of.forward
            if operation is not None:
                items = of.items(ranks) // (ranks if operation == "all_to_all" else 1)
                items = items * sent_bytes(model, of) // model.items.activation_bytes
                what = "y" if of.is_scatter else "x"
                places[operation, what, items].append(of.readers[0])
        for (operation, what, items), at in places.items():
            each = {kinds[place]: items for place in at}
            sendings.append(Sending(operation, "layerwise", direction, why.format(what), at, each))
    return sendings


def gradient_messages(model: ModelSpec, division: Division) -> list[Message]:
    """The exchange of weight gradients between ranks that hold the same weights; empty if none do.

    data with a sharded optimizer: a reduce-scatter, and an allgather of the weights after the update.
    data+spatial: an allreduce by a leader of each group; or, if all ranks take part, a reduce-scatter
    in each group, an allreduce of 1/p2 across the groups, and an allgather in each group. tensor with
    sequence parallelism: an allreduce of those that every rank has of its tokens alone.
    """
    p, parts = division.p, division.parts
    nbytes = message_bytes(exchanged_weights(model, division).nbytes, 1)
    if p == 1 or division.shards or (division.replicas == 1 and not division.traits.replicated):
        partial = len(partial_parameters(model, division)) > 0
        return [Message("allreduce", nbytes, p, why="gradients, of tokens")] if partial else []
    if division.sharded_optimizer:
        return [
            Message("reduce_scatter", nbytes, p, why="gradients"),
            Message("allgather", nbytes, p, why="updated weights"),
        ]
    if parts > 1 and not division.traits.replicated:
        return [
            Message(
                "allreduce",
                nbytes,
                division.replicas,
                stride=parts,
                groups=parts,
                why="gradients of a shard, segmented",
            )
        ]
    # a single group has no other leaders, and groups of one rank are plain data parallelism
    if division.replicas > 1 and parts > 1:
        if division.gradients == "all":
            slice_bytes = message_bytes(-(-nbytes // parts), 1)
            groups = division.replicas
            return [
                Message("reduce_scatter", nbytes, parts, groups=groups, why="gradients in a group"),
                Message(
                    "allreduce",
                    slice_bytes,
                    groups,
                    stride=parts,
                    groups=parts,
                    why="each rank's slice of the gradients across the groups",
                ),
                Message("allgather", nbytes, parts, groups=groups, why="gradients in a group"),
            ]
        return [
            Message(
                "hierarchical_allreduce",
                nbytes,
                p,
                inner=parts,
                why="gradients, by a leader of each group",
            )
        ]
    return [Message("allreduce", nbytes, p, why="gradients")]


def unit_messages(model: ModelSpec, division: Division) -> list[Message]:
    """fully_sharded: each allgather of a unit's weights, and the reduce-scatter of its gradients."""
    found, p = [], division.p
    for unit in model_units(model):
        nbytes = message_bytes(p * unit.shard_items(p), model.items.weight_bytes)
        name = unit.name or "the root"
        found += unit.gathers * [Message("allgather", nbytes, p, why=f"weights of {name}")]
        found.append(Message("reduce_scatter", nbytes, p, why=f"gradients of {name}"))
    return found


def tied_messages(model: ModelSpec, division: Division) -> list[Message]:
    """pipeline: the sum of each tied weight's gradient over the stages that hold it.

    As Megatron-LM ties the table and the head of a language model (Shoeybi et al. 2019).
    """
    boundaries = with_boundaries(model, division).boundaries
    found = []
    for owner, shape, stages in ties(model, boundaries):
        count = len(stages)
        nbytes = message_bytes(math.prod(shape), model.items.weight_bytes)
        stride = (stages[-1] - stages[0]) // (count - 1)
        why = f"gradients of {owner}, shared by {count} stages"
        found.append(Message("allreduce", nbytes, count, stride=stride, why=why))
    return found
