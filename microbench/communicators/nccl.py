"""NCCL through nccl4py (`nccl.core`), on PyTorch's current stream of the rank's GPU.

A communicator and its groups queue on one stream, the one that events of the device see. NCCL has no
allgatherv: it is grouped sends and receives, as NCCL's manual has it. Several ranks on one GPU are
refused by NCCL, except for testing: NCCL >= 2.30 with NCCL_MULTI_RANK_GPU_ENABLE=1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from calib.foundation.errors import InputError
from calib.microbench.communicator import Control
from calib.microbench.communicators.devices import agree

if TYPE_CHECKING:
    from calib.microbench.device import Device

NO_NCCL4PY = "nccl4py, which is part of the gpu extra, cannot be imported"
NO_NCCL = "nccl4py finds no NCCL library: install nvidia-nccl-cu13, or the one of your CUDA"


class NcclCommunicator:
    """All ranks of `control`, each on its GPU; buffers are torch tensors of float32.

    Collective. The control is kept: groups tell their unique id by it. Raises MachineError on all
    ranks where NCCL refuses one.
    """

    library = "nccl"
    queues = True

    def __init__(self, control: Control, device: Device) -> None:
        # late: nccl4py is not everywhere
        from nccl import core

        self._core, self._control, self.device = core, control, device
        self.rank, self.size = control.rank, control.size
        mine = asked(control, lambda: core.get_unique_id().as_bytes.hex() if self.rank == 0 else "")
        identity = core.UniqueId.from_bytes(bytes.fromhex(control.broadcast_object(mine)))
        self._comm: Any = asked(
            control,
            lambda: core.Communicator.init(self.size, self.rank, identity),
            f"does not connect {self.size} ranks; one rank per GPU?",
        )
        self._one = self.buffer(1)
        self.fill(self._one, 0.0)

    @property
    def _stream(self) -> int:
        return torch.cuda.current_stream(self.device.tensors).cuda_stream

    def buffer(self, items: int) -> Any:
        """torch.empty."""
        return torch.empty(items, dtype=torch.float32, device=self.device.tensors)

    def fill(self, buffer: Any, value: float) -> None:
        """Write one value to every item."""
        buffer.fill_(value)

    def write(self, buffer: Any, values: np.ndarray) -> None:
        """Copy from the host."""
        buffer.copy_(torch.from_numpy(values.astype("float32", copy=False)))

    def read(self, buffer: Any) -> np.ndarray:
        """Copy to the host."""
        copied: np.ndarray = buffer.cpu().numpy().copy()
        return copied

    def meet(self) -> None:
        """An allreduce of one item."""
        self.allreduce(self._one)

    def barrier(self) -> None:
        """The same, waited for."""
        self.meet()
        self.device.synchronize()

    def allreduce(self, buffer: Any) -> None:
        """ncclAllReduce, in place."""
        self._comm.allreduce(buffer, buffer, self._core.SUM, stream=self._stream)

    def allgather(self, mine: Any, gathered: Any) -> None:
        """ncclAllGather."""
        self._comm.allgather(mine, gathered, stream=self._stream)

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
        self._comm.reduce_scatter(whole, mine, self._core.SUM, stream=self._stream)

    def all_to_all(self, outgoing: Any, incoming: Any) -> None:
        """ncclAlltoAll."""
        self._comm.alltoall(outgoing, incoming, stream=self._stream)

    def broadcast(self, buffer: Any, root: int) -> None:
        """ncclBroadcast, in place."""
        self._comm.broadcast(buffer, buffer, root, stream=self._stream)

    def reduce(self, buffer: Any, root: int) -> None:
        """ncclReduce, in place."""
        self._comm.reduce(buffer, buffer, self._core.SUM, root, stream=self._stream)

    def send(self, buffer: Any, to: int) -> None:
        """ncclSend."""
        self._comm.send(buffer, to, stream=self._stream)

    def receive(self, buffer: Any, source: int) -> None:
        """ncclRecv."""
        self._comm.recv(buffer, source, stream=self._stream)

    def exchange(
        self, outgoing: Sequence[tuple[Any, int]], incoming: Sequence[tuple[Any, int]]
    ) -> None:
        """Sends and receives in one group of calls."""
        with self._core.group():
            for buffer, to in outgoing:
                self.send(buffer, to)
            for buffer, source in incoming:
                self.receive(buffer, source)

    def group(self, ranks: Sequence[int] | None) -> NcclCommunicator | None:
        """A new communicator by a new unique id, whose ranks are in the order asked for."""
        part = self._control.part(ranks)
        return None if part is None else NcclCommunicator(part, self.device)

    def close(self) -> None:
        """ncclCommDestroy, after what is queued is done; collective."""
        self.device.synchronize()
        self._comm.destroy()


def asked(control: Control, call: Callable[[], Any], what: str = "refuses") -> Any:
    """What a call into NCCL returns; collective. Raises MachineError on all ranks where it fails on any.

    `what` says what NCCL then does not do.
    """
    from nccl.bindings.nccl import NCCLError

    found, problem = None, ""
    try:
        found = call()
    except NCCLError as error:
        problem = f"NCCL {what} ({error}); NCCL_DEBUG=WARN says more"
    agree(control, problem)
    return found


def missing() -> str:
    """What this rank lacks for NCCL; "" where it has all."""
    try:
        from nccl import core
    except ImportError as error:
        return f"{NO_NCCL4PY} ({error})"
    return "" if core.get_version().libnccl else NO_NCCL


def make(library: str, control: Control, device: Device) -> NcclCommunicator:
    """All ranks of `control`; see make_communicator. Raises MachineError without nccl4py or NCCL."""
    if device.kind != "cuda":
        raise InputError(f"{library} takes buffers of cuda, not {device.kind!r}")
    agree(control, missing())
    return NcclCommunicator(control, device)
