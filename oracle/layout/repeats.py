"""Equal layers of a model, so that each kind is computed once.

A network repeats its layers: ResNet-152 has 516, of some 50 kinds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from calib.oracle.model.spec import ModelSpec
from calib.oracle.once import once


@dataclass(frozen=True, slots=True)
class Repeat:
    """A kind of layer (see `kinds_of`) among some: the first of them that is so, and how many are."""

    kind: int
    first: int
    count: int


@once
def kinds_of(model: ModelSpec) -> tuple[int, ...]:
    """For every layer the first of equal shape that also needs dL/dx, or also does not."""
    seen: dict[tuple[int, bool], int] = {}
    return tuple(
        seen.setdefault((first, layer.needs_input_grad), index)
        for index, (first, layer) in enumerate(zip(model.alike, model.layers, strict=True))
    )


def repeats(model: ModelSpec, places: Sequence[int]) -> list[Repeat]:
    """The kinds among the layers at these places, in the order given."""
    of = kinds_of(model)
    kinds = [of[place] for place in places]
    first = dict(zip(reversed(kinds), reversed(places), strict=True))
    return [Repeat(kind, first[kind], count) for kind, count in Counter(kinds).items()]
