"""The peak of a rank's live bytes: a walk through an iteration, tensor by tensor (liveness.py).

It counts what training counts (training/footprint.py): weights, gradients, the optimizer's state,
buffers, the batch, what autograd keeps, and the copies that a strategy makes. In-place ReLUs count
like others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from calib.fitting.parameters.memory import STATES
from calib.foundation.division import Division
from calib.foundation.layers import ITEM_BYTES, ITEM_TYPES, LayerShape
from calib.oracle.layout.units import model_units
from calib.oracle.layout.workload import Tensors
from calib.oracle.memory.live_layers import line
from calib.oracle.memory.live_parts import RankLayers
from calib.oracle.memory.liveness import UNCOUNTED, ByteLine, HeldTensor, Ledger, Tape, highest
from calib.oracle.memory.unit_bytes import unit_bytes
from calib.oracle.model.graph import INPUT
from calib.oracle.model.recomputed import Region, regions
from calib.oracle.model.spec import ModelSpec

INT64 = 8
STEP_BYTES = 4  # Adam's count of steps is a float32, whatever the weights are
# temporaries of a weight's size in the update of one weight: Adam's root and quotient
MADE_BY_UPDATE = {"sgd": 0, "momentum": 0, "adam": 2}


def held_bytes(weights: Tensors, optimizer: str, share: int = 1) -> int:
    """Weights, and a `share`-th of the optimizer's state; Adam also counts its steps."""
    part = -(-weights.nbytes // share)
    steps = STEP_BYTES * (weights.ntensors if share == 1 else 1) if optimizer == "adam" else 0
    own = 2 * part if share > 1 else 0  # the rank's piece, and the buffer for its gradient
    return weights.nbytes + STATES[optimizer] * part + own + steps


def unit_held_bytes(
    model: ModelSpec, division: Division, optimizer: str, widens: bool
) -> tuple[int, int]:
    """Fully sharded: shards with gradients and state, and buffers for whole units; what an update makes.

    `widens`: a reduce-scatter of half precision copies what it sends and receives in float32.
    """
    found, each = unit_bytes(model, division.p), model.items.weight_bytes
    steps = STEP_BYTES * len(model_units(model)) if optimizer == "adam" else 0
    sums = found.sent * ITEM_BYTES // each if widens and each < ITEM_BYTES else 0
    held = (2 + STATES[optimizer]) * found.shards + steps + found.gathered + found.sent + sums
    return held, MADE_BY_UPDATE[optimizer] * found.largest_shard


def exchange_bytes(weights: Tensors, division: Division) -> int:
    """The flat buffer of exchanged gradients, and the rank's slice of it if all ranks take part.

    The buckets of DistributedDataParallel are as large.
    """
    replicated = division.traits.replicated or division.cuts_tokens
    exchanges = division.replicas > 1 or replicated
    if division.p == 1 or not exchanges:
        return 0
    sliced = division.gradients == "all"
    return weights.nbytes + (weights.nbytes // division.parts if sliced else 0)


def summing_bytes(weights: Tensors, flat: int, division: Division, item_bytes: int) -> int:
    """Gradients, and what an exchange makes to add them up in float32; 0 if it adds them as they are.

    `flat` are bytes of its buffer. A reduce-scatter also makes the rank's part of the sum.
    """
    if not flat or item_bytes >= ITEM_BYTES:
        return 0
    copies = flat + (flat // division.p if division.sharded_optimizer else 0)
    return weights.nbytes + copies * ITEM_BYTES // item_bytes


def update_bytes(weights: Tensors, optimizer: str, share: int = 1) -> int:
    """Gradients and the temporaries of the largest weight's update; 0 if there are no temporaries."""
    made = MADE_BY_UPDATE[optimizer]
    largest = weights.largest_bytes if share == 1 else -(-weights.nbytes // share)
    return weights.nbytes + made * largest if made else 0


def forward_and_back(
    model: ModelSpec, parts: RankLayers, beside: ByteLine, again: bool = False, widens: bool = False
) -> tuple[ByteLine, ...]:
    """The peaks of a forward and its backward, with `beside` live throughout.

    `again`: the weights already have gradients, which are in `beside`. `widens`: see Tape.
    """
    ledger = Ledger()
    ledger.make(beside)
    tape = Tape(ledger, model.items, widens)
    variables = {INPUT: HeldTensor(UNCOUNTED, parts.given, None, model.items.weight_bytes)}
    loss = forward(model, tape, parts, (0, len(model.layers)), variables)[model.layers[-1].name]
    # torch.autograd.backward holds the gradient of the loss until it returns
    tape.backward([(loss, ledger.hold(ledger.make(tape.scalar)))], again)
    return highest(ledger.peaks)


def forward(
    model: ModelSpec,
    tape: Tape,
    parts: RankLayers,
    layers: tuple[int, int],
    variables: dict[str, HeldTensor],
    kept: Sequence[str] = (),
) -> dict[str, HeldTensor]:
    """Run `layers` [from, to) in order and return the variables left, each held once.

    A variable is dropped after its last reader among them, unless it is `kept`. Checkpointed regions
    keep nothing; a tape that runs one again stops where PyTorch does.
    """
    again = tape.until is not None
    starts = {} if again else {of.first: of for of in regions(model, *layers)}
    ends = {of.end for of in starts.values()}
    last: dict[str, int] = {}
    for index in range(*layers):
        last.update(dict.fromkeys(model.layers[index].inputs, index))
    for index in range(*layers):
        layer = model.layers[index]
        if index in ends:
            tape.end_region()
        if index in starts:
            _begin(model, tape, parts, starts[index], variables)
        for name in dict.fromkeys(layer.inputs):
            variables[name] = parts.read(tape, index, name, variables[name])
        inputs = [variables[name] for name in layer.inputs]
        made = parts.run(tape, index, inputs)
        variables |= zip(layer.outputs, (made, *made.more), strict=True)
        unread = [
            name for name in layer.outputs if name not in last and name != model.layers[-1].name
        ]
        done = [name for name in dict.fromkeys(layer.inputs) if last[name] == index]
        for name in (*done, *unread):
            if name not in kept:
                tape.ledger.drop(variables.pop(name).tensor)
        if tape.is_over:
            break
    tape.end_region()
    tape.end_autocast()
    return variables


def _begin(
    model: ModelSpec,
    tape: Tape,
    parts: RankLayers,
    region: Region,
    variables: dict[str, HeldTensor],
) -> None:
    """Begin a checkpointed region, which keeps what it reads and is run again from that."""
    layers = model.layers[region.first : region.end]
    read = {name: variables[name] for of in layers for name in of.inputs if name in variables}
    shared = dict(parts.shared)

    def run(tape: Tape) -> None:
        for value in (*read.values(), *shared.values()):
            tape.ledger.hold(value.tensor)
        parts.shared.update(shared)
        left = forward(model, tape, parts, (region.first, region.end), dict(read))
        for value in (*left.values(), *parts.shared.values()):
            tape.ledger.drop(value.tensor)
        parts.shared.clear()

    tape.begin_region((*read.values(), *shared.values()), run)


def batch_line(model: ModelSpec, parts: RankLayers) -> ByteLine:
    """Inputs and targets."""
    return parts.given.plus(targets(parts.loss, model.items.weight_bytes))


def targets(loss: LayerShape, item_bytes: int) -> ByteLine:
    """A class for each place of a sample, or values of the output's shape."""
    if loss.kind == "cross_entropy":
        return ByteLine(INT64 * math.prod(loss.places))
    return line(loss.input_shapes[0], 1.0, item_bytes)


def buffers(shapes: Iterable[LayerShape], item_bytes: int) -> ByteLine:
    """What layers read beside weights: means, variances and counts of batch norms, constants."""
    nbytes = 0
    for shape in shapes:
        if shape.kind == "batch_norm":
            nbytes += 2 * item_bytes * shape.input_shapes[0][0] + INT64
        for size, item in shape.operator.constants if shape.operator else ():
            nbytes += ITEM_TYPES.get(item, item_bytes) * math.prod(size)
    return ByteLine(0.0, nbytes)
