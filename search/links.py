"""Costs of operations between groups of devices, in either form.

A group is (nodes, devices per node); it is inside a node iff nodes = 1 (formulas.md, "AutoDDL").
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from calib.foundation.collectives import Operation
from calib.foundation.errors import InputError
from calib.oracle.cost import NOTHING, Cost
from calib.oracle.costs.machine import Machine
from calib.oracle.layout.traffic import Message
from calib.oracle.projection import Form
from calib.search.request import Devices

OTHER_NODES = "parameters were measured with {} devices per node; {} were asked for"
Collective = Literal["allreduce", "allgather", "reduce_scatter", "all_to_all", "broadcast"]


class LinkGroup(NamedTuple):
    """Members on `nodes` nodes, `per_node` on each."""

    nodes: int
    per_node: int

    @property
    def size(self) -> int:
        """Members."""
        return self.nodes * self.per_node


def adapted(machine: Machine, devices: Devices) -> tuple[Machine, tuple[str, ...]]:
    """The machine with nodes of as many devices as asked for, and a note where its own differ."""
    parameters = machine.parameters
    if devices.nodes == 1 and devices.per_node <= parameters.ranks_per_node:
        return machine, ()
    if devices.per_node == parameters.ranks_per_node:
        return machine, ()
    other = parameters.model_copy(update={"ranks_per_node": devices.per_node})
    return Machine(other), (OTHER_NODES.format(parameters.ranks_per_node, devices.per_node),)


class Links:
    """Operations on a cluster of `devices`; `machine` and `notes` are those of `adapted`.

    measured: the calibrated laws, with contention between groups that work at once. paper: Hockney's
    alpha-beta form of formulas.md, "Collectives", without contention.
    """

    def __init__(self, machine: Machine, devices: Devices, form: Form) -> None:
        self.machine, self.notes = adapted(machine, devices)
        self._network, self.devices, self.form = self.machine.network, devices, form
        self._known: dict[tuple[str, int, LinkGroup, int], Cost] = {}

    def cost(
        self, operation: Collective, nbytes: float, group: LinkGroup, at_once: int = 0
    ) -> Cost:
        """A collective of m = `nbytes` (of the whole buffer) in each group; NOTHING in a group of one.

        `at_once` groups do it at the same time; 0: as many as the cluster has. Raises
        MissingParameter.
        """
        size = group.size
        if size == 1 or nbytes <= 0:
            return NOTHING
        items = math.ceil(nbytes / 4) * 4
        key = (operation, items, group, at_once)
        if key not in self._known:
            self._known[key] = self._cost(operation, items, group, at_once)
        return self._known[key]

    def p2p(self, nbytes: float, between_nodes: bool, count: float = 1.0) -> Cost:
        """`count` messages of `nbytes` each, one after the other."""
        if nbytes <= 0:
            return NOTHING
        stride = self.devices.per_node if between_nodes else 1
        if self.form == "paper":
            return self._network.link(1 + stride, "p2p").p2p(nbytes, count)
        items = math.ceil(nbytes / 4) * 4
        return self._network.time(Message("p2p", items, 2, stride)).times(count)

    def _cost(self, operation: Collective, nbytes: int, group: LinkGroup, at_once: int) -> Cost:
        each = self.devices.per_node
        if group.nodes > self.devices.nodes or group.per_node > each or each % group.per_node:
            raise InputError(
                f"{group.nodes} x {group.per_node} devices are no part of a cluster of "
                f"{self.devices.nodes} x {each}"
            )
        size = group.size
        stride = 1 if group.nodes == 1 else each // group.per_node
        if self.form == "paper":
            return self._hockney(operation, nbytes, size, 1 + (size - 1) * stride)
        groups = at_once or max(1, self.devices.p // size)
        name: Operation = operation
        return self._network.time(Message(name, nbytes, size, stride, groups))

    def _hockney(self, operation: Collective, nbytes: int, p: int, span: int) -> Cost:
        link = self._network.link(span, operation)
        if operation == "allreduce":
            return link.allreduce(p, nbytes)
        if operation == "broadcast":
            steps = math.ceil(math.log2(p))
            return link.hockney(steps, steps * nbytes)
        # ring allgather, pairwise reduce-scatter and all-to-all: (p-1) (alpha + m beta / p)
        return link.allgather(p, nbytes)
