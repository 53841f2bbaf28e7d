"""Control: what the ranks of a launch tell one another. Words, and nothing is timed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Control(Protocol):
    """What all ranks of a launch tell one another. Untimed; values travel as JSON."""

    rank: int
    size: int

    def barrier(self) -> None:
        """Return when every rank has called."""

    def quiet_barrier(self) -> None:
        """A barrier that sleeps while it waits, so that ranks at work are not disturbed."""

    def allgather_object(self, value: Any) -> list[Any]:
        """The value of every rank, on every rank."""

    def broadcast_object(self, value: Any) -> Any:
        """The value of rank 0, on every rank."""

    def send(self, buffer: Any, to: int) -> None:
        """Blocking send of a small NumPy buffer: what clocks are compared by."""

    def receive(self, buffer: Any, source: int) -> None:
        """Blocking receive of one."""

    def part(self, ranks: Sequence[int] | None) -> Control | None:
        """A control of these ranks alone, in that order; collective over all, None for the others.

        Each rank passes the group that it is in, or None.
        """

    def abort(self, status: int) -> None:
        """End every rank."""
