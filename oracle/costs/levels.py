"""Levels, nodes and flows of an operation's groups on a machine.

Ranks are ordered as in microbench/groups.py: the ranks of a node are adjacent, and so are the nodes of a
rack. Groups of p ranks that are `stride` apart fill blocks of p x stride.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from calib.fitting.parameters.file import Parameters
from calib.oracle.layout.traffic import Message

NODE, RACK, SYSTEM = "node", "rack", "system"
# the pattern of flows repeats: at most this many nodes are examined
MOST_NODES = 16


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """`groups` groups of `size` ranks that are `stride` apart."""

    size: int
    stride: int = 1
    groups: int = 1

    @classmethod
    def of(cls, message: Message) -> GroupLayout:
        """The layout of a message."""
        return cls(message.group_size, message.stride, message.groups)

    @property
    def block(self) -> int:
        """The period of the layout, in ranks."""
        return self.size * self.stride

    @property
    def span(self) -> int:
        """Ranks from the first of a group to its last, inclusive."""
        return (self.size - 1) * self.stride + 1

    @property
    def ranks(self) -> int:
        """Ranks from the first of all groups to the last, inclusive."""
        last = self.groups - 1
        return (last // self.stride) * self.block + last % self.stride + self.span


@dataclass(frozen=True, slots=True)
class Levels:
    """The shape of a machine; `nodes_per_rack` 0 is unknown, and all nodes then form one level."""

    ranks_per_node: int
    nodes_per_rack: int

    @classmethod
    def of(cls, parameters: Parameters) -> Levels:
        """The shape in a parameter file."""
        return cls(parameters.ranks_per_node, parameters.nodes_per_rack)

    def names(self, layout: GroupLayout) -> tuple[str, ...]:
        """The slowest level that any of the groups crosses, by the names that fits may use.

        If the racks are unknown, the level between nodes is called system or rack.
        """
        if not crosses(layout, self.ranks_per_node):
            return (NODE,)
        if not self.nodes_per_rack:
            return (SYSTEM, RACK)
        return (SYSTEM,) if crosses(layout, self.ranks_per_node * self.nodes_per_rack) else (RACK,)

    def shape(self, layout: GroupLayout) -> tuple[int, int]:
        """The nodes that a group spans and the most of its ranks on one: (2, 8) for 8 + 2 ranks.

        Of several groups, the one on the most nodes, then with the fullest node.
        """
        each, stride, period = self.ranks_per_node, layout.stride, layout.block
        blocks = min(-(-layout.groups // stride), each // math.gcd(period, each))
        offsets = {
            (b * period + i) % each
            for b in range(blocks)
            for i in range(min(stride, each))
            if b * stride + i < layout.groups
        }
        return max(self._shape_from(layout, offset) for offset in offsets)

    def _shape_from(self, layout: GroupLayout, offset: int) -> tuple[int, int]:
        """The shape of a group that starts `offset` ranks after the first rank of a node."""
        each, stride, size = self.ranks_per_node, layout.stride, layout.size
        if stride >= each:
            return size, 1
        fullest, left, at = 0, size, offset
        # the pattern repeats after `stride` nodes
        for _ in range(stride + 2):
            here = min(left, -(-(each - at) // stride))
            fullest, left, at = max(fullest, here), left - here, at + here * stride - each
            if not left:
                break
        return (offset + layout.span - 1) // each + 1, fullest

    def flows(self, layout: GroupLayout) -> int:
        """The most groups that have members both on one node and elsewhere.

        Each is one ring's flow out of that node. With stride p2, as in data+filter, these are all
        groups, at most as many as a node has ranks.
        """
        each, block = self.ranks_per_node, layout.block
        if block % each == 0:
            return 0 if block == each else min(layout.groups, layout.stride, each)
        if layout.groups == 1 or each % block == 0:
            return int(crosses(layout, each))
        nodes = min(-(-layout.ranks // each), block // math.gcd(block, each), MOST_NODES)
        return max(self._flows_of(layout, node * each) for node in range(nodes))

    def _flows_of(self, layout: GroupLayout, first: int) -> int:
        """The groups that lie only partly on the node that starts with rank `first`."""
        after, found = first + self.ranks_per_node, set()
        for rank in range(first, after):
            blocks, at = divmod(rank, layout.block)
            index = blocks * layout.stride + at % layout.stride
            begin = blocks * layout.block + at % layout.stride
            inside = begin >= first and begin + layout.span <= after
            if index < layout.groups and not inside:
                found.add(index)
        return len(found)

    def together(self, layout: GroupLayout) -> int:
        """Groups that share a node's memory if none leaves it."""
        return min(layout.groups, max(1, self.ranks_per_node // layout.size))


def doublings(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """Doublings from one layout to another: the most of ranks, nodes and ranks on a node."""
    return max(abs(math.log2(a / b)) for a, b in zip(one, other, strict=True))


def crosses(layout: GroupLayout, ranks: int) -> bool:
    """Whether any group has members in two compartments of `ranks` ranks each."""
    # blocks are consecutive: if their length does not divide a compartment's, one is cut
    return layout.span > ranks or (layout.ranks > ranks and ranks % layout.block != 0)


def ladder(levels: tuple[str, ...]) -> list[tuple[str, ...]]:
    """These levels, then the others that may stand in for them, those between nodes first."""
    return [levels, *((level,) for level in (SYSTEM, RACK, NODE) if level not in levels)]
