"""The cheapest choice for every node of a graph with costs of nodes and edges (Jia et al., Algorithm 1).

Node elimination (equation 2): t'(c_i, c_k) = min over c_j of t(c_j) + t(c_i, c_j) + t(c_j, c_k). Edge
elimination (equation 3) adds parallel edges. What is left is enumerated node by node: each is minimised
out for all choices of its neighbours (in the paper's case two nodes are left, and that is all pairs).
Then the choices are made in the opposite order. Within a memory limit: search/best.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np

from calib.foundation.arrays import Floats
from calib.foundation.errors import InputError
from calib.search.best import BestSoFar, Choices
from calib.search.request import Look, Spending, never

Edge = tuple[int, int, Floats]  # from, to, cost by the choices of both
MOST_ENTRIES = 30_000_000  # of what is left of a graph
AT_ONCE = 1 << 15
CLOSE = 1e-6  # share of the gap, and of the price of a byte, at which a bisection ends


class Sums(NamedTuple):
    """A graph with numbers (seconds, bytes) of nodes and edges by their choices; a plan adds them up."""

    nodes: Sequence[Floats]
    edges: Sequence[Edge]

    def of(self, choices: Sequence[int]) -> float:
        """The sum for these choices (equation 1)."""
        own = sum(float(node[choice]) for node, choice in zip(self.nodes, choices, strict=True))
        return own + sum(float(cost[choices[i], choices[j]]) for i, j, cost in self.edges)


@dataclass(frozen=True)
class Solution:
    """The choice of every node, their cost, and what the algorithm did.

    `left` is the paper's K; `entries` counts the sums that were compared.
    """

    choices: Choices
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
        """The cheapest, once the others are chosen."""
        if len(self.cost) == 2:
            into, out = self.cost
            i, k = self.others
            return int(np.argmin(into[choices[i]] + out[:, choices[k]]))
        return int(np.argmin(self.cost[0][tuple(choices[other] for other in self.others)]))


def solve(costs: Sums, look: Look = never) -> Solution:
    """The cheapest choices. Raises InputError where too much is left to enumerate, BudgetOver."""
    graph = _ShrinkingGraph(costs, look)
    graph.eliminate()
    left = len(graph.into)
    gone = [*graph.gone, *_rest(graph, look)]
    choices: dict[int, int] = {}
    for one in reversed(gone):
        choices[one.node] = one.choice(choices)
    chosen = tuple(choices[node] for node in range(len(costs.nodes)))
    return Solution(
        chosen,
        costs.of(chosen),
        len(graph.gone),
        graph.edges_eliminated,
        left,
        graph.entries + sum(one.cost[0].size for one in gone[len(graph.gone) :]),
    )


def solve_within(
    costs: Sums, nbytes: Sums, limit: float, spending: Spending
) -> tuple[BestSoFar, Solution]:
    """The cheapest plan within `limit` that the bisection finds, and the one without the limit.

    Where no plan keeps the limit, that of the fewest bytes. The edges of `nbytes` are those of
    `costs`, in the same order. Raises BudgetOver before there is the plan without the limit.
    """
    best, first = BestSoFar(spending), solve(costs, spending.look)
    spending.evaluated += 1
    best.bound = first.total
    if nbytes.of(first.choices) <= limit:
        best.keep(first.choices, first.total)
        return best, first

    def fits(price: float) -> bool:
        """Whether the cheapest plan at this price of a byte fits."""
        priced: dict[tuple[int, int], Floats] = {}

        def at(cost: Floats, of: Floats) -> Floats:
            key = (id(cost), id(of))  # equal layers share one array, which `solve` makes use of
            if key not in priced:
                priced[key] = cost + price * of
            return priced[key]

        nodes = [at(cost, of) for cost, of in zip(costs.nodes, nbytes.nodes, strict=True)]
        pairs = zip(costs.edges, nbytes.edges, strict=True)
        edges = [(i, j, at(cost, of)) for (i, j, cost), (_, _, of) in pairs]
        found = solve(Sums(nodes, edges), spending.look)
        spending.evaluated += 1
        best.bound = max(best.bound, found.total - price * limit)
        within = nbytes.of(found.choices) <= limit
        if within:
            best.keep(found.choices, costs.of(found.choices))
        return within

    lightest = solve(nbytes).choices
    best.keep(lightest, costs.of(lightest))
    best.bisect(fits, first.total / limit, CLOSE)
    return best, first


class _ShrinkingGraph:
    """The graph as it shrinks. Equal layers share their arrays, so equal steps are done once."""

    def __init__(self, costs: Sums, look: Look) -> None:
        self.nodes, self._look = costs.nodes, look
        self.into: dict[int, dict[int, Floats]] = {node: {} for node in range(len(self.nodes))}
        self.out: dict[int, dict[int, Floats]] = {node: {} for node in range(len(self.nodes))}
        self.gone: list[_Gone] = []
        self.edges_eliminated = self.entries = 0
        # keyed by the ids of arrays, which are kept alive here
        self._made: dict[tuple[int, ...], tuple[Floats, tuple[Floats, ...]]] = {}
        for i, j, cost in costs.edges:
            self._connect(i, j, cost)

    def _connect(self, i: int, j: int, cost: Floats) -> None:
        """Put an edge in, or add it to the one that is there."""
        before = self.out[i].get(j)
        if before is not None:
            self.edges_eliminated += 1
            self.entries += cost.size
            cost = self._once(before, cost)
        self.out[i][j] = self.into[j][i] = cost

    def _once(self, *arrays: Floats) -> Floats:
        """The sum of two edges, or the minimum over the middle node of (into, own, out)."""
        key = tuple(map(id, arrays))
        if key not in self._made:
            first, middle, *last = arrays
            made = min_plus(first, middle, last[0], self._look) if last else first + middle
            self._made[key] = made, arrays
        return self._made[key][0]

    def eliminate(self) -> None:
        """Eliminate all nodes with one edge in and one out, and parallel edges as they appear."""
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
    """Minimise out what is left, beginning with the node that has the fewest choices around it."""
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
    """A factor with its axes in this order, of length 1 along those of other nodes."""
    places = sorted(range(len(of)), key=lambda at: order.index(of[at]))
    shape = [1] * len(order)
    for at in places:
        shape[order.index(of[at])] = cost.shape[at]
    return cost.transpose(places).reshape(shape)
