"""Communication libraries, one file each, behind one protocol.

What a microbenchmark times is what training uses: both call `allreduce` of the same object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np


class Communicator(Protocol):
    """A group of ranks. Buffers are contiguous NumPy arrays; sums are in place."""

    library: str
    rank: int
    size: int

    def barrier(self) -> None:
        """Return when every rank has called."""

    def allreduce(self, buffer: np.ndarray) -> None:
        """Replace `buffer` on every rank by its sum over the ranks."""

    def send(self, buffer: np.ndarray, to: int) -> None:
        """Blocking send to a rank."""

    def receive(self, buffer: np.ndarray, source: int) -> None:
        """Blocking receive from a rank."""

    def gather_objects(self, value: Any) -> list[Any]:
        """The value of every rank, on every rank. Untimed."""

    def share(self, value: Any) -> Any:
        """The value of rank 0, on every rank. Untimed."""

    def abort(self, status: int) -> None:
        """End every rank."""
