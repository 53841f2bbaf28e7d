"""A strategy with its options, and the divisions that it gives on p ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

from calib.foundation.division import STRATEGIES, Division, Gradients, Schedule, traits_of
from calib.oracle.layout.shards import fitted, why_impossible
from calib.oracle.model.spec import ModelSpec


@dataclass(frozen=True)
class DivisionTemplate:
    """A strategy with its options: a Division once p and the batch are known.

    The options are fields of Division; a strategy ignores those that it does not take. `inner` None
    leaves p2 of a hybrid to the size of a node.
    """

    strategy: str
    inner: int | None = None
    segments: int = 4
    schedule: Schedule = "gpipe"
    boundaries: tuple[int, ...] = ()
    grid: tuple[int, ...] = ()
    split_until: str = ""
    overlap: bool = False
    sharded_optimizer: bool = False
    gradients: Gradients = "leaders"

    def division(
        self, p: int, batch: int, ranks_per_node: int, model: ModelSpec | None = None
    ) -> Division:
        """The division on p ranks, whether or not it is possible.

        A hybrid has the best groups that are possible for the model, where one is given.
        """
        taken = traits_of(self.strategy).options
        # p2 is chosen below, and one rank cuts nothing
        left_out = ("inner",) if p > 1 else ("inner", "grid", "boundaries")
        options: dict[str, Any] = {x: getattr(self, x) for x in taken if x not in left_out}
        inners = self._inners(p, ranks_per_node) or (1,)
        if model is not None and len(inners) > 1:
            for inner in inners:
                division = Division(self.strategy, p, batch, inner, **options)
                if not why_impossible(model, fitted(model, division)):
                    return division
        # where none is possible, with the reasons of the best
        return Division(self.strategy, p, batch, inners[0], **options)

    def why_no_groups(self, p: int) -> str:
        """Why no groups of a hybrid can be chosen on p ranks; "" where they can, or are given."""
        if p == 1 or self._inners(p, p):
            return ""
        return f"p = {p} is not p1 x p2 with both at least 2"

    def _inners(self, p: int, ranks_per_node: int) -> tuple[int, ...]:
        """The p2 to choose from, best first; empty where p allows none."""
        traits = traits_of(self.strategy)
        if not traits.hybrid:
            return (1,)
        if self.inner:
            return (self.inner,)
        if self.grid and traits.cuts == "image":
            return (math.prod(self.grid),)
        return groups(p, ranks_per_node)


VARIANTS: tuple[dict[str, Any], ...] = ({}, {"overlap": True}, {"sharded_optimizer": True})
# all strategies; data also overlapped, and with a sharded optimizer
EVERY = tuple(
    DivisionTemplate(name, **marks)
    for name, traits in STRATEGIES.items()
    for marks in VARIANTS
    if set(traits.options) >= set(marks)
)


@cache
def groups(p: int, ranks_per_node: int) -> tuple[int, ...]:
    """The p2 >= 2 that a hybrid of p1 >= 2 groups on p ranks may have, best first.

    First the largest whose groups all fit inside a node (ParaDL, section 3.6), then those with groups
    that span two nodes, then the smallest beyond a node. Empty where p is not such a product.
    """
    low = [n for n in range(2, math.isqrt(p) + 1) if p % n == 0]
    divisors = sorted({*low, *(p // n for n in low)})
    fitting = [inner for inner in divisors if inner <= ranks_per_node]
    # groups are contiguous: where their size does not divide a node's, one spans two nodes
    inside = [n for n in fitting if p <= ranks_per_node or ranks_per_node % n == 0]
    cut = [n for n in fitting if n not in inside]
    beyond = [n for n in divisors if n > ranks_per_node]
    return (*inside[::-1], *cut[::-1], *beyond)
