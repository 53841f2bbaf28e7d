"""MPI on device buffers: CuPy arrays, given to an MPI that was built for them.

MPI knows no streams, so each call first waits for what the device has queued.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calib.microbench.communicators.devices import agree, cupy_on_gpu
from calib.microbench.communicators.mpi import MpiCommunicator, library_version
from calib.microbench.communicators.stopwatch import CupyStopwatch, Stopwatch

if TYPE_CHECKING:
    import numpy as np
    from mpi4py import MPI


class CudaMpiCommunicator(MpiCommunicator):
    """Device buffers: CuPy arrays of the current GPU. A call waits for the device, then is MPI's.

    That waiting is part of what is timed: no caller can leave it out and be right.
    """

    device = "cuda"

    def __init__(self, comm: MPI.Comm | None = None, owned: bool = False) -> None:
        super().__init__(comm, owned)
        import cupy

        self._cupy = cupy
        self._stream = cupy.cuda.get_current_stream()

    def buffer(self, items: int) -> Any:
        """cupy.empty."""
        return self._cupy.empty(items, self._cupy.float32)

    def write(self, buffer: Any, values: np.ndarray) -> None:
        """Copy from the host."""
        buffer.set(values.astype("float32", copy=False), stream=self._stream)
        self._stream.synchronize()

    def read(self, buffer: Any) -> np.ndarray:
        """Copy to the host."""
        self._stream.synchronize()
        copied: np.ndarray = buffer.get()
        return copied

    def synchronize(self) -> None:
        """Wait for the stream."""
        self._stream.synchronize()

    def stopwatch(self) -> Stopwatch:
        """Times by events of the stream; see stopwatch.py."""
        return CupyStopwatch(self._stream)

    def allreduce(self, buffer: Any) -> None:
        """MPI_Allreduce with MPI_SUM, in place."""
        self._stream.synchronize()
        super().allreduce(buffer)

    def allgather(self, mine: Any, gathered: Any) -> None:
        """MPI_Allgather."""
        self._stream.synchronize()
        super().allgather(mine, gathered)

    def allgatherv(self, mine: Any, gathered: Any, counts: Sequence[int]) -> None:
        """MPI_Allgatherv, the blocks side by side."""
        self._stream.synchronize()
        super().allgatherv(mine, gathered, counts)

    def reduce_scatter(self, whole: Any, mine: Any) -> None:
        """MPI_Reduce_scatter_block with MPI_SUM."""
        self._stream.synchronize()
        super().reduce_scatter(whole, mine)

    def all_to_all(self, outgoing: Any, incoming: Any) -> None:
        """MPI_Alltoall."""
        self._stream.synchronize()
        super().all_to_all(outgoing, incoming)

    def broadcast(self, buffer: Any, root: int) -> None:
        """MPI_Bcast."""
        self._stream.synchronize()
        super().broadcast(buffer, root)

    def reduce(self, buffer: Any, root: int) -> None:
        """MPI_Reduce with MPI_SUM, in place at the root."""
        self._stream.synchronize()
        super().reduce(buffer, root)

    def send(self, buffer: Any, to: int) -> None:
        """MPI_Send."""
        self._stream.synchronize()
        super().send(buffer, to)

    def receive(self, buffer: Any, source: int) -> None:
        """MPI_Recv; what is queued may still read the buffer."""
        self._stream.synchronize()
        super().receive(buffer, source)

    def exchange(
        self, outgoing: Sequence[tuple[Any, int]], incoming: Sequence[tuple[Any, int]]
    ) -> None:
        """MPI_Irecv of all, MPI_Isend of all, MPI_Waitall."""
        self._stream.synchronize()
        super().exchange(outgoing, incoming)


def make_cuda(world: MpiCommunicator) -> CudaMpiCommunicator:
    """All ranks of `world`. Raises MachineError without CuPy, a GPU, or an MPI that knows of GPUs."""
    cupy_on_gpu(world)
    unaware = (
        f"this MPI ({library_version()}) does not take device buffers; load one that is built "
        "with CUDA (Cray's needs MPICH_GPU_SUPPORT_ENABLED=1), or measure nccl"
    )
    agree(world, "" if gpu_aware() else unaware)
    return CudaMpiCommunicator(world.comm.Dup(), owned=True)


def gpu_aware() -> bool:
    """Whether the loaded MPI says that it takes CUDA device buffers.

    Asked are MPIX_Query_cuda_support (Open MPI, MPICH), the memory kinds of MPI 4.1, and the variable
    that switches Cray MPICH.
    """
    from mpi4py import MPI

    if os.environ.get("MPICH_GPU_SUPPORT_ENABLED") == "1":
        return True
    info = MPI.COMM_WORLD.Get_info()
    kinds = info.Get("mpi_memory_alloc_kinds") or ""
    info.Free()
    if any(kind.split(":")[0] == "cuda" for kind in kinds.split(",")):
        return True
    maps = Path("/proc/self/maps")
    mapped = maps.read_text().split() if maps.exists() else []
    loaded = {text for text in mapped if Path(text).name.startswith("libmpi")}
    for path in sorted(loaded):
        try:
            if ctypes.CDLL(path).MPIX_Query_cuda_support() == 1:
                return True
        except (OSError, AttributeError):
            continue
    return False
