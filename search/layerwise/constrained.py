"""The cheapest choices within a memory limit, by Lagrange's multiplier.

For every price m >= 0 of a byte, min over plans of (seconds + m bytes) - m limit is no more than the
seconds of any plan that fits (weak duality), and the elimination finds that minimum. So a bisection of
m gives plans that fit and a bound that none beats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calib.foundation.arrays import Floats
from calib.search.layerwise.elimination import Edge, Solution, Sums, cost_of, solve
from calib.search.request import BudgetOver, Look, Spending, never

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


def smallest(nbytes: Sums, look: Look = never) -> tuple[int, ...]:
    """The plan of the fewest bytes. Raises BudgetOver."""
    return solve(nbytes.nodes, nbytes.edges, look).choices


def solve_within(
    nodes: Sequence[Floats], edges: Sequence[Edge], nbytes: Sums, limit: float, spending: Spending
) -> Within:
    """The cheapest that the bisection finds; of a limit that no plan keeps, the one of fewest bytes.

    The edges of `nbytes` are those of `edges`, in their order. Raises BudgetOver before there is the
    plan without the limit.
    """
    first = solve(nodes, edges, spending.look)
    spending.evaluated += 1
    if nbytes.of(first.choices) <= limit:
        return Within(
            first.choices, first.total, first.total, first, True, [(spending.seconds, first.total)]
        )
    search = _Bisection(nodes, edges, nbytes, limit, spending)
    search.keep(smallest(nbytes))
    search.bound = first.total
    try:
        complete = search.run(first.total / limit)
    except BudgetOver:
        complete = False
    return Within(search.choices, search.total, search.bound, first, complete, search.course)


class _Bisection:
    def __init__(
        self,
        nodes: Sequence[Floats],
        edges: Sequence[Edge],
        nbytes: Sums,
        limit: float,
        spending: Spending,
    ) -> None:
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

        def at(cost: Floats, of: Floats) -> Floats:
            key = (id(cost), id(of))
            if key not in priced:  # equal layers share one array: the elimination asks for that
                priced[key] = cost + price * of
            return priced[key]

        found = solve(
            [at(cost, of) for cost, of in zip(self.nodes, self.nbytes.nodes, strict=True)],
            [
                (i, j, at(cost, of))
                for (i, j, cost), (_, _, of) in zip(self.edges, self.nbytes.edges, strict=True)
            ],
            self.spending.look,
        )
        self.spending.evaluated += 1
        self.bound = max(self.bound, found.total - price * self.limit)
        does = self.nbytes.of(found.choices) <= self.limit
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
