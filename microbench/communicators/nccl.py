"""NCCL through nccl4py (`nccl.core`), on PyTorch's current stream of the rank's GPU.

A communicator and its groups queue on one stream, the one that events of the device see. NCCL has no
allgatherv: it is grouped sends and receives, as NCCL's manual has it. Several ranks on one GPU are
refused by NCCL, except for testing: NCCL >= 2.30 with NCCL_MULTI_RANK_GPU_ENABLE=1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, cast

from calib.foundation.errors import InputError, MachineError
from calib.foundation.nccl import CONFIG_VERSION, selection
from calib.microbench.agreement import agree, together
from calib.microbench.communicators.buffers import TensorBuffers
from calib.microbench.control import Control

if TYPE_CHECKING:
    from calib.microbench.device import Device
    from calib.microbench.devices.cuda import CudaDevice

NO_NCCL4PY = "nccl4py, which is part of the gpu extra, cannot be imported"
NO_NCCL = "nccl4py finds no NCCL library: install nvidia-nccl-cu13, or the one of your CUDA"


class NcclCommunicator(TensorBuffers):
    """All ranks of `control`, each on its GPU; buffers are torch tensors of float32.

    Collective. The control is kept: groups tell their unique id by it. Raises MachineError on all
    ranks where NCCL refuses one.
    """

    library = "nccl"
    queues = True
    device: CudaDevice

    def __init__(self, control: Control, device: CudaDevice) -> None:
        # late: nccl4py is not everywhere
        from nccl import core

        self._core, self._control, self.device = core, control, device
        self.rank, self.size = control.rank, control.size
        mine = asked(
            control,
            lambda: core.get_unique_id().as_bytes.hex() if self.rank == 0 else "",
            "gives no unique id",
        )
        identity = core.UniqueId.from_bytes(bytes.fromhex(control.broadcast_object(mine)))
        self._comm: Any = asked(
            control,
            lambda: core.Communicator.init(self.size, self.rank, identity),
            f"does not connect {self.size} ranks; one rank per GPU?",
        )
        self._config: Any = None
        self._one = self.buffer(1)
        self.fill(self._one, 0.0)

    @property
    def _how(self) -> dict[str, Any]:
        return {"stream": self._stream, "config": self._config}

    @property
    def _stream(self) -> int:
        return int(self.device.stream.cuda_stream)

    def meet(self) -> None:
        """An allreduce of one item, by NCCL's own choice whatever the calls are told."""
        self._comm.allreduce(self._one, self._one, self._core.SUM, stream=self._stream)

    def barrier(self) -> None:
        """The same, waited for."""
        self.meet()
        self.device.synchronize()

    def allreduce(self, buffer: Any) -> None:
        """ncclAllReduce, in place."""
        self._comm.allreduce(buffer, buffer, self._core.SUM, **self._how)

    def allgather(self, mine: Any, gathered: Any) -> None:
        """ncclAllGather."""
        self._comm.allgather(mine, gathered, **self._how)

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
        self._comm.reduce_scatter(whole, mine, self._core.SUM, **self._how)

    def all_to_all(self, outgoing: Any, incoming: Any) -> None:
        """ncclAlltoAll."""
        self._comm.alltoall(outgoing, incoming, stream=self._stream)

    def broadcast(self, buffer: Any, root: int) -> None:
        """ncclBroadcast, in place."""
        self._comm.broadcast(buffer, buffer, root, **self._how)

    def reduce(self, buffer: Any, root: int) -> None:
        """ncclReduce, in place."""
        self._comm.reduce(buffer, buffer, self._core.SUM, root, **self._how)

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

    def telling(self, algorithm: str, protocol: str) -> NcclCommunicator:
        """By a config for each call. Raises MachineError with an NCCL before 2.31."""
        version = self._core.get_version().libnccl.version
        if version.release < CONFIG_VERSION:
            raise MachineError(
                f"NCCL {version} cannot be told an algorithm for a call; 2.31 and newer can "
                "(pip install --no-deps --upgrade nvidia-nccl-cu13, or the one of your CUDA)"
            )
        made = copy(self)
        made._config = self._core.NCCLCollConfig(
            alg_selection=selection(algorithm, protocol), force_alg_selection=True
        )
        return made

    def estimate_s(self, collective: Callable[[], None]) -> float | None:
        """By a group of calls that is simulated: in us, whatever nccl4py's docstring says."""

        def simulate() -> float:
            self._core.group_start()
            try:
                collective()
            finally:
                info = self._core.group_end(simulate=True)
            return float(info.estimated_time)

        told = "" if self._config is None else f" {self._config.alg_selection} for"
        found = said(simulate, f"does not take{told} this call on these GPUs")
        return found * 1e-6 if found > 0 else None

    def group(self, ranks: Sequence[int] | None) -> NcclCommunicator | None:
        """A new communicator by a new unique id, whose ranks are in the order asked for."""
        part = self._control.part(ranks)
        return None if part is None else NcclCommunicator(part, self.device)

    def close(self) -> None:
        """ncclCommDestroy, after what is queued is done; collective."""
        self.device.synchronize()
        self._comm.destroy()


def said(call: Callable[[], Any], what: str) -> Any:
    """What a call into NCCL returns. Raises MachineError, with `what` NCCL then does or does not."""
    from nccl.bindings.nccl import NCCLError

    try:
        return call()
    except NCCLError as error:
        raise MachineError(f"NCCL {what} ({error}); NCCL_DEBUG=WARN says more") from error


def asked(control: Control, call: Callable[[], Any], what: str) -> Any:
    """The same on all ranks together: it fails on all of them where it does on any."""
    return together(control, lambda: said(call, what))


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
    return NcclCommunicator(control, cast("CudaDevice", device))
