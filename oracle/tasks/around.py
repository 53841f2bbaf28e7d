"""What a rank does before and after a layer: messages, and passes over what is sent."""

from __future__ import annotations

from collections import defaultdict
from typing import Literal, NamedTuple

from calib.foundation.layers import Direction
from calib.oracle.layout.traffic import Message

When = Literal["before", "after"]


class Beside(NamedTuple):
    """A message, or a pass that the rank computes."""

    name: str
    seconds: float
    message: Message | None = None


class Around:
    """By direction and layer, in the order in which they are done."""

    def __init__(self) -> None:
        self._known: dict[tuple[Direction, When, int], list[Beside]] = defaultdict(list)

    def add(self, direction: Direction, when: When, place: int, beside: Beside) -> None:
        """One more there."""
        self._known[direction, when, place].append(beside)

    def at(self, direction: Direction, place: int) -> tuple[list[Beside], list[Beside]]:
        """What is done before a layer, and what after it."""
        before = self._known.get((direction, "before", place), [])
        return before, self._known.get((direction, "after", place), [])
