"""What the pieces of a pipeline compute, hold and send: of a profile, or of a model's layers.

A profile has times of one mini-batch, and bandwidths: the paper's form, whatever was asked for. A
model's layers are priced at the micro-batch, with the calibrated laws of allreduce and messages
between two devices (measured) or with 1/beta as the bandwidth (paper).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from foundation.errors import InputError
from oracle.cost import Cost, total
from oracle.division import Division
from oracle.memory import DELTA, activation_items
from oracle.search.links import machine_of
from oracle.search.pipelines.antichains import States, states_of
from oracle.search.pipelines.partition import Level, bandwidth_levels, between
from oracle.search.pipelines.profile import Profile
from oracle.search.request import Devices, Request
from oracle.stages import crossings, weights_before, weights_of
from oracle.strategies.common import DIRECTIONS
from oracle.strategies.stage_terms import layers_of
from oracle.traffic import Message

Floats = NDArray[np.float64]
DEFAULT_BANDWIDTH = 1e9  # B/s: that of PipeDream's optimizer
DEFAULT_NOTE = "no bandwidth was given: 1e9 B/s, the default of PipeDream's optimizer"
LINEAR_NOTE = "a profile has one mini-batch: a micro-batch of 1/M of it takes 1/M of its time"
SAMPLES = 96  # sizes at which a law is asked; between them it is taken as straight


@dataclass(frozen=True)
class Pieces:
    """The states of a model at one size of micro-batch; `sure` prices what all of them compute.

    `held_bytes` up to and with each state: values (and gradients) of one micro-batch. `sent(k, s)`:
    seconds of what crosses behind state k, between nodes or not. `update(i, j)`: of states i to j.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    state_of: tuple[int, ...]  # by layer, the first state that has it
    states: States
    held_bytes: Floats
    sure: Cost
    sent: Callable[[int, bool], float]
    update: Callable[[int, int], float]
    levels: tuple[Level, ...]


def machines_of(request: Request) -> tuple[int, ...]:
    """Machines of each level, the innermost first. Raises InputError."""
    text = request.options.get("machines", "")
    if not text:
        of = request.devices
        return tuple(n for n in (of.per_node, of.nodes) if n > 1) or (1,)
    words = text.lower().split("x")
    if not all(w.isascii() and w.isdecimal() and int(w[:7]) > 0 for w in words) or len(text) > 40:
        raise InputError(f"machines={text} is not like 4 or 4x4, the innermost level first")
    return tuple(map(int, words))


def numbers_of(request: Request, option: str) -> tuple[float, ...]:
    """Positive numbers with commas between them; none where none were given. Raises InputError."""
    text = request.options.get(option, "")
    try:
        found = tuple(float(word) for word in text.split(",")) if text else ()
    except ValueError:
        found = (-1.0,)
    if not all(0 < value < math.inf for value in found):
        raise InputError(f"{option}={text} is no number above 0 (or several, with commas)")
    return found


def pieces_of(request: Request, microbatches: int) -> Pieces:
    """Those of the request's model, one micro-batch at a time. Raises InputError."""
    if isinstance(request.model, Profile):
        return _of_profile(request, request.model, microbatches)
    return _of_layers(request, microbatches)


def _bandwidths(request: Request, levels: int, default: Sequence[float]) -> tuple[float, ...]:
    given = numbers_of(request, "bandwidth") or tuple(default)
    if len(given) == 1:
        given *= levels
    if len(given) != levels:
        raise InputError(
            f"{len(given)} bandwidths for {levels} levels of machines: give one of each"
        )
    return given


def compression_of(request: Request) -> float | None:
    """By how much activations are compressed; None: what they take is not counted."""
    if request.options.get("compression"):
        return request.number("compression", 1.0)
    return None if isinstance(request.model, Profile) else 1.0


def _of_profile(request: Request, profile: Profile, microbatches: int) -> Pieces:
    machines = machines_of(request)
    bandwidths = _bandwidths(request, len(machines), [DEFAULT_BANDWIDTH] * len(machines))
    whole = states_of(profile)
    m = microbatches
    states = replace(
        whole, compute_s=whole.compute_s / m, forward_s=whole.forward_s / m,
        activation_bytes=whole.activation_bytes / m, output_bytes=whole.output_bytes / m,
    )  # fmt: skip
    cut = profile.without_inputs.nodes
    first = [next((s for s, of in enumerate(states.members) if of >> i & 1), -1)
             for i in range(len(cut))]  # fmt: skip
    here = [i for i, s in enumerate(first) if s >= 0]
    seconds = float(states.compute_s[-1])
    ratio = compression_of(request) or 1.0

    def sent(state: int, between_nodes: bool) -> float:
        return float(states.output_bytes[state]) / bandwidths[-1 if between_nodes else 0] / ratio

    return Pieces(
        tuple(cut[i].name for i in here), tuple(cut[i].what for i in here),
        tuple(first[i] for i in here), states, states.activation_bytes, Cost(seconds, "measured"),
        sent, lambda i, j: 0.0,
        tuple(bandwidth_levels(states, machines, bandwidths, compression_of(request))),
    )  # fmt: skip


