"""The cheapest choices within a memory limit, by Lagrange's multiplier.

For every price m >= 0 of a byte, min over plans of (seconds + m bytes) - m limit is no more than the
seconds of any plan that fits (weak duality), and the elimination finds that minimum. So a bisection of
m gives plans that fit and a bound that none beats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foundation.errors import InputError
from oracle.search.layerwise.elimination import Edge, Solution, cost_of, solve
from oracle.search.request import Spending

Floats = NDArray[np.float64]
MOST_STEPS = 60
CLOSE = 1e-6  # of the gap and of the price


@dataclass(frozen=True)
class Within:
    """A plan that fits; `bound` is below all of them. `first` is the solution without the limit."""

    choices: tuple[int, ...]
    total: float
    bound: float
    first: Solution
    complete: bool
    course: list[tuple[float, float]]


def held(nbytes: Sequence[Floats], choices: Sequence[int]) -> float:
    """Bytes of these choices."""
    return float(sum(of[choice] for of, choice in zip(nbytes, choices, strict=True)))


def smallest(nbytes: Sequence[Floats]) -> float:
    """Bytes of the plan that takes the fewest: each layer's fewest."""
    return float(sum(of.min() for of in nbytes))


def require_room(nbytes: Sequence[Floats], limit: float) -> None:
    """Raise InputError, with the smallest memory that would do, where no plan fits."""
    least = smallest(nbytes)
    if least > limit:
        raise InputError(
            f"no plan fits into {limit:.0f} bytes per device: the smallest takes {least:.0f} "
            f"({least / 2**30:.2f} GiB)"
        )


def solve_within(
    nodes: Sequence[Floats], edges: Sequence[Edge], nbytes: Sequence[Floats], limit: float,
    spending: Spending,
) -> Within:  # fmt: skip
    """The cheapest that the bisection finds. Raises InputError where nothing fits."""
    require_room(nbytes, limit)
    first = solve(nodes, edges)
    spending.evaluated += 1
    if held(nbytes, first.choices) <= limit:
        return Within(
            first.choices, first.total, first.total, first, True, [(spending.seconds, first.total)]
        )
    search = _Bisection(nodes, edges, nbytes, limit, spending)
    search.keep(tuple(int(np.argmin(of)) for of in nbytes))
    search.bound = first.total
    complete = search.run(first.total / limit)
    return Within(search.choices, search.total, search.bound, first, complete, search.course)


class _Bisection:
    def __init__(
        self, nodes: Sequence[Floats], edges: Sequence[Edge], nbytes: Sequence[Floats],
        limit: float, spending: Spending,
    ) -> None:  # fmt: skip
        self.nodes, self.edges, self.nbytes = nodes, edges, nbytes
        self.limit, self.spending = limit, spending
        self.choices: tuple[int, ...] = ()
        self.total = self.bound = float("inf")
        self.course: list[tuple[float, float]] = []

    def keep(self, choices: tuple[int, ...]) -> None:
        """Take a plan that fits where it is the cheapest so far."""
        cost = cost_of(self.nodes, self.edges, choices)
        if cost < self.total:
            self.choices, self.total = choices, cost
            self.course.append((self.spending.seconds, cost))

    def fits(self, price: float) -> bool:
        """Whether the cheapest plan at this price of a byte fits; both ends of the gap move."""
        priced: dict[tuple[int, int], Floats] = {}
        for node, of in zip(self.nodes, self.nbytes, strict=True):
            key = (id(node), id(of))
            if key not in priced:  # equal layers share one array: the elimination asks for that
                priced[key] = node + price * of
        found = solve(
            [priced[id(n), id(b)] for n, b in zip(self.nodes, self.nbytes, strict=True)], self.edges
        )
        self.spending.evaluated += 1
        self.bound = max(self.bound, found.total - price * self.limit)
        does = held(self.nbytes, found.choices) <= self.limit
        if does:
            self.keep(found.choices)
        return does

    def run(self, price: float) -> bool:
        """Double the price until a plan fits, then bisect; whether it came to its end."""
        low, high = 0.0, price
        for _ in range(MOST_STEPS):
            if self.spending.over:
                return False
            if self.fits(high):
                break
            low, high = high, 4.0 * high
        for _ in range(MOST_STEPS):
            if self.total - self.bound <= CLOSE * self.bound or high - low <= CLOSE * high:
                return True
            if self.spending.over:
                return False
            middle = (low + high) / 2.0
            low, high = (low, middle) if self.fits(middle) else (middle, high)
        return True
