"""The divisions of a sweep: strategies and their variants on p ranks of a machine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from calib.foundation.division import STRATEGIES, Division, Schedule, traits_of
from calib.oracle.layout.shards import fitted, why_impossible
from calib.oracle.model.spec import ModelSpec


@dataclass(frozen=True)
class Variant:
    """A strategy, and what of data parallelism is otherwise."""

    strategy: str
    overlap: bool = False
    sharded: bool = False

    @property
    def name(self) -> str:
        """For people: data, overlapped."""
        return variant_name(self.strategy, self.overlap, self.sharded)


def variant_name(strategy: str, overlap: bool, sharded: bool) -> str:
    """The strategy and what is otherwise about it."""
    marks = (["overlapped"] if overlap else []) + (["sharded optimizer"] if sharded else [])
    return ", ".join([strategy, *marks])


def _every() -> Iterator[Variant]:
    """All strategies; those that may overlap their exchange, or share the update, also so."""
    for name, traits in STRATEGIES.items():
        yield Variant(name)
        if "overlap" in traits.options:
            yield Variant(name, overlap=True)
        if "sharded_optimizer" in traits.options:
            yield Variant(name, sharded=True)


EVERY = tuple(_every())


@dataclass(frozen=True)
class Choices:
    """What the strategies are given; `inner` 0 lets the node's size choose p2."""

    inner: int = 0
    segments: int = 4
    schedule: Schedule = "gpipe"
    boundaries: tuple[int, ...] = ()
    grid: tuple[int, ...] = ()
    split_until: str = ""

    def why_no_groups(self, strategy: str, p: int) -> str:
        """Why no groups of a hybrid can be chosen on p ranks; "" where they can, or are given."""
        given = self.inner or self.grid or p == 1
        if given or not traits_of(strategy).hybrid or groups(p, p):
            return ""
        return f"p = {p} is not p1 x p2 with both at least 2"

    def division(
        self, model: ModelSpec | None, variant: Variant, p: int, batch: int, ranks_per_node: int
    ) -> Division:
        """The division of a strategy on p ranks, whether or not it is possible.

        Of a hybrid the best groups that are possible for the model, where one is given.
        """
        name = variant.strategy
        traits = traits_of(name)
        spatial, pipeline = traits.cuts == "image", traits.stages

        def with_inner(inner: int) -> Division:
            return Division(
                name,
                p,
                batch,
                inner,
                segments=self.segments if pipeline else 1,
                schedule=self.schedule if pipeline else "gpipe",
                boundaries=self.boundaries if pipeline and p > 1 else (),
                grid=self.grid if spatial and p > 1 else (),
                split_until=self.split_until if spatial else "",
                overlap=variant.overlap,
                sharded_optimizer=variant.sharded,
            )

        if not traits.hybrid:
            return with_inner(1)
        if self.inner or (self.grid and spatial):
            return with_inner(self.inner or math.prod(self.grid))
        best, *others = groups(p, ranks_per_node) or (1,)
        if model is not None:
            for division in map(with_inner, (best, *others)):
                if not why_impossible(model, fitted(model, division)):
                    return division
        return with_inner(best)  # with the reasons of the best, where none is possible


@cache
def groups(p: int, ranks_per_node: int) -> tuple[int, ...]:
    """The p2 >= 2 that a hybrid of p1 >= 2 groups on p ranks may have, best first.

    That is the largest whose groups are all inside a node (ParaDL, section 3.6), then those of which
    some are cut by the border of a node, then the smallest beyond. Empty where p is no such product.
    """
    low = [n for n in range(2, math.isqrt(p) + 1) if p % n == 0]
    divisors = sorted({*low, *(p // n for n in low)})
    fitting = [inner for inner in divisors if inner <= ranks_per_node]
    # groups follow each other: where a node is no multiple of them, one lies on two nodes
    inside = [n for n in fitting if p <= ranks_per_node or ranks_per_node % n == 0]
    cut = [n for n in fitting if n not in inside]
    beyond = [n for n in divisors if n > ranks_per_node]
    return (*inside[::-1], *cut[::-1], *beyond)
