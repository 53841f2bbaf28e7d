"""MPI through mpi4py: Control and Communicator in one, for buffers of the host and of CUDA devices.

Objects travel as JSON, never as pickles: mpi4py's own `bcast` and `allgather` take their codec from
MPI.pickle, which is one for the whole process, and a user's step may need it as it is. The timed
methods add one Python call to mpi4py's own.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import numpy as np
from pydantic_core import from_json

from calib.foundation.errors import InputError, MachineError
from calib.microbench.agreement import agree
from calib.microbench.communicators.buffers import TensorBuffers
from calib.microbench.control import Control
from calib.microbench.device import CPU, Device

if TYPE_CHECKING:
    from mpi4py import MPI


QUIET_S = 0.0005  # between two looks at a quiet barrier


def _mpi() -> Any:
    """mpi4py's MPI, imported when it is used: the import itself is MPI_Init."""
    from mpi4py import MPI

    return MPI


class MpiCommunicator:
    """MPI_COMM_WORLD, or the mpi4py communicator given. Raises MachineError without an MPI.

    `comm` is that mpi4py communicator, freed by close() where it is `owned`.
    """

    library = "mpi"
    queues = False
    device: Device = CPU

    def __init__(self, comm: MPI.Comm | None = None, owned: bool = False) -> None:
        try:
            mpi = _mpi()
        except (ImportError, RuntimeError) as error:
            reason = next(iter(str(error).splitlines()), "no reason given")
            raise MachineError(
                f"no MPI library can be loaded ({reason}); "
                "install the mpich wheel, or load your system's MPI module"
            ) from error
        self._in_place: Any = mpi.IN_PLACE
        self._wait_all = mpi.Request.Waitall
        self._undefined = mpi.UNDEFINED
        self.comm: MPI.Comm = mpi.COMM_WORLD if comm is None else comm
        self._owned = owned
        self.rank = self.comm.Get_rank()
        self.size = self.comm.Get_size()

    def buffer(self, items: int) -> Any:
        """numpy.empty."""
        return np.empty(items, np.float32)

    def fill(self, buffer: Any, value: float) -> None:
        """Write one value to every item."""
        buffer.fill(value)

    def write(self, buffer: Any, values: np.ndarray) -> None:
        """Write an array of the buffer's length."""
        buffer[:] = values

    def read(self, buffer: Any) -> np.ndarray:
        """A copy."""
        copied: np.ndarray = buffer.copy()
        return copied

    def meet(self) -> None:
        """Nothing: ranks meet at a barrier."""

    def barrier(self) -> None:
        """MPI_Barrier."""
        self.comm.Barrier()

    def quiet_barrier(self) -> None:
        """MPI_Ibarrier, looked at every 0.5 ms."""
        arrived = self.comm.Ibarrier()
        while not arrived.Test():
            sleep(QUIET_S)

    def allreduce(self, buffer: Any) -> None:
        """MPI_Allreduce with MPI_SUM, in place."""
        self.comm.Allreduce(self._in_place, buffer)

    def allgather(self, mine: Any, gathered: Any) -> None:
        """MPI_Allgather."""
        self.comm.Allgather(mine, gathered)

    def allgatherv(self, mine: Any, gathered: Any, counts: Sequence[int]) -> None:
        """MPI_Allgatherv, the blocks side by side."""
        self.comm.Allgatherv(mine, [gathered, counts])

    def reduce_scatter(self, whole: Any, mine: Any) -> None:
        """MPI_Reduce_scatter_block with MPI_SUM."""
        self.comm.Reduce_scatter_block(whole, mine)

    def all_to_all(self, outgoing: Any, incoming: Any) -> None:
        """MPI_Alltoall."""
        self.comm.Alltoall(outgoing, incoming)

    def broadcast(self, buffer: Any, root: int) -> None:
        """MPI_Bcast."""
        self.comm.Bcast(buffer, root)

    def reduce(self, buffer: Any, root: int) -> None:
        """MPI_Reduce with MPI_SUM, in place at the root."""
        if self.rank == root:
            self.comm.Reduce(self._in_place, buffer, root=root)
        else:
            self.comm.Reduce(buffer, None, root=root)

    def send(self, buffer: Any, to: int) -> None:
        """MPI_Send."""
        self.comm.Send(buffer, to)

    def receive(self, buffer: Any, source: int) -> None:
        """MPI_Recv."""
        self.comm.Recv(buffer, source)

    def exchange(
        self, outgoing: Sequence[tuple[Any, int]], incoming: Sequence[tuple[Any, int]]
    ) -> None:
        """MPI_Irecv of all, MPI_Isend of all, MPI_Waitall."""
        comm = self.comm
        requests = [comm.Irecv(buffer, source) for buffer, source in incoming]
        requests += [comm.Isend(buffer, to) for buffer, to in outgoing]
        self._wait_all(requests)

    def group(self, ranks: Sequence[int] | None) -> Self | None:
        """MPI_Comm_split; close() frees it. Raises InputError where this rank is not in `ranks`."""
        if ranks is None:
            self.comm.Split(self._undefined)
            return None
        if self.rank not in ranks:
            raise InputError(f"rank {self.rank} asks for a group of {list(ranks)}; pass None")
        # groups at once are disjoint, so that their lowest ranks tell them apart
        return self._of(self.comm.Split(min(ranks), list(ranks).index(self.rank)))

    part = group

    def whole(self) -> Self:
        """All ranks again, on an MPI communicator of their own: MPI_Comm_dup; collective."""
        return self._of(self.comm.Dup())

    def _of(self, comm: MPI.Comm) -> Self:
        """One of the same kind by a communicator that it is to own."""
        return type(self)(comm, owned=True)

    def close(self) -> None:
        """MPI_Comm_free of what group, part or whole made; collective."""
        if self._owned:
            self._owned = False
            self.comm.Free()

    def allgather_object(self, value: Any) -> list[Any]:
        """Allgather of JSON texts, their lengths first."""
        text = json.dumps(value).encode()
        lengths = np.empty(self.size, dtype=np.int64)
        self.comm.Allgather(np.array([len(text)], dtype=np.int64), lengths)
        texts = bytearray(int(lengths.sum()))
        self.comm.Allgatherv(text, [texts, lengths])
        ends = lengths.cumsum()
        return [_read(texts[a:b]) for a, b in zip(ends - lengths, ends, strict=True)]

    def broadcast_object(self, value: Any) -> Any:
        """Broadcast of rank 0's JSON text, its length first."""
        text = bytearray(json.dumps(value).encode() if self.rank == 0 else b"")
        length = np.array([len(text)], dtype=np.int64)
        self.comm.Bcast(length, root=0)
        text = text or bytearray(int(length[0]))
        self.comm.Bcast(text, root=0)
        return _read(text)

    def abort(self, status: int) -> None:
        """MPI_Abort. MPICH's may return before the ranks are ended: this one goes no further."""
        self.comm.Abort(status)
        os._exit(status)


