"""The cheapest choice for every node of a graph with costs of nodes and edges (Jia et al., Algorithm 1).

Node elimination (equation 2): t'(c_i, c_k) = min over c_j of t(c_j) + t(c_i, c_j) + t(c_j, c_k). Edge
elimination (equation 3) adds parallel edges. What is left is enumerated, one node after the other: each
is minimised out for all choices of its neighbours (of two nodes, the paper's case, that is all pairs).
Then the choices are made in the opposite order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np

from calib.foundation.arrays import Floats
from calib.foundation.errors import InputError
from calib.search.request import Look, never

Edge = tuple[int, int, Floats]  # from, to, cost by the choices of both
MOST_ENTRIES = 30_000_000  # of what is left of a graph
AT_ONCE = 1 << 15


class Sums(NamedTuple):
    """Numbers of nodes and edges by their choices, which a plan adds up."""

    nodes: Sequence[Floats]
    edges: Sequence[Edge]

    def of(self, choices: Sequence[int]) -> float:
        """The sum of these choices (equation 1)."""
        own = sum(float(node[choice]) for node, choice in zip(self.nodes, choices, strict=True))
        return own + sum(float(cost[choices[i], choices[j]]) for i, j, cost in self.edges)


@dataclass(frozen=True)
class Solution:
    """The choice of every node, their cost, and what the algorithm did.

    `left` is the paper's K; `entries` how many sums were compared.
    """

    choices: tuple[int, ...]
    total: float
    nodes_eliminated: int
    edges_eliminated: int
    left: int
    entries: int


@dataclass(frozen=True)
class _Gone:
    """A node that was minimised out: its cost by the choices of `others`, then its own."""

    node: int
    others: tuple[int, ...]
    cost: tuple[Floats, ...]

    def choice(self, choices: dict[int, int]) -> int:
        """The cheapest, once those of the others are made."""
        if len(self.cost) == 2:
            into, out = self.cost
            i, k = self.others
            return int(np.argmin(into[choices[i]] + out[:, choices[k]]))
        return int(np.argmin(self.cost[0][tuple(choices[other] for other in self.others)]))


def solve(nodes: Sequence[Floats], edges: Sequence[Edge], look: Look = never) -> Solution:
    """The cheapest choices. Raises InputError where too much is left to enumerate, BudgetOver."""
    graph = _ShrinkingGraph(nodes, edges, look)
    graph.eliminate()
    left = len(graph.into)
    gone = [*graph.gone, *_rest(graph, look)]
    choices: dict[int, int] = {}
    for one in reversed(gone):
        choices[one.node] = one.choice(choices)
    chosen = tuple(choices[node] for node in range(len(nodes)))
    return Solution(
        chosen,
        cost_of(nodes, edges, chosen),
        len(graph.gone),
        graph.edges_eliminated,
        left,
        graph.entries + sum(one.cost[0].size for one in gone[len(graph.gone) :]),
    )


def cost_of(nodes: Sequence[Floats], edges: Sequence[Edge], choices: Sequence[int]) -> float:
    """The cost of these choices (equation 1)."""
    return Sums(nodes, edges).of(choices)


class _ShrinkingGraph:
    """The graph as it shrinks. Equal layers share their arrays, so equal steps are done once."""

    def __init__(self, nodes: Sequence[Floats], edges: Sequence[Edge], look: Look) -> None:
        self.nodes, self._look = nodes, look
        self.into: dict[int, dict[int, Floats]] = {node: {} for node in range(len(nodes))}
        self.out: dict[int, dict[int, Floats]] = {node: {} for node in range(len(nodes))}
        self.gone: list[_Gone] = []
        self.edges_eliminated = self.entries = 0
        # by the identity of arrays, which are kept here so that it stays theirs
        self._made: dict[tuple[int, ...], tuple[Floats, tuple[Floats, ...]]] = {}
        for i, j, cost in edges:
            self._connect(i, j, cost)

    def _connect(self, i: int, j: int, cost: Floats) -> None:
        """Put an edge in; add it to the one that is there."""
        before = self.out[i].get(j)
        if before is not None:
            self.edges_eliminated += 1
            self.entries += cost.size
            cost = self._once(before, cost)
        self.out[i][j] = self.into[j][i] = cost

    def _once(self, *arrays: Floats) -> Floats:
        """The sum of two edges, or the minimum over the middle node of (into, own, out)."""
        key = tuple(id(array) for array in arrays)
        if key not in self._made:
            made = (
                arrays[0] + arrays[1]
                if len(arrays) == 2
                else min_plus(arrays[0], arrays[1], arrays[2], self._look)
            )
            self._made[key] = made, arrays
        return self._made[key][0]

    def eliminate(self) -> None:
        """All nodes with one edge in and one out; parallel edges as they appear."""
        waiting = [node for node in reversed(self.into) if self._is_between(node)]
        while waiting:
            node = waiting.pop()
            if not self._is_between(node):
                continue
            ((i, before),) = self.into.pop(node).items()
            ((k, after),) = self.out.pop(node).items()
            del self.out[i][node], self.into[k][node]
            own = self.nodes[node]
            self.gone.append(_Gone(node, (i, k), (before + own, after)))
            self.entries += before.size * after.shape[1]
            self._connect(i, k, self._once(before, own, after))
            waiting += [other for other in (k, i) if self._is_between(other)]

    def _is_between(self, node: int) -> bool:
        into, out = self.into.get(node, ()), self.out.get(node, ())
        return len(into) == 1 and len(out) == 1


def min_plus(into: Floats, own: Floats, out: Floats, look: Look = never) -> Floats:
    """min over j of into[i, j] + own[j] + out[j, k]. Raises BudgetOver."""
    look()
    first = into + own
    if first.size * out.shape[1] <= AT_ONCE:
        found: Floats = (first[:, :, None] + out[None]).min(1)
        return found
    columns = np.ascontiguousarray(first.T)
    best: Floats = columns[0][:, None] + out[0]
    room = np.empty_like(best)
    for column, row in zip(columns[1:], out[1:], strict=True):
        look()
        np.add(column[:, None], row, out=room)
        np.minimum(best, room, out=best)
    return best


CostFactor = tuple[tuple[int, ...], Floats]


def _rest(graph: _ShrinkingGraph, look: Look) -> list[_Gone]:
    """Minimise out what is left, the node with the fewest choices around it first."""
    factors: list[CostFactor] = [((node,), graph.nodes[node]) for node in graph.into]
    factors += [((i, j), cost) for i, out in graph.out.items() for j, cost in out.items()]
    sizes = {node: len(graph.nodes[node]) for node in graph.into}
    gone = []
    while sizes:
        look()
        sizes, factors, one = _without_one(sizes, factors)
        gone.append(one)
    return gone


def _without_one(
    sizes: dict[int, int], factors: list[CostFactor]
) -> tuple[dict[int, int], list[CostFactor], _Gone]:
    def around(node: int) -> tuple[int, ...]:
        return tuple(sorted({v for of, _ in factors if node in of for v in of if v != node}))

    def entries(node: int) -> float:
        return float(np.prod([float(sizes[v]) for v in (node, *around(node))]))

    node = min(sizes, key=lambda one: (entries(one), one))
    if entries(node) > MOST_ENTRIES:
        raise InputError(
            f"{len(sizes)} layers are left with {entries(node):.1e} choices to enumerate: fewer "
            "configurations are needed (degrees=powers or degrees=machine)"
        )
    others = around(node)
    order = (*others, node)
    mine = [_spread(of, cost, order) for of, cost in factors if node in of]
    cost = np.broadcast_to(reduce(np.add, mine), [sizes[v] for v in order])
    rest = [factor for factor in factors if node not in factor[0]]
    if others:
        rest.append((others, cost.min(-1)))
    left = {v: n for v, n in sizes.items() if v != node}
    return left, rest, _Gone(node, others, (cost,))


def _spread(of: tuple[int, ...], cost: Floats, order: tuple[int, ...]) -> Floats:
    """A factor with its nodes in this order, of length 1 along the others."""
    places = sorted(range(len(of)), key=lambda at: order.index(of[at]))
    shape = [1] * len(order)
    for at in places:
        shape[order.index(of[at])] = cost.shape[at]
    return cost.transpose(places).reshape(shape)
