"""What the pieces of a pipeline compute, hold and send, from a profile or a model.

A profile has times of one mini-batch, and bandwidths: the paper's form, whatever was asked for. A
model's layers are priced at the micro-batch, with the calibrated laws of allreduce and messages
between two devices (measured) or with 1/beta as the bandwidth (paper).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate

import numpy as np

from calib.foundation.arrays import Floats
from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.foundation.layers import Direction
from calib.oracle.cost import Cost, total
from calib.oracle.layout.stages import Crossing, crossings, weights_before, weights_of
from calib.oracle.layout.traffic import Message, message_bytes
from calib.oracle.layout.workload import activation_items
from calib.oracle.model.recomputed import Region, regions, run_again
from calib.oracle.model.spec import ModelSpec
from calib.oracle.once import once
from calib.oracle.paper.costs import paper_costs
from calib.oracle.strategies.common import DIRECTIONS
from calib.oracle.strategies.stage_terms import layers_of
from calib.search.links import adapted
from calib.search.pipelines.antichains import States, states_of
from calib.search.pipelines.partition import PartitionLevel, bandwidth_levels, between
from calib.search.pipelines.profile import PipelineProfile
from calib.search.request import Devices, SearchRequest

DEFAULT_BANDWIDTH = 1e9  # B/s: that of PipeDream's optimizer
DEFAULT_NOTE = "no bandwidth was given: 1e9 B/s, the default of PipeDream's optimizer"
LINEAR_NOTE = "a profile has one mini-batch: a micro-batch of 1/M of it takes 1/M of its time"
SAMPLES = 96  # sizes at which a law is asked; between them it is taken as straight


@dataclass(frozen=True)
class PricedStates:
    """The states of a model at one size of micro-batch; `sure` is the cost of computing all of them.

    `names` and `kinds` by layer. (N + 1, N) of states i to j: `held_bytes` are values (and gradients)
    that they keep of one micro-batch; `again_bytes` those that the backward of one makes again beside
    them (checkpointed regions). `sent(direction, k, s)`: seconds of what crosses behind state k, between
    nodes or not. `update(i, j)`: seconds for states i to j; `spared(i, j)`: of their backward, where a
    border divides a checkpointed region, whose first part then runs less again.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    states: States
    held_bytes: Floats
    again_bytes: Floats
    sure: Cost
    sent: Callable[[Direction, int, bool], float]
    update: Callable[[int, int], float]
    spared: Callable[[int, int], float]
    levels: tuple[PartitionLevel, ...]

    @property
    def sends(self) -> bool:
        """Whether the partitioner counts messages."""
        return all(level.send is not None for level in self.levels)


def machines_of(request: SearchRequest) -> tuple[int, ...]:
    """Machines of each level, the innermost first. Raises InputError."""
    text = request.options.get("machines", "")
    if not text:
        of = request.devices
        return tuple(n for n in (of.per_node, of.nodes) if n > 1) or (1,)
    words = text.lower().split("x")
    if not all(w.isascii() and w.isdecimal() and int(w[:7]) > 0 for w in words) or len(text) > 40:
        raise InputError(f"machines={text} is not like 4 or 4x4, the innermost level first")
    found = tuple(map(int, words))
    if request.given and not _agree(found, request.devices):
        of = request.devices
        raise InputError(
            f"machines={text} (the innermost level first) is not the cluster of {of.nodes} x "
            f"{of.per_node} devices that was asked for: leave one of them out"
        )
    return found


def node_of(request: SearchRequest, machines: Sequence[int]) -> int:
    """Devices of a node: the innermost machines, unless each of the only level's is a node."""
    return machines[0] if len(machines) == 2 or request.devices.per_node > 1 else 1


def _agree(machines: tuple[int, ...], devices: Devices) -> bool:
    """Whether the levels hold all devices, and the innermost of them together a node."""
    inside = [*accumulate(machines, operator.mul, initial=1)]
    return inside[-1] == devices.p and devices.per_node in inside


def batch_of(request: SearchRequest, devices: int = 1) -> tuple[int | None, tuple[str, ...]]:
    """The mini-batch of a request's model, None where it is not known, and notes on it.

    Of a profile each of so many devices runs one.
    """
    if isinstance(request.model, PipelineProfile):
        return request.model.batch_on(devices, request.batch)
    return request.samples, ()


def pieces_of(
    request: SearchRequest, microbatches: int, states: States | None = None
) -> PricedStates:
    """The request's model, one micro-batch at a time. Raises InputError.

    `states` are those of a profile, where they are known already.
    """
    if isinstance(request.model, PipelineProfile):
        of = states or states_of(request.model)
        return _of_profile(request, request.model, of, microbatches)
    return _of_layers(request, microbatches)


