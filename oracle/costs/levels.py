"""Levels, nodes and flows of an operation's groups on a machine.

Ranks are in the order of microbench/groups.py: a node's ranks are neighbours, a rack's nodes too; groups
of p ranks that are `stride` apart fill blocks of p x stride.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from calib.fitting.parameters.file import Parameters
from calib.oracle.layout.traffic import Message

NODE, RACK, SYSTEM = "node", "rack", "system"
# of a rule that repeats, more nodes than these are not looked at
MOST_NODES = 16


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """`groups` groups of `size` ranks that are `stride` apart."""

    size: int
    stride: int = 1
    groups: int = 1

    @classmethod
    def of(cls, message: Message) -> GroupLayout:
        """That of a message."""
        return cls(message.group_size, message.stride, message.groups)

    @property
    def block(self) -> int:
        """Ranks after which the layout repeats."""
        return self.size * self.stride

    @property
    def span(self) -> int:
        """Ranks from the first of a group to its last, both included."""
        return (self.size - 1) * self.stride + 1

    @property
    def ranks(self) -> int:
        """Ranks from the first of all groups to the last."""
        last = self.groups - 1
        return (last // self.stride) * self.block + last % self.stride + self.span


@dataclass(frozen=True, slots=True)
class Levels:
    """The shape of a machine; `nodes_per_rack` 0 is unknown, and then all nodes are one level."""

    ranks_per_node: int
    nodes_per_rack: int

    @classmethod
    def of(cls, parameters: Parameters) -> Levels:
        """That of a parameter file."""
        return cls(parameters.ranks_per_node, parameters.nodes_per_rack)

    def names(self, layout: GroupLayout) -> tuple[str, ...]:
        """The slowest level that any of the groups crosses, as the fits may call it.

        Between nodes of which nobody knows the racks that is the system or the rack.
        """
        if not crosses(layout, self.ranks_per_node):
            return (NODE,)
        if not self.nodes_per_rack:
            return (SYSTEM, RACK)
        return (SYSTEM,) if crosses(layout, self.ranks_per_node * self.nodes_per_rack) else (RACK,)

    def shape(self, layout: GroupLayout) -> tuple[int, int]:
        """How many nodes a group spans, and the most of its ranks on one: of 8 + 2 that is (2, 8).

        Of several groups that of the one on most nodes, the fullest of those.
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
        """That of the group whose first rank is so many after the first of a node."""
        each, stride, size = self.ranks_per_node, layout.stride, layout.size
        if stride >= each:
            return size, 1
        fullest, left, at = 0, size, offset
        # after `stride` nodes the places on a node repeat
        for _ in range(stride + 2):
            here = min(left, -(-(each - at) // stride))
            fullest, left, at = max(fullest, here), left - here, at + here * stride - each
            if not left:
                break
        return (offset + layout.span - 1) // each + 1, fullest

    def flows(self, layout: GroupLayout) -> int:
        """The most groups that have a member on one node and another elsewhere.

        Each is one flow of a ring out of that node. Groups p2 apart, as of data+filter: all of them,
        or as many as a node has ranks.
        """
        each, block = self.ranks_per_node, layout.block
        if block % each == 0:
            return 0 if block == each else min(layout.groups, layout.stride, each)
        if layout.groups == 1 or each % block == 0:
            return int(crosses(layout, each))
        nodes = min(-(-layout.ranks // each), block // math.gcd(block, each), MOST_NODES)
        return max(self._flows_of(layout, node * each) for node in range(nodes))

    def _flows_of(self, layout: GroupLayout, first: int) -> int:
        """The groups that are only in part on the node whose first rank this is."""
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
        """Groups that share the memory of one node, where none leaves it."""
        return min(layout.groups, max(1, self.ranks_per_node // layout.size))


def doublings(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """How often ranks, nodes, or ranks on a node double from one to another: the most of any."""
    return max(abs(math.log2(a / b)) for a, b in zip(one, other, strict=True))


def crosses(layout: GroupLayout, ranks: int) -> bool:
    """Whether any group has members in two of the compartments of so many ranks each."""
    # blocks follow each other: where their length does not divide a compartment's, one is cut
    return layout.span > ranks or (layout.ranks > ranks and ranks % layout.block != 0)


def ladder(levels: tuple[str, ...]) -> list[tuple[str, ...]]:
    """These levels, then the others that may stand in for them: what crosses nodes first."""
    return [levels, *((level,) for level in (SYSTEM, RACK, NODE) if level not in levels)]
