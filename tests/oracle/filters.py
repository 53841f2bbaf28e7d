"""Filter and channel parallelism by rings, and a machine that was measured at every part of a model."""

from __future__ import annotations

from tests.oracle.handmade import linear, mlp, relu
from tests.oracle.simulated import (
    Network,
    Tables,
    Weighted,
    measured_parts,
    ring_allgather,
    ring_allreduce,
    wire,
)

from calib.fitting.parameters.file import Parameters
from calib.oracle.model.spec import tensors_key


def split_of(strategy: str, net: Network) -> tuple[Weighted, ...]:
    """The layers that a strategy splits: channel leaves the first one whole."""
    return net.weighted[strategy == "channel" :]


def largest_p(strategy: str, net: Network) -> int:
    """By its smallest layer."""
    layers = split_of(strategy, net)
    return min(layer.filters if strategy == "filter" else layer.channels for layer in layers)


def simulated(strategy: str, net: Network, p: int, batch: int, costs: Tables) -> float:
    """Of filter, y of all but the last layer is gathered, and dL/dx of all but the first summed.

    Of channel, y of all but the first is summed, and dL/dx of all but the first two gathered.
    """
    layers = net.weighted
    gather = wire(*costs.wires[costs.level(p), "allgather"])
    reduce = wire(*costs.wires[costs.level(p), "allreduce"])
    clocks = [0.0] * p
    if strategy == "filter":
        for layer in layers[:-1]:
            clocks = ring_allgather(p, 4.0 * batch * layer.y, gather, clocks)
        for layer in reversed(layers[1:]):
            clocks = ring_allreduce(p, 4.0 * batch * layer.x, reduce, clocks)
    else:
        for layer in layers[1:]:
            clocks = ring_allreduce(p, 4.0 * batch * layer.y, reduce, clocks)
        for layer in reversed(layers[2:]):
            clocks = ring_allgather(p, 4.0 * batch * layer.x, gather, clocks)
    return max(clocks)


# FC 3 -> 4, ReLU, FC 4 -> 5 and the loss, 8 samples, on 2 ranks: the larger part has 2 and 3 filters
HAND = mlp([3, 4, 5])
PARTS = [
    (linear("fc1", "input", 3, 2, first=True), 1e-5, 2e-5),
    (relu("relu1", "fc1", 4), 3e-6, 4e-6),
    (linear("fc2", "relu1", 4, 3), 5e-5, 6e-5),
    (HAND.layers[-1], 7e-6, 8e-6),
]
WEIGHTS = tensors_key(((2, 3), (2,), (3, 4), (3,)))
# y of fc1 and of fc2, and their gradients, in two
CUT, LAST = (f"{tensors_key(((8, n),))}/2" for n in (4, 5))
LISTS = {
    "update": {WEIGHTS: 9e-6},
    "concat": {CUT: 1.1e-6, LAST: 1.3e-6},
    "split": {CUT: 1.2e-6, LAST: 1.7e-6},
}
SENT = [
    ("allgather", "node", 4 * 8 * 4, 3e-5),
    ("allgather", "node", 4 * 8 * 5, 4e-5),
    ("allreduce", "node", 4 * 8 * 4, 7e-5),
]


def by_hand(**changes: object) -> Parameters:
    """HAND on 2 ranks under filter."""
    return measured_parts(PARTS, LISTS, SENT, 8, **changes)
