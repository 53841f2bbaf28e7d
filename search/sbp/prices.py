"""Cost of a layer in a state and of moving between states, bytes of a state, and tables of them.

Compute: LayerCosts of the part (measured shapes, else the law of its kind). Communication:
`Links.cost` of states.py's collectives, once per micro-batch; gradients once per iteration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from calib.fitting.parameters.memory import STATES
from calib.foundation.arrays import Floats
from calib.foundation.errors import InputError
from calib.foundation.layers import LayerShape
from calib.oracle.cost import NOTHING, Cost, total
from calib.oracle.layout.workload import LayerPiece, Tensors, Workload, tensors
from calib.oracle.strategies.common import DIRECTIONS
from calib.search.links import Links
from calib.search.lone_layers import lone
from calib.search.request import Look, SearchRequest, never
from calib.search.sbp.methods import CostChain
from calib.search.sbp.networks import ChainNetwork, linear
from calib.search.sbp.states import Communication, ProductLayer, State, before, inside, possible

PHASES = ("compute", "redistribute", "synchronize", "update")
INDEX_ITEMS = 2  # an index of 8 bytes


class ChainPrices:
    """Prices of a network with `micro` micro-batches and `delta` bytes per item."""

    def __init__(
        self, request: SearchRequest, links: Links, network: ChainNetwork, micro: int, delta: int
    ) -> None:
        self.network, self.batch, self.micro, self.delta = network, request.samples, micro, delta
        self.optimizer, self.links = request.optimizer, links
        self.costs = links.machine.costs(request.devices.per_node, request.optimizer)

    def communicate(self, found: list[Communication]) -> Cost:
        """Collectives of the whole batch: those of gradients once, others once per micro-batch."""

        def cost(one: Communication) -> Cost:
            times = 1 if one.phase == "gradient" else self.micro
            return self.links.cost(one.operation, one.nbytes / times, one.group).times(times)

        return total(map(cost, found))

    def node(self, index: int, state: State) -> dict[str, Cost]:
        """By phase, the costs that depend on the layer's own state alone."""
        layer = self.network.layers[index]
        own = inside(layer, state, self.batch, self.delta)
        come = before(layer, state, state, self.batch, self.delta) if index else []
        gradients = [one for one in own if one.phase == "gradient"]
        if self.network.tied and layer.kind == "embedding":
            gradients = []  # summed once, with those of the layer that has the same weights
        moved = [one for one in own if one.phase != "gradient"]
        return {
            "compute": self.compute(index, state),
            "redistribute": self.communicate(moved + come),
            "synchronize": self.communicate(gradients),
            "update": self.update(layer, state),
        }

    def change(self, index: int, earlier: State, state: State) -> Cost:
        """The all-to-all between two layers' states, there and back."""
        found = before(self.network.layers[index], state, earlier, self.batch, self.delta)
        return self.communicate([one for one in found if one.operation == "all_to_all"])

    def compute(self, index: int, state: State) -> Cost:
        """Forward and backward of the device's part, for all micro-batches."""
        layer, shape = self.network.layers[index], self.network.shapes[index]
        p1, p2, p3 = state.degrees
        rows = self.network.rows if shape.kind == "linear" else 1
        per = self.batch // (p1 * self.micro) * rows
        found = [self._passes(part(shape, p2, p3), per, not layer.reads_data)]
        if layer.heads:  # scores and their sum, two products of sequence^2 by the width of a head
            sequence = self.network.rows
            scores = linear(self.network.width, sequence)
            each = self._passes(scores, per * layer.heads // state.columns, True)
            found.append(each.times(2))
        return total(found).times(self.micro)

    def update(self, layer: ProductLayer, state: State) -> Cost:
        """The optimizer's pass over the part's weights."""
        nbytes = 4 * layer.weights // (state.columns)
        if not nbytes or layer.name in self.network.tied:
            return NOTHING
        return self.costs.tensors.update(Tensors("", 1, nbytes), self.optimizer)

    def nbytes(self, index: int, state: State) -> int:
        """Weights, gradients, optimizer state; activations of a micro-batch and their gradients.

        Mixed precision (delta 2): weights and gradients in 2 bytes, optimizer state and master weights
        in 4.
        """
        layer = self.network.layers[index]
        p1, p2, p3 = state.degrees
        weights = 0 if layer.name in self.network.tied else layer.weights / state.columns
        states = STATES[self.optimizer] + (self.delta < 4)
        held = weights * (2 * self.delta + 4 * states)
        reads = INDEX_ITEMS * layer.inputs / p1 if layer.reads_data else layer.inputs / (p1 * p3)
        items = reads + layer.outputs / (p1 * p2)
        if layer.heads:
            items += layer.heads * self.network.rows**2 / (p1 * state.columns)
        return math.ceil(held + 2 * self.delta * items * self.batch / self.micro)

    def _passes(self, shape: LayerShape, batch: int, needs_input_grad: bool) -> Cost:
        work = _workload(LayerPiece(shape, needs_input_grad))
        return total(self.costs.layers.pieces(work, batch, way)[0] for way in DIRECTIONS)


def part(shape: LayerShape, columns: int, rows: int) -> LayerShape:
    """The part of a layer whose outputs are in `columns` parts and whose inputs are in `rows`."""
    if columns == rows == 1:
        return shape
    weight = shape.parameter_shapes[0]
    if shape.kind == "embedding":
        held = (weight[0] // rows, weight[1] // columns)
        return shape.model_copy(
            update={
                "output_shape": (*shape.output_shape[:-1], held[1]),
                "parameter_shapes": (held,),
            }
        )
    weights = (weight[0] // columns, weight[1] // rows, *weight[2:])
    inputs, output = shape.input_shapes[0], shape.output_shape
    at = -1 if shape.kind == "linear" else 0
    read, made = list(inputs), list(output)
    read[at], made[at] = read[at] // rows, made[at] // columns
    biases = tuple((of[0] // columns,) for of in shape.parameter_shapes[1:])
    return shape.model_copy(
        update={
            "input_shapes": (tuple(read),),
            "output_shape": tuple(made),
            "parameter_shapes": (weights, *biases),
        }
    )


_made: dict[tuple[str, bool], Workload] = {}  # LayerCosts knows a workload by its identity


def _workload(piece: LayerPiece) -> Workload:
    key = (piece.shape.key(1), piece.needs_input_grad)
    if key not in _made:
        _made[key] = lone(piece, tensors(piece.shape.parameter_shapes))
    return _made[key]


def chain_of(
    prices: ChainPrices, states: Sequence[State], limit: float, look: Look = never
) -> CostChain:
    """The tables of a network's chain; equal layers share one array.

    Raises InputError where a layer has no state at all, BudgetOver.
    """
    layers = prices.network.layers
    nodes: dict[ProductLayer, tuple[Floats, Floats]] = {}
    edges: dict[tuple[int, bool], Floats] = {}
    own, between, nbytes = [], [], []
    for index, layer in enumerate(layers):
        last = index == len(layers) - 1
        key = layer._replace(name="last" if last else "")  # equal layers cost the same
        if key not in nodes:
            nodes[key] = _node(prices, index, states, last, look)
        own.append(nodes[key][0])
        nbytes.append(nodes[key][1])
        if index:
            moved = (layer.inputs, layer.reads_data)
            if moved not in edges:
                edges[moved] = _edge(prices, index, states, look)
            between.append(edges[moved])
    return CostChain(own, between, nbytes, limit)


def _node(
    prices: ChainPrices, index: int, states: Sequence[State], last: bool, look: Look
) -> tuple[Floats, Floats]:
    layer, per_micro = prices.network.layers[index], prices.batch // prices.micro
    seconds = np.full(len(states), math.inf)
    nbytes = np.full(len(states), math.inf)
    for k, state in enumerate(states):
        look()
        if possible(layer, state, per_micro, last):
            seconds[k] = sum(cost.seconds for cost in prices.node(index, state).values())
            nbytes[k] = prices.nbytes(index, state)
    if not np.isfinite(seconds).any():
        raise InputError(
            f"no state cuts {layer.name} ({layer.channels} -> {layer.filters}) and {per_micro} "
            f"samples of a micro-batch over these devices into equal parts"
        )
    return seconds, np.where(np.isfinite(nbytes), nbytes, 0.0)


def _edge(prices: ChainPrices, index: int, states: Sequence[State], look: Look) -> Floats:
    """The all-to-all depends on how rows are cut; on a whole state only where p1 does not divide."""
    splits = list(dict.fromkeys(state.split for state in states))
    first = {split: next(s for s in states if s.split == split) for split in splits}

    def change(before: State, state: State) -> float:
        look()
        return prices.change(index, before, state).seconds

    table = np.array([[change(first[a], first[b]) for b in splits] for a in splits])
    at = np.array([splits.index(state.split) for state in states])
    return np.asarray(table[at[:, None], at[None, :]])
