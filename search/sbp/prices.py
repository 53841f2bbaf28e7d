"""Cost of a layer in a state and of moving between states; bytes of a state.

Compute: LayerCosts of the part (measured shapes, else the law of its kind). Communication:
`Links.cost` of states.py's collectives, once per micro-batch; gradients once per iteration.
"""

from __future__ import annotations

import math
from typing import Literal

from calib.fitting.parameters.memory import STATES
from calib.foundation.layers import LayerShape
from calib.oracle.cost import NOTHING, Cost, total
from calib.oracle.costs.machine import Machine
from calib.oracle.layout.workload import LayerPiece, Tensors, Workload, tensors
from calib.search.links import Links
from calib.search.request import SearchRequest
from calib.search.sbp.networks import ChainNetwork
from calib.search.sbp.states import Communication, ProductLayer, State, before, inside

DIRECTIONS: tuple[Literal["forward", "backward"], ...] = ("forward", "backward")
PHASES = ("compute", "redistribute", "synchronize", "update")
INDEX_ITEMS = 2  # an index of 8 bytes


class ChainPrices:
    """Of one request and network, with `micro` micro-batches and `delta` bytes per item."""

    def __init__(
        self,
        request: SearchRequest,
        machine: Machine,
        links: Links,
        network: ChainNetwork,
        micro: int,
        delta: int,
    ) -> None:
        self.network, self.batch, self.micro, self.delta = network, request.samples, micro, delta
        self.optimizer, self.links = request.optimizer, links
        self.costs = machine.costs(request.devices.per_node, request.optimizer)

    def communicate(self, found: list[Communication]) -> Cost:
        """All of one iteration, of collectives of the whole batch."""
        return total(
            self.links.cost(one.operation, one.nbytes, one.group)
            if one.phase == "gradient"
            else self.links.cost(one.operation, one.nbytes / self.micro, one.group).times(
                self.micro
            )
            for one in found
        )

    def node(self, index: int, state: State) -> dict[str, Cost]:
        """By phase, what depends on the layer's own state alone."""
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
            scores = _linear(self.network.width, sequence)
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
        """Weights, gradients, optimizer's state; activations of a micro-batch, values and gradients.

        Mixed precision (delta 2): half weights and gradients, the optimizer's state and the master
        weights in 4 bytes.
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
    """The part of a layer whose outputs are cut in `columns` and whose inputs are in `rows` parts."""
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


def _linear(inputs: int, outputs: int) -> LayerShape:
    return LayerShape(
        kind="linear",
        input_shapes=((inputs,),),
        output_shape=(outputs,),
        parameter_shapes=((outputs, inputs),),
    )


_made: dict[tuple[str, bool], Workload] = {}


def _workload(piece: LayerPiece) -> Workload:
    key = (piece.shape.key(1), piece.needs_input_grad)
    if key not in _made:
        counts = {0: 1}
        _made[key] = Workload(
            pieces=(piece,),
            index=(0,),
            split=(True,),
            counts={"all": counts, "split": counts, "whole": {}},
            weights=tensors(piece.shape.parameter_shapes),
            layers=1,
            output_items=piece.shape.output_items,
        )
    return _made[key]
