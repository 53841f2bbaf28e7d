"""The best plan so far, and the search within a memory limit by Lagrange's multiplier.

For every price m >= 0 of a byte, min over plans of (seconds + m bytes) - m limit is no more than the
seconds of any plan that fits (weak duality). So a bisection of m gives plans that fit, and a bound that
none of them beats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from calib.search.request import BudgetOver, Spending

MOST_STEPS = 60
Choices = tuple[int, ...]  # of each layer, by its number


@dataclass
class BestSoFar:
    """The cheapest `choices` found, () while there are none, and (seconds, total) each time it fell.

    `bound`: no plan is below it; `complete`: the method ran to its end.
    """

    spending: Spending
    choices: Choices = ()
    total: float = float("inf")
    bound: float = 0.0
    complete: bool = True
    course: list[tuple[float, float]] = field(default_factory=list)
    steps: dict[str, int] = field(default_factory=dict)

    def keep(self, choices: Choices, cost: float) -> None:
        """Take a cheaper plan."""
        if cost < self.total:
            self.choices, self.total = choices, cost
            self.course.append((self.spending.seconds, cost))

    def bisect(self, fits: Callable[[float], bool], price: float, close: float) -> None:
        """Raise the `price` of a byte until the cheapest plan fits, then bisect it.

        `fits` keeps the plan where it fits and raises the bound. The bisection ends where the gap, or
        the price, is known to the relative tolerance `close`; a budget that ends before leaves it
        incomplete.
        """
        try:
            self.complete = self._bisected(fits, price, close)
        except BudgetOver:
            self.complete = False

    def _bisected(self, fits: Callable[[float], bool], high: float, close: float) -> bool:
        low = 0.0
        for _ in range(MOST_STEPS):
            if self.spending.over:
                return False
            if fits(high):
                break
            low, high = high, 4.0 * high
        for _ in range(MOST_STEPS):
            if self.total - self.bound <= close * self.total or high - low <= close * high:
                return True
            if self.spending.over:
                return False
            middle = (low + high) / 2.0
            low, high = (low, middle) if fits(middle) else (middle, high)
        return True
