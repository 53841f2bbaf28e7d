"""Depth-first search over all choices: the brute force that checks elimination.

Layer by layer in the order of the model, cheapest first, cutting off what cannot be better than the best
so far: the cost up to here and the least that each later layer costs by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from calib.foundation.arrays import Floats
from calib.search.layerwise.elimination import Edge, Sums
from calib.search.request import Spending

LOOK_AT_CLOCK = 64  # nodes of the tree between two looks


@dataclass
class Best:
    """The best choices so far, None where none was found; `course` has (seconds, total) of each."""

    choices: tuple[int, ...] | None = None
    total: float = float("inf")
    complete: bool = True
    course: list[tuple[float, float]] = field(default_factory=list)


def enumerated(
    nodes: Sequence[Floats],
    edges: Sequence[Edge],
    spending: Spending,
    nbytes: Sums | None = None,
    limit: float = float("inf"),
    prune: bool = True,
    start: tuple[int, ...] | None = None,
) -> Best:
    """The cheapest choices of at most `limit` bytes, looked at until the budget is spent.

    Edges go from a node to a later one. `prune` False looks at every choice; `start` are choices
    within the limit, known before.
    """
    search = _DepthFirst(nodes, edges, spending, nbytes, limit, prune)
    if start is not None:
        search.best = Best(start, Sums(nodes, edges).of(start))
    return search.search()


def lower_bound(nodes: Sequence[Floats], edges: Sequence[Edge]) -> float:
    """What no choices are cheaper than: each node and edge by itself."""
    return sum(float(node.min()) for node in nodes) + sum(float(c.min()) for _, _, c in edges)


class _Onward:
    """Sums of choices made node by node; `later`: the least of node j and all behind it."""

    def __init__(self, nodes: Sequence[Floats], edges: Sequence[Edge]) -> None:
        self._nodes = nodes
        self._into: list[list[tuple[int, Floats]]] = [[] for _ in nodes]
        for i, j, cost in edges:
            self._into[j].append((i, cost))
        least = [
            float(node.min()) + sum(float(c.min()) for _, c in into)
            for node, into in zip(nodes, self._into, strict=True)
        ]
        self.later = np.append(np.cumsum(least[::-1])[::-1], 0.0)

    def to(self, j: int, chosen: Sequence[int], before: float) -> Floats:
        """The sum up to node j by its choices, `before` of what is `chosen` before it."""
        found = self._nodes[j] + before
        for i, edge in self._into[j]:
            found = found + edge[chosen[i]]
        return found


class _DepthFirst:
    def __init__(
        self,
        nodes: Sequence[Floats],
        edges: Sequence[Edge],
        spending: Spending,
        nbytes: Sums | None,
        limit: float,
        prune: bool,
    ) -> None:
        self.spending, self.limit, self.prune = spending, limit, prune
        self.costs = _Onward(nodes, edges)
        nothing = [np.zeros(len(node)) for node in nodes]
        self.nbytes = _Onward(*nbytes) if nbytes is not None else _Onward(nothing, [])
        self.nodes, self.best, self.steps = nodes, Best(), 0

    def search(self) -> Best:
        """The best, and whether all was looked at."""
        last = len(self.nodes) - 1
        chosen = [0] * len(self.nodes)
        stack = [self._children(0, chosen, 0.0, 0.0)]
        while stack:
            depth = len(stack) - 1
            child = next(stack[-1], None)
            if child is None:
                stack.pop()
                continue
            chosen[depth], cost, held = child
            self.steps += 1
            if depth == last:
                self.spending.evaluated += 1
                if cost < self.best.total:
                    self.best.choices, self.best.total = tuple(chosen), cost
                    self.best.course.append((self.spending.seconds, cost))
            else:
                stack.append(self._children(depth + 1, chosen, cost, held))
            if self.best.choices is not None and self._is_over(depth == last):
                self.best.complete = False
                break
        return self.best

    def _is_over(self, leaf: bool) -> bool:
        return (leaf or self.steps % LOOK_AT_CLOCK == 0) and self.spending.over

    def _children(
        self, j: int, chosen: list[int], cost: float, held: float
    ) -> Iterator[tuple[int, float, float]]:
        """The choices of a node that may lead to something better, the cheapest first."""
        costs, total_held = self.costs.to(j, chosen, cost), self.nbytes.to(j, chosen, held)
        fits = total_held + self.nbytes.later[j + 1] <= self.limit
        for choice in np.argsort(costs, kind="stable").tolist():
            so_far = float(costs[choice])
            if self.prune and so_far + self.costs.later[j + 1] >= self.best.total:
                return
            if fits[choice]:
                yield choice, so_far, float(total_held[choice])