def _bandwidths(request: SearchRequest, levels: int, default: Sequence[float]) -> tuple[float, ...]:
    given = request.numbers("bandwidth", default)
    if len(given) == 1:
        given *= levels
    if len(given) != levels:
        raise InputError(
            f"{len(given)} bandwidths for {levels} levels of machines: give one of each"
        )
    return given


def compression_of(request: SearchRequest) -> float | None:
    """Compression ratio of activations; None: their messages are not counted."""
    if request.options.get("compression"):
        return request.number("compression", 1.0)
    return None if isinstance(request.model, PipelineProfile) else 1.0


def _of_profile(
    request: SearchRequest, profile: PipelineProfile, whole: States, m: int
) -> PricedStates:
    machines = machines_of(request)
    bandwidths = _bandwidths(request, len(machines), [DEFAULT_BANDWIDTH])
    states = replace(
        whole,
        compute_s=whole.compute_s / m,
        forward_s=whole.forward_s / m,
        activation_bytes=whole.activation_bytes / m,
        output_bytes=whole.output_bytes / m,
    )
    cut, ratio = profile.without_inputs.nodes, compression_of(request)
    held = between(states.activation_bytes)

    def sent(direction: Direction, state: int, between_nodes: bool) -> float:
        nbytes = float(states.output_bytes[state])
        return nbytes / bandwidths[-1 if between_nodes else 0] / (ratio or 1.0)

    return PricedStates(
        tuple(of.name for of in cut),
        tuple(of.what for of in cut),
        states,
        held,
        np.zeros_like(held),
        Cost(float(states.compute_s[-1]), "measured"),
        sent,
        lambda i, j: 0.0,
        lambda i, j: 0.0,
        tuple(bandwidth_levels(states, machines, bandwidths, ratio)),
    )