def _read(text: bytearray) -> Any:
    """A value from its JSON. Of a thousand ranks it is megabytes: json takes four times as long."""
    try:
        return from_json(text)
    except ValueError:  # half a character, from an odd file name
        return json.loads(text)


def make(library: str, control: Control, device: Device) -> MpiCommunicator:
    """All ranks of `control`, with messages of their own; see make_communicator."""
    world = mpi_control(library, control)
    return world.whole() if device.kind == "cpu" else make_cuda(world, device)


def mpi_control(library: str, control: Control) -> MpiCommunicator:
    """`control` as what it is where an MPI launcher started the ranks; InputError otherwise."""
    if not isinstance(control, MpiCommunicator):
        raise InputError(f"{library} needs ranks that MPI started, not {type(control).__name__}")
    return control


def library_version() -> str:
    """One line naming the MPI library, or what is missing."""
    try:
        mpi = _mpi()
    except (ImportError, RuntimeError) as error:
        return f"none ({next(iter(str(error).splitlines()), repr(error))})"
    return " ".join(mpi.Get_library_version().splitlines()[0].rstrip("\0").split())


_Method = TypeVar("_Method", bound=Callable[..., None])


def _when_idle(method: _Method) -> _Method:
    """The method, called when everything queued on the device is done."""

    @wraps(method)
    def call(self: CudaMpiCommunicator, *arguments: Any, **named: Any) -> None:
        self.device.synchronize()
        method(self, *arguments, **named)

    return cast("_Method", call)


class CudaMpiCommunicator(TensorBuffers, MpiCommunicator):
    """Buffers of a GPU: PyTorch's tensors. A call waits for the device, then is MPI's.

    That waiting is part of what is timed: no caller can leave it out and be right.
    """

    def __init__(self, comm: MPI.Comm, owned: bool, device: Device) -> None:
        super().__init__(comm, owned)
        self.device = device

    def _of(self, comm: MPI.Comm) -> Self:
        return type(self)(comm, True, self.device)

    allreduce = _when_idle(MpiCommunicator.allreduce)
    allgather = _when_idle(MpiCommunicator.allgather)
    allgatherv = _when_idle(MpiCommunicator.allgatherv)
    reduce_scatter = _when_idle(MpiCommunicator.reduce_scatter)
    all_to_all = _when_idle(MpiCommunicator.all_to_all)
    broadcast = _when_idle(MpiCommunicator.broadcast)
    reduce = _when_idle(MpiCommunicator.reduce)
    send = _when_idle(MpiCommunicator.send)
    receive = _when_idle(MpiCommunicator.receive)  # what is queued may still read the buffer
    exchange = _when_idle(MpiCommunicator.exchange)


def make_cuda(world: MpiCommunicator, device: Device) -> CudaMpiCommunicator:
    """All ranks of `world`. Raises MachineError where the MPI does not know of GPUs."""
    unaware = (
        f"this MPI ({library_version()}) does not take device buffers; load one that is built "
        "with CUDA (Cray's needs MPICH_GPU_SUPPORT_ENABLED=1), or measure nccl"
    )
    agree(world, "" if gpu_aware() else unaware)
    return CudaMpiCommunicator(world.comm.Dup(), owned=True, device=device)


def gpu_aware() -> bool:
    """Whether the loaded MPI says that it takes CUDA device buffers.

    Asked are MPIX_Query_cuda_support (Open MPI, MPICH), the memory kinds of MPI 4.1, and the variable
    that switches Cray MPICH.
    """
    if os.environ.get("MPICH_GPU_SUPPORT_ENABLED") == "1":
        return True
    info = _mpi().COMM_WORLD.Get_info()
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