def _of_layers(request: Request, microbatches: int) -> Pieces:
    model, machines = request.spec, machines_of(request)
    if request.batch % microbatches:
        raise InputError(f"{microbatches} micro-batches do not divide B = {request.batch}")
    if len(machines) > 2:
        raise InputError("a model's layers are searched on one or two levels of machines")
    samples = request.batch // microbatches
    count = len(model.layers)
    per_node = machines[0] if len(machines) == 2 or request.devices.per_node > 1 else 1
    devices = Devices(max(1, math.prod(machines) // per_node), per_node)
    machine, _ = machine_of(request.machine, devices)
    costs = machine.costs(min(devices.per_node, machine.parameters.ranks_per_node),
                          request.optimizer)  # fmt: skip
    division = Division("pipeline", 1, request.batch, segments=microbatches)
    if request.form == "paper":
        of = machine.paper(model, division, request.optimizer)
        seconds = {d: [c.seconds * samples for c in of.each(d)] for d in DIRECTIONS}
        sure = total([c for d in DIRECTIONS for c in of.each(d)]).times(samples)
    else:
        layers = layers_of(model, division, costs)
        seconds = dict(layers.seconds)
        sure = total(layers.run(0, count, d) for d in DIRECTIONS)
    forward, backward = (np.cumsum(seconds[d]) for d in DIRECTIONS)
    out = np.array([DELTA * samples * float(sum(of.forward)) for of in crossings(model)] + [0.0])
    held = np.cumsum([2.0 * DELTA * samples * activation_items([x]) for x in model.layers])
    parameters = np.array(weights_before(model)[1][1:], dtype=np.float64)
    states = States(
        forward + backward, forward, held, parameters, out[1:],
        np.tri(count, k=-1, dtype=bool), tuple((1 << i + 1) - 1 for i in range(count)), count,
    )  # fmt: skip
    network = machine.network
    strides = [1 if per_node > 1 else machine.parameters.ranks_per_node, per_node]
    betas = [1 / network.link(1 + stride, "p2p").p2p(1e9).seconds * 1e9
             for stride in strides[: len(machines)]]  # fmt: skip
    given = request.form == "paper" or bool(request.options.get("bandwidth"))
    bandwidths = _bandwidths(request, len(machines), betas) if given else ()

    def sent(state: int, between_nodes: bool) -> float:
        nbytes = float(states.output_bytes[state]) / (compression_of(request) or 1.0)
        if not nbytes:
            return 0.0
        if bandwidths:
            return nbytes / bandwidths[-1 if between_nodes else 0]
        stride = strides[len(machines) - 1] if between_nodes else strides[0]
        return network.time(Message("p2p", 4 * math.ceil(nbytes / 4), 2, stride)).seconds

    def update(i: int, j: int) -> float:
        return costs.tensors.update(weights_of(model, i, j + 1), request.optimizer).seconds

    levels = (
        bandwidth_levels(states, machines, bandwidths, compression_of(request)) if bandwidths
        else _measured_levels(states, machines, strides, network.time, sent)
    )  # fmt: skip
    return Pieces(
        tuple(x.name for x in model.layers), tuple(x.shape.kind for x in model.layers),
        tuple(range(count)), states, held, sure, sent, update, tuple(levels),
    )  # fmt: skip


def _measured_levels(
    states: States, machines: Sequence[int], strides: Sequence[int],
    time: Callable[[Message], Cost], sent: Callable[[int, bool], float],
) -> list[Level]:  # fmt: skip
    """Levels whose exchange and messages follow the calibrated laws.

    A law is asked at SAMPLES sizes and taken as straight between them: laws are made of such pieces.
    Over the outer level each device of a node sums its share, all at once.
    """
    parameters, levels, below = between(states.parameter_bytes), [], 1
    for number, count in enumerate(machines):
        levels.append(_measured_level(
            states, parameters, count, below, strides[number], number > 0, time, sent
        ))  # fmt: skip
        below *= count
    return levels


def _measured_level(
    states: States, parameters: Floats, count: int, below: int, stride: int, outer: bool,
    time: Callable[[Message], Cost], sent: Callable[[int, bool], float],
) -> Level:  # fmt: skip
    largest = max(4.0, float(parameters[0, -1]) / below)
    sizes = np.unique(4 * np.round(np.geomspace(4.0, 4 * math.ceil(largest / 4), SAMPLES) / 4))
    known: dict[int, Floats] = {}

    def sync(m: int) -> Floats:
        if m not in known:
            share = np.maximum(parameters, 0.0) / below
            if m == 1:
                known[m] = np.zeros_like(share)
            else:
                law = [time(Message("allreduce", int(n), m, stride, below)).seconds for n in sizes]
                seconds = np.interp(share, sizes, law)
                known[m] = np.where(share > 0, seconds, 0.0)
        return known[m]

    crossing = np.array([2.0 * sent(k, outer) for k in range(len(states.compute_s))])

    def send(m: int) -> Floats:
        found: Floats = crossing / m
        return found

    return Level(count, sync, sync, send)
