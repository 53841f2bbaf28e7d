"""A strategy with its options, before p and the batch are known."""

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
    """A strategy with its options; p and the batch make it a Division.

    The options are fields of Division; a strategy ignores those it does not take. With `inner` None
    the size of a node decides p2 of a hybrid.
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
    sequence_parallel: bool = False
    gradients: Gradients = "leaders"
    accumulation: int = 1

    def division(
        self, p: int, batch: int, ranks_per_node: int, model: ModelSpec | None = None
    ) -> Division:
        """The division on p ranks, whether or not it is possible.

        With a model, a hybrid takes the best group size that is possible for it.
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
        # none is possible: the caller gets the reasons of the best
        return Division(self.strategy, p, batch, inners[0], **options)

    def why_no_groups(self, p: int) -> str:
        """Why a hybrid has no group size to choose on p ranks; "" if it has one, or was given one."""
        if p == 1 or self._inners(p, p):
            return ""
        return f"p = {p} is not p1 x p2 with both at least 2"

    def _inners(self, p: int, ranks_per_node: int) -> tuple[int, ...]:
        """The candidates for p2, best first; empty if p allows none."""
        traits = traits_of(self.strategy)
        if not traits.hybrid:
            return (1,)
        if self.inner:
            return (self.inner,)
        if self.grid and traits.cuts == "image":
            return (math.prod(self.grid),)
        return groups(p, ranks_per_node)


MARKS = ("overlap", "sharded_optimizer", "sequence_parallel")
VARIANTS: tuple[dict[str, Any], ...] = ({}, *({mark: True} for mark in MARKS))
# every strategy; data also with overlap, and with a sharded optimizer, tensor with sequence parallelism
EVERY = tuple(
    DivisionTemplate(name, **marks)
    for name, traits in STRATEGIES.items()
    for marks in VARIANTS
    if set(traits.options) >= set(marks)
)


@cache
def groups(p: int, ranks_per_node: int) -> tuple[int, ...]:
    """The possible p2 >= 2 of a hybrid with p1 >= 2 groups on p ranks, best first.

    First the largest whose groups all fit inside a node (ParaDL, section 3.6), then those with groups
    across two nodes, then the smallest that exceed a node. Empty if p is not such a product.
    """
    low = [n for n in range(2, math.isqrt(p) + 1) if p % n == 0]
    divisors = sorted({*low, *(p // n for n in low)})
    fitting = [inner for inner in divisors if inner <= ranks_per_node]
    # groups are contiguous: if their size does not divide a node's, one of them spans two nodes
    inside = [n for n in fitting if p <= ranks_per_node or ranks_per_node % n == 0]
    cut = [n for n in fitting if n not in inside]
    beyond = [n for n in divisors if n > ranks_per_node]
    return (*inside[::-1], *cut[::-1], *beyond)
