"""NCCL through CuPy (cupy.cuda.nccl), on a stream of its own that waits for no other.

Calls are queued; synchronize() or the stopwatch's seconds() waits. NCCL has no all-to-all and no
allgatherv: both are grouped sends and receives, as NCCL's manual has them. Several ranks on one GPU
are refused by NCCL, except for testing: NCCL >= 2.30 with NCCL_MULTI_RANK_GPU_ENABLE=1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from calib.microbench.stopwatch import CupyStopwatch, Stopwatch

from calib.foundation.errors import InputError
from calib.microbench.communicator import Control
from calib.microbench.communicators.devices import agree, cupy_on_gpu


class NcclCommunicator:
    """All ranks of `control`, each on the current GPU; buffers are CuPy arrays of float32.

    Collective. The control is kept: groups tell their unique id by it. Raises MachineError where
    NCCL refuses.
    """

    library = "nccl"
    device = "cuda"

    def __init__(self, control: Control) -> None:
        import cupy
        from cupy.cuda import nccl

        self._cupy, self._nccl = cupy, nccl
        self._control, self.rank, self.size = control, control.rank, control.size
        self._float, self._sum = nccl.NCCL_FLOAT32, nccl.NCCL_SUM
        self.stream = cupy.cuda.Stream(non_blocking=True)
        identity = control.broadcast_object(
            nccl.get_unique_id().hex() if control.rank == 0 else None
        )
        problem = ""
        try:
            self._comm = nccl.NcclCommunicator(self.size, bytes.fromhex(identity), self.rank)
        except nccl.NcclError as error:
            problem = (
                f"NCCL does not connect {self.size} ranks ({error}); one rank per GPU? "
                "NCCL_DEBUG=WARN says more"
            )
        agree(control, problem)
        self._one = self.buffer(1)
        self.fill(self._one, 0.0)

    def buffer(self, items: int) -> Any:
        """cupy.empty."""
        with self.stream:
            return self._cupy.empty(items, self._cupy.float32)

    def fill(self, buffer: Any, value: float) -> None:
        """Write one value to every item."""
        with self.stream:
            buffer.fill(value)

    def write(self, buffer: Any, values: np.ndarray) -> None:
        """Copy from the host."""
        buffer.set(values.astype("float32", copy=False), stream=self.stream)
        self.stream.synchronize()

    def read(self, buffer: Any) -> np.ndarray:
        """Copy to the host."""
        copied: np.ndarray = buffer.get(stream=self.stream)
        self.stream.synchronize()
        return copied

    def synchronize(self) -> None:
        """Wait for the stream."""
        self.stream.synchronize()

    def stopwatch(self) -> Stopwatch:
        """Times by events of the stream; see stopwatch.py."""
        return CupyStopwatch(self.stream)

    def barrier(self) -> None:
        """An allreduce of one item, waited for."""
        self.allreduce(self._one)
        self.stream.synchronize()

    def allreduce(self, buffer: Any) -> None:
        """ncclAllReduce, in place."""
        at = buffer.data.ptr
        self._comm.allReduce(at, at, buffer.size, self._float, self._sum, self.stream.ptr)

    def allgather(self, mine: Any, gathered: Any) -> None:
        """ncclAllGather."""
        self._comm.allGather(
            mine.data.ptr, gathered.data.ptr, mine.size, self._float, self.stream.ptr
        )

    def allgatherv(self, mine: Any, gathered: Any, counts: Sequence[int]) -> None:
        """Everyone sends its block to everyone, itself too, in one group of calls."""
        outgoing, incoming, start = [], [], 0
        for rank, count in enumerate(counts):
            if counts[self.rank]:
                outgoing.append((mine, rank))
            if count:
                incoming.append((gathered[start : start + count], rank))
            start += count
        self.exchange(outgoing, incoming)

    def reduce_scatter(self, whole: Any, mine: Any) -> None:
        """ncclReduceScatter."""
        self._comm.reduceScatter(
            whole.data.ptr, mine.data.ptr, mine.size, self._float, self._sum, self.stream.ptr
        )

    def all_to_all(self, outgoing: Any, incoming: Any) -> None:
        """Grouped sends and receives, one pair for each rank."""
        items = outgoing.size // self.size
        step = items * outgoing.itemsize
        source, target, stream = outgoing.data.ptr, incoming.data.ptr, self.stream.ptr
        self._nccl.groupStart()
        for rank in range(self.size):
            self._comm.send(source + rank * step, items, self._float, rank, stream)
            self._comm.recv(target + rank * step, items, self._float, rank, stream)
        self._nccl.groupEnd()

    def broadcast(self, buffer: Any, root: int) -> None:
        """ncclBroadcast, in place."""
        at = buffer.data.ptr
        self._comm.broadcast(at, at, buffer.size, self._float, root, self.stream.ptr)

    def reduce(self, buffer: Any, root: int) -> None:
        """ncclReduce, in place."""
        at = buffer.data.ptr
        self._comm.reduce(at, at, buffer.size, self._float, self._sum, root, self.stream.ptr)

    def send(self, buffer: Any, to: int) -> None:
        """ncclSend."""
        self._comm.send(buffer.data.ptr, buffer.size, self._float, to, self.stream.ptr)

    def receive(self, buffer: Any, source: int) -> None:
        """ncclRecv."""
        self._comm.recv(buffer.data.ptr, buffer.size, self._float, source, self.stream.ptr)

    def exchange(
        self, outgoing: Sequence[tuple[Any, int]], incoming: Sequence[tuple[Any, int]]
    ) -> None:
        """Sends and receives in one group of calls."""
        self._nccl.groupStart()
        for buffer, to in outgoing:
            self.send(buffer, to)
        for buffer, source in incoming:
            self.receive(buffer, source)
        self._nccl.groupEnd()

    def group(self, ranks: Sequence[int] | None) -> NcclCommunicator | None:
        """A new communicator by a new unique id: in the order asked for, with any version."""
        part = self._control.part(ranks)
        return None if part is None else NcclCommunicator(part)

    def close(self) -> None:
        """ncclCommDestroy, after what is queued is done; collective."""
        self.stream.synchronize()
        self._comm.destroy()


def make(library: str, control: Control, device: str) -> NcclCommunicator:
    """All ranks of `control`; see make_communicator. Raises MachineError without CuPy or a GPU."""
    if device != "cuda":
        raise InputError(f"{library} takes buffers of cuda, not {device!r}")
    cupy_on_gpu(control, with_nccl=True)
    return NcclCommunicator(control)
