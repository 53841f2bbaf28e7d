"""Communicator: what ranks move data through, and are timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    from calib.microbench.device import Device


class Communicator(Protocol):
    """A group of ranks that moves data. Buffers are flat, contiguous float32 unless said.

    A buffer is a NumPy array or a torch tensor, whatever the library takes; all can
    be sliced [a:b], and a slice is a view. Where the library `queues`, calls return at once and are
    done when the current stream of the GPU has come to them; else when they return.
    """

    library: str
    device: Device
    queues: bool
    rank: int
    size: int

    def buffer(self, items: int) -> Any:
        """A new buffer of so many float32, not initialized."""

    def fill(self, buffer: Any, value: float) -> None:
        """Write one value to every item."""

    def write(self, buffer: Any, values: np.ndarray) -> None:
        """Write an array of the buffer's length."""

    def read(self, buffer: Any) -> np.ndarray:
        """The content as a NumPy array, after everything queued is done."""

    def barrier(self) -> None:
        """Return when every rank of the group has called."""

    def meet(self) -> None:
        """Queue a meeting of all ranks on their GPUs; nothing on a CPU."""

    def allreduce(self, buffer: Any) -> None:
        """Replace `buffer` on every rank by its sum over the ranks."""

    def allgather(self, mine: Any, gathered: Any) -> None:
        """`gathered` [size * len(mine)]: everyone's `mine`, in the order of ranks."""

    def allgatherv(self, mine: Any, gathered: Any, counts: Sequence[int]) -> None:
        """The same where rank r gives counts[r] items."""

    def reduce_scatter(self, whole: Any, mine: Any) -> None:
        """`mine` [len(whole) / size]: this rank's block of the sum of everyone's `whole`."""

    def all_to_all(self, outgoing: Any, incoming: Any) -> None:
        """Block r of `outgoing` goes to rank r; block r of `incoming` came from rank r."""

    def broadcast(self, buffer: Any, root: int) -> None:
        """`buffer` of `root` on every rank."""

    def reduce(self, buffer: Any, root: int) -> None:
        """The sum over ranks in `buffer` of `root`; afterwards undefined on the others."""

    def send(self, buffer: Any, to: int) -> None:
        """Blocking send to a rank."""

    def receive(self, buffer: Any, source: int) -> None:
        """Blocking receive from a rank."""

    def exchange(
        self, outgoing: Sequence[tuple[Any, int]], incoming: Sequence[tuple[Any, int]]
    ) -> None:
        """Send (buffer, to) and receive (buffer, source), all at once; returns when all are done.

        Of two messages between the same two ranks, the first sent is the first received.
        """

    def group(self, ranks: Sequence[int] | None) -> Communicator | None:
        """A communicator of these ranks, in that order; collective over all of this one's ranks.

        Each rank passes the group that it is in, or None (and gets None).
        """

    def close(self) -> None:
        """Free what the library holds for this communicator."""


class ToldCommunicator(Communicator, Protocol):
    """A communicator whose library chooses algorithms, and can be told which: NCCL's."""

    def telling(self, algorithm: str, protocol: str) -> ToldCommunicator:
        """The same ranks; allreduce, allgather, reduce_scatter, broadcast and reduce by this algorithm.

        Protocol "" leaves that to the library. Raises MachineError where it cannot be told.
        """

    def estimate_s(self, collective: Callable[[], None]) -> float | None:
        """The library's own estimate of a call of one collective, s, which is not made.

        None where it has none. Raises MachineError where the library refuses the call.
        """


class TorchGroup(Communicator, Protocol):
    """A communicator by torch.distributed; `process_group` is what DistributedDataParallel takes."""

    process_group: Any

    def group(self, ranks: Sequence[int] | None) -> TorchGroup | None:
        """As Communicator.group."""
