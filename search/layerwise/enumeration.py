"""Depth-first search over all choices: the brute force that checks elimination.

Layer by layer in the order of the model, cheapest first; a branch is cut where the cost so far and the
least that each later layer adds are no better than the best.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from calib.foundation.arrays import Floats
from calib.search.best import BestSoFar, Choices
from calib.search.layerwise.elimination import Sums
from calib.search.request import Spending

LOOK_AT_CLOCK = 64  # nodes of the tree between two looks


def enumerated(
    costs: Sums,
    spending: Spending,
    nbytes: Sums | None = None,
    limit: float = float("inf"),
    start: Choices = (),
) -> BestSoFar:
    """The cheapest choices of at most `limit` bytes that the budget allows to look at.

    Edges go from a node to a later one; `start` are known choices within the limit.
    """
    best = BestSoFar(spending, start, costs.of(start) if start else float("inf"))
    seconds, last = _Onward(costs), len(costs.nodes) - 1
    held = _Onward(nbytes or Sums([np.zeros(len(node)) for node in costs.nodes], []))
    chosen = [0] * len(costs.nodes)

    def children(j: int, cost: float, nbytes: float) -> Iterator[tuple[int, float, float]]:
        """The choices of a node that may lead to something better, the cheapest first."""
        costs_by, bytes_by = seconds.to(j, chosen, cost), held.to(j, chosen, nbytes)
        fits = bytes_by + held.later[j + 1] <= limit
        for choice in np.argsort(costs_by, kind="stable").tolist():
            so_far = float(costs_by[choice])
            if so_far + seconds.later[j + 1] >= best.total:
                return
            if fits[choice]:
                yield choice, so_far, float(bytes_by[choice])

    stack, steps = [children(0, 0.0, 0.0)], 0
    while stack:
        depth = len(stack) - 1
        child = next(stack[-1], None)
        if child is None:
            stack.pop()
            continue
        chosen[depth], cost, size = child
        steps += 1
        if depth == last:
            spending.evaluated += 1
            best.keep(tuple(chosen), cost)
        else:
            stack.append(children(depth + 1, cost, size))
        looks = depth == last or steps % LOOK_AT_CLOCK == 0
        if best.choices and looks and spending.over:
            best.complete = False
            break
    return best


def lower_bound(costs: Sums) -> float:
    """What no choices are cheaper than: each node and edge by itself."""
    edges = sum(float(cost.min()) for _, _, cost in costs.edges)
    return sum(float(node.min()) for node in costs.nodes) + edges


class _Onward:
    """Sums made node by node; `later[j]`: the least that node j and all behind it add."""

    def __init__(self, sums: Sums) -> None:
        self._nodes = sums.nodes
        self._into: list[list[tuple[int, Floats]]] = [[] for _ in sums.nodes]
        for i, j, cost in sums.edges:
            self._into[j].append((i, cost))
        least = [
            float(node.min()) + sum(float(c.min()) for _, c in into)
            for node, into in zip(sums.nodes, self._into, strict=True)
        ]
        self.later = np.append(np.cumsum(least[::-1])[::-1], 0.0)

    def to(self, j: int, chosen: Sequence[int], before: float) -> Floats:
        """The sum up to node j by its choices; `before` is that of the nodes `chosen` before it."""
        found = self._nodes[j] + before
        for i, edge in self._into[j]:
            found = found + edge[chosen[i]]
        return found
