"""Where the groups of an operation lie on a machine: the level they cross, nodes, flows that leave one.

Ranks are in the order of microbench/groups.py: a node's ranks are neighbours, a rack's nodes too; groups
of p ranks that are `stride` apart fill blocks of p x stride.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fitting.parameters import Parameters
from oracle.traffic import Message

NODE, RACK, SYSTEM = "node", "rack", "system"
# of a rule that repeats, more nodes than these are not looked at
MOST_NODES = 16


@dataclass(frozen=True, slots=True)
class Layout:
    """`groups` groups of `size` ranks that are `stride` apart."""

    size: int
    stride: int = 1
    groups: int = 1

    @classmethod
    def of(cls, message: Message) -> Layout:
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

    def names(self, layout: Layout) -> tuple[str, ...]:
        """The slowest level that any of the groups crosses, as the fits may call it.

        Between nodes of which nobody knows the racks that is the system or the rack.
        """
        if not crosses(layout, self.ranks_per_node):
            return (NODE,)
        if not self.nodes_per_rack:
            return (SYSTEM, RACK)
        return (SYSTEM,) if crosses(layout, self.ranks_per_node * self.nodes_per_rack) else (RACK,)

    def nodes(self, layout: Layout) -> int:
        """How many nodes a group spans, where it begins with one."""
        return min(layout.size, -(-layout.span // self.ranks_per_node))

    def flows(self, layout: Layout) -> int:
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

    def _flows_of(self, layout: Layout, first: int) -> int:
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

    def together(self, layout: Layout) -> int:
        """Groups that share the memory of one node, where none leaves it."""
        return min(layout.groups, max(1, self.ranks_per_node // layout.size))


def crosses(layout: Layout, ranks: int) -> bool:
    """Whether any group has members in two of the compartments of so many ranks each."""
    # blocks follow each other: where their length does not divide a compartment's, one is cut
    return layout.span > ranks or (layout.ranks > ranks and ranks % layout.block != 0)


def ladder(levels: tuple[str, ...]) -> list[tuple[str, ...]]:
    """These levels, then the others that may stand in for them: what crosses nodes first."""
    return [levels, *((level,) for level in (SYSTEM, RACK, NODE) if level not in levels)]
