"""t_C and t_S: cost of a layer under a configuration, and of moving bytes.

measured: times at the part's shape with as many ranks of a node at work as the configuration has there,
with what an iteration adds. Gradients are packed and summed in one flat buffer, of which a layer pays
the share of its bytes; the update is one pass over all weights. paper (Jia et al., section 5.1): the
time of the part alone, a parameter server whose link takes a copy's gradients and weights one after
the other, bytes over bandwidth, and no time to update.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal, NamedTuple

from calib.foundation.collectives import Operation
from calib.foundation.errors import InputError, MissingParameter
from calib.foundation.execution import ItemType
from calib.foundation.layers import ITEM_BYTES, LayerShape, Shape
from calib.oracle.cost import NOTHING, Cost, total
from calib.oracle.costs.machine import Costs
from calib.oracle.layout.partitions import Configuration, part_shape
from calib.oracle.layout.traffic import Message
from calib.oracle.layout.workload import LayerPiece, Tensors, Workload, model_weights, tensors
from calib.oracle.model.layer import Layer
from calib.oracle.model.recomputed import checkpointed
from calib.oracle.model.spec import ModelSpec
from calib.oracle.strategies.common import DIRECTIONS
from calib.search.links import Links
from calib.search.lone_layers import lone
from calib.search.request import SearchRequest

SYNC = ("allreduce", "server")
EXCHANGE = ("flat", "layers")
GATHERING: tuple[Operation, ...] = ("reduce_scatter", "allgather")
NO_TENSORS = Tensors("", 0, 0)
NO_COPIES = (
    "no concat was measured: copies around messages are left out; measure filter parallelism"
)
LoopKind = Literal["update", "pack", "unpack"]


class Sharers(NamedTuple):
    """Devices with the same weights: how many, at most `inside` of them in one node, groups at once."""

    size: int
    inside: int
    groups: int
    span: int
    nodes: int


@lru_cache(maxsize=1 << 14)
def sharers(of: Configuration, per_node: int) -> Sharers:
    """Those of the first part; devices 0, 1, ... have the parts in order."""
    members = [
        part
        for part in range(of.parts)
        if (place := of.place(part)).channel == 0 and place.input == 0
    ]
    nodes = [member // per_node for member in members]
    inside = max(nodes.count(node) for node in set(nodes))
    return Sharers(len(members), inside, of.channel * of.input, members[-1] + 1, len(set(nodes)))


class LayerPrices:
    """The prices of one request. Raises InputError for layers that share weights."""

    def __init__(self, request: SearchRequest) -> None:
        self.model: ModelSpec = request.spec
        if self.model.tied:
            raise InputError(f"{self.model.tied}, which a plan for each layer would cut apart")
        if checkpointed(self.model):
            raise InputError(
                f"{checkpointed(self.model)}; a plan per layer cuts and trains each by itself, without "
                "the regions that would run again"
            )
        self.devices, self.batch, self.form = request.devices, request.samples, request.form
        self.sync = request.word("sync", SYNC if self.form == "measured" else SYNC[::-1])
        self.flat = request.word("exchange", EXCHANGE) == "flat" and self.form == "measured"
        self.optimizer, self.item_bytes = request.optimizer, self.model.items.activation_bytes
        self.links = Links(request.machine, request.devices, request.form)
        self._machine, self._network = self.links.machine, self.links.machine.network
        self._all_busy = self._machine.costs(
            min(self.devices.per_node, self.devices.p), self.optimizer, self.model.execution
        )
        self._parts: dict[tuple[int, int, tuple[int, ...], int], Workload] = {}
        self._moves: dict[tuple[float, bool], Cost] = {}
        self._copies: dict[float, Cost] = {}
        self._shares: dict[tuple[LoopKind, int], float] = {}

    def part(self, index: int, of: Configuration) -> LayerShape:
        """The layer as a device runs it."""
        return self._work(index, of).pieces[0].shape

    def weights(self, index: int, of: Configuration) -> tuple[Shape, ...]:
        """Weights and biases that a device has of it."""
        named = self._work(index, of).weights.named
        return () if isinstance(named, str) else named

    def compute(self, index: int, of: Configuration) -> Cost:
        """t_C: forward and backward of the largest part; NOTHING of a view."""
        if self.model.layers[index].shape.is_free:
            return NOTHING
        work, batch, layers = self._work(index, of), self.batch // of.sample, self._costs(of).layers
        found = [layers.pieces(work, batch, direction)[0] for direction in DIRECTIONS]
        if self.form == "measured":
            found += [layers.beside(work, {0: 1}, batch, direction)[0] for direction in DIRECTIONS]
        return total(found)

    def terms(self, index: int, of: Configuration) -> Cost:
        """Reduce-scattering the terms of a layer whose input channels are cut, and gathering dL/dy."""
        if of.input == 1:
            return NOTHING
        nbytes = self.item_bytes * self.batch // of.sample * self.part(index, of).output_items
        groups = of.parts // of.input  # of devices one after the other
        if self.form == "paper":
            link = self._network.link(of.input, "allgather", groups)
            return link.hockney(0.0, 2.0 * (of.input - 1) * nbytes / of.input)
        met, found = self._costs(of).tensors.meeting, []
        for name in GATHERING:
            sent = self._costs(of).sent(Message(name, nbytes, of.input, 1, groups), self.item_bytes)
            found.append(met("layerwise", sent, 1))
        return total([*found, self.copy(nbytes).times(len(found))])

    def synchronize(self, index: int, of: Configuration) -> Cost:
        """t_S without the update: gradients of the weights that several devices have."""
        weights, group = self._work(index, of).weights, sharers(of, self.devices.per_node)
        if group.size == 1 or not weights.nbytes:
            return NOTHING
        if self.sync == "server":
            return self._by_server(weights.nbytes, group)
        if self.form == "paper":
            link = self._network.link(group.span, "allreduce")
            return link.hockney(0.0, 2.0 * (group.size - 1) * weights.nbytes / group.size)
        passes = [self._pass(name, weights, of) for name in ("pack", "unpack")]
        return total([*passes, self._allreduce(weights.nbytes, group, of)])

    def update(self, index: int, of: Configuration) -> Cost:
        """The optimizer's pass over the part's weights."""
        weights = self._work(index, of).weights
        if self.form == "paper" or not weights.nbytes:
            return NOTHING
        return self._pass("update", weights, of)

    def move(self, nbytes: float, between_nodes: bool) -> Cost:
        """One message to or from the busiest device."""
        if nbytes <= 0:
            return NOTHING
        key = (nbytes, between_nodes)
        if key not in self._moves:
            self._moves[key] = self._move(nbytes, between_nodes)
        return self._moves[key]

    def _move(self, nbytes: float, between_nodes: bool) -> Cost:
        if self.form == "paper":
            return self._bandwidth(nbytes, between_nodes)
        stride = self.devices.per_node if between_nodes else 1
        # there and back at once, as training posts its messages
        message = Message("p2p_both", math.ceil(nbytes / ITEM_BYTES) * ITEM_BYTES, 2, stride)
        try:
            cost = self._network.time(message)
        except MissingParameter:
            cost = self.links.p2p(nbytes, between_nodes)
        return self._all_busy.tensors.meeting("layerwise", cost, 1)

    def copy(self, nbytes: float) -> Cost:
        """Packing or joining so many bytes around a message; NOTHING, with a note, without that law."""
        if nbytes <= 0 or self.form == "paper":
            return NOTHING
        if nbytes not in self._copies:
            cutting = self._all_busy.tensors.cutting
            try:
                self._copies[nbytes] = cutting("concat", "", 2, math.ceil(nbytes))
            except MissingParameter:
                self._copies[nbytes] = NOTHING.at_best("extrapolated").noted(NO_COPIES)
        return self._copies[nbytes]

    def _bandwidth(self, nbytes: float, between_nodes: bool) -> Cost:
        span = 1 + (self.devices.per_node if between_nodes else 1)
        return self._network.link(span, "p2p").hockney(0.0, nbytes)

    def _by_server(self, nbytes: int, group: Sharers) -> Cost:
        """The server is one of the group; its link takes the others' gradients, then gives weights."""
        others = {False: group.inside - 1, True: group.size - group.inside}  # by between nodes
        if self.form == "paper":
            costs = [self._bandwidth(2.0 * n * nbytes, far) for far, n in others.items() if n]
        else:
            costs = [self.links.p2p(nbytes, far, 2.0 * n) for far, n in others.items() if n]
        return total(costs)

    def _allreduce(self, nbytes: int, group: Sharers, of: Configuration) -> Cost:
        stride = 1 if group.nodes == 1 else max(1, self.devices.per_node // group.inside)
        whole = model_weights(self.model).nbytes if self.flat else nbytes
        message = Message("allreduce", whole, group.size, stride, group.groups)
        costs = self._costs(of)
        sent = costs.sent(message, self.model.items.weight_bytes)
        return costs.tensors.exchanging(sent, whole).times(nbytes / whole)

    def _pass(self, name: LoopKind, weights: Tensors, of: Configuration) -> Cost:
        """A layer's share of one pass over all weights."""
        return _passing(self._costs(of), name, weights).times(self._share(name, of))

    def _share(self, name: LoopKind, of: Configuration) -> float:
        """One pass over all weights, relative to the sum of passes over each layer's."""
        costs = self._costs(of)
        key = (name, costs.tensors.active_ranks)
        if key not in self._shares:
            items = self.model.items
            each = [tensors(layer.own_parameters, items) for layer in self.model.layers]
            apart = math.fsum(_passing(costs, name, one).seconds for one in each if one.nbytes)
            together = _passing(costs, name, model_weights(self.model)).seconds
            self._shares[key] = together / apart if apart > 0 else 1.0
        return self._shares[key]

    def _costs(self, of: Configuration) -> Costs:
        """With as many ranks of a node at work as the configuration has there; paper: one."""
        active = min(of.parts, self.devices.per_node) if self.form == "measured" else 1
        return self._machine.costs(active, self.optimizer, self.model.execution)

    def _work(self, index: int, of: Configuration) -> Workload:
        key = (index, of.channel, of.spatial, of.input)
        if key not in self._parts:
            self._parts[key] = _workload(self.model.layers[index], of, self.model.items)
        return self._parts[key]


def _workload(layer: Layer, of: Configuration, items: ItemType) -> Workload:
    """One layer's part."""
    shape = part_shape(layer.shape, of)
    held = list(shape.parameter_shapes)
    whole = layer.shape.parameter_shapes
    if of.input > 1 and len(whole) > 1:  # each adds the biases of what it has in the end
        held.append((whole[1][0] // (of.channel * of.input),))
    weights = tensors(tuple(held), items) if held else NO_TENSORS
    return lone(LayerPiece(shape, layer.needs_input_grad, items), weights)


def _passing(costs: Costs, name: LoopKind, of: Tensors) -> Cost:
    if name == "update":
        return costs.tensors.update(of, costs.optimizer)
    return costs.tensors.passing(name, of)