def _of_layers(request: SearchRequest, microbatches: int) -> PricedStates:
    model, machines = request.spec, machines_of(request)
    if request.samples % microbatches:
        raise InputError(f"{microbatches} micro-batches do not divide B = {request.samples}")
    if len(machines) > 2:
        raise InputError("a model's layers are searched on one or two levels of machines")
    samples = request.samples // microbatches
    count, ratio = len(model.layers), compression_of(request) or 1.0
    per_node = node_of(request, machines)
    devices = Devices(max(1, math.prod(machines) // per_node), per_node)
    machine, _ = adapted(request.machine, devices)
    active = min(devices.per_node, machine.parameters.ranks_per_node)
    costs = machine.costs(active, request.optimizer, model.execution)
    each = model.items.activation_bytes
    division = Division("pipeline", 1, request.samples, segments=microbatches)
    if request.form == "paper":
        of = paper_costs(machine, model, division, request.optimizer)
        seconds = {d: [c.seconds * samples for c in of.each(d)] for d in DIRECTIONS}
        sure = total([c for d in DIRECTIONS for c in of.each(d)]).times(samples)
        again = dict[int, float]()
    else:
        layers = layers_of(model, division, costs)
        seconds = dict(layers.seconds)
        sure = total(layers.run(0, count, d) for d in DIRECTIONS)
        again = {at: layers.second_forward(at) for at in layers.run_again(0, count)}
    forward, backward = (np.cumsum(seconds[d]) for d in DIRECTIONS)
    crossing = [*crossings(model)[1:], Crossing((), ())]
    out = np.array([each * samples * float(sum(of.forward)) for of in crossing])
    held, made_again = (2.0 * each * samples * items for items in _held_items(model))
    parameters = np.array(weights_before(model)[1][1:], dtype=np.float64)
    states = States(
        forward + backward,
        forward,
        held[0],
        parameters,
        out,
        np.tri(count, k=-1, dtype=bool),
        tuple((1 << i + 1) - 1 for i in range(count)),
        tuple(range(count)),
    )
    network = machine.network
    strides = [1 if per_node > 1 else machine.parameters.ranks_per_node, per_node]
    betas = [
        1 / network.link(1 + stride, "p2p").p2p(1e9).seconds * 1e9
        for stride in strides[: len(machines)]
    ]
    given = request.form == "paper" or bool(request.options.get("bandwidth"))
    bandwidths = _bandwidths(request, len(machines), betas) if given else ()

    def sent(direction: Direction, state: int, between_nodes: bool) -> float:
        of = crossing[state]
        items = of.forward if direction == "forward" else of.backward
        if bandwidths:
            nbytes = each * samples * sum(items) / ratio
            return nbytes / bandwidths[-1 if between_nodes else 0]
        stride = strides[len(machines) - 1] if between_nodes else strides[0]
        return sum(message(math.ceil(n * samples / ratio), stride) for n in items)

    @cache
    def message(items: int, stride: int) -> float:
        return network.time(Message("p2p", message_bytes(items, each), 2, stride)).seconds

    def update(i: int, j: int) -> float:
        return costs.tensors.update(weights_of(model, i, j + 1), request.optimizer).seconds

    def spared(i: int, j: int) -> float:
        runs = run_again(model, tuple(at for at in (i, j + 1) if 0 < at < count))
        return sum(seconds for at, seconds in again.items() if i <= at <= j and not runs[at])

    if bandwidths:
        levels = bandwidth_levels(states, machines, bandwidths, ratio)
    else:
        levels = _measured_levels(states, machines, strides, network.time, sent)
    return PricedStates(
        tuple(x.name for x in model.layers),
        tuple(x.shape.name for x in model.layers),
        states,
        held,
        made_again,
        sure,
        sent,
        update,
        spared,
        tuple(levels),
    )


@once
def _held_items(model: ModelSpec) -> tuple[Floats, Floats]:
    """sum(|x| + |y|) of a sample for layers i to j, (N + 1, N): what is kept, and what is made again.

    A checkpointed region, or the part of it that is in a stage, keeps what it reads; of those in a stage
    the largest is made again, one at a time.
    """
    each = [float(activation_items([layer])) for layer in model.layers]
    outside = [0.0 if of.recomputed else n for n, of in zip(each, model.layers, strict=True)]
    kept = between(np.cumsum(outside))
    again, count = np.zeros_like(kept), len(each)
    for region in regions(model):
        first, end = region.first, region.end
        reads = _reads(model, region)
        sums = np.cumsum([0.0, *each[first:end]])
        starts = np.clip(np.arange(count + 1), first, end) - first
        stops = np.clip(np.arange(1, count + 1), first, end) - first
        whole = sums[None, stops] - sums[starts, None]
        of_part = reads[np.ix_(starts, stops)]
        kept += of_part
        again = np.maximum(again, np.where(of_part > 0, whole - of_part, 0.0))
    return kept, again


def _reads(model: ModelSpec, region: Region) -> Floats:
    """[i, j]: items of a sample that layers i to j - 1 of a region read of others."""
    layers = model.layers[region.first : region.end]
    found = np.zeros((len(layers) + 1, len(layers) + 1))
    for start in range(len(layers)):
        known = set[str]()
        for place, layer in enumerate(layers[start:], start):
            found[start, place + 1] = found[start, place]
            for name, shape in zip(layer.inputs, layer.shape.input_shapes, strict=True):
                if name not in known:
                    found[start, place + 1] += math.prod(shape)
            known |= {*layer.inputs, *layer.outputs}
    return found


def _measured_levels(
    states: States,
    machines: Sequence[int],
    strides: Sequence[int],
    time: Callable[[Message], Cost],
    sent: Callable[[Direction, int, bool], float],
) -> list[PartitionLevel]:
    """Levels whose exchange and messages follow the calibrated laws.

    A law is asked at SAMPLES sizes and taken as straight between them: laws are made of such pieces.
    Over the outer level each device of a node sums its share, all at once.
    """
    parameters, levels, below = between(states.parameter_bytes), [], 1
    for number, (count, stride) in enumerate(zip(machines, strides, strict=False)):
        both = [
            sum(sent(d, k, number > 0) for d in DIRECTIONS) for k in range(len(states.output_bytes))
        ]
        levels.append(_measured_level(parameters, np.array(both), count, below, stride, time))
        below *= count
    return levels


def _measured_level(
    parameters: Floats,
    crossing: Floats,
    count: int,
    below: int,
    stride: int,
    time: Callable[[Message], Cost],
) -> PartitionLevel:
    largest = max(4.0, float(parameters[0, -1]) / below)
    sizes = np.unique(4 * np.round(np.geomspace(4.0, 4 * math.ceil(largest / 4), SAMPLES) / 4))
    share = np.maximum(parameters, 0.0) / below

    @cache
    def sync(m: int) -> Floats:
        if m == 1:
            return np.zeros_like(share)
        law = [time(Message("allreduce", int(n), m, stride, below)).seconds for n in sizes]
        return np.where(share > 0, np.interp(share, sizes, law), 0.0)

    def send(m: int) -> Floats:
        found: Floats = crossing / m
        return found

    return PartitionLevel(count, sync, sync, send)
