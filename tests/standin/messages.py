"""NCCL on stand-in GPUs: data by MPI, time by the streams of gpu.py.

Under torch.distributed, and for the nccl4py of nccl/core.py, whose sends and receives take no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI
from nccl import core
from tests.standin.gpu import LAUNCH_S, MACHINE, Stream, collective_seconds, together

from calib.microbench.communicators.torch_mpi import MpiProcessGroup

BACKEND = "standin_nccl"
TIMES_TAG = 1000
BUFFER_BYTES = 4 << 20  # NCCL_BUFFSIZE

_Tensors = Sequence[torch.Tensor]


class Queued(dist.Work):
    """An operation that is queued: `wait` makes the current stream wait, not the host."""

    def __init__(self, result: list[torch.Tensor], end_s: float) -> None:
        super().__init__()
        self._result, self._end_s = result, end_s

    def is_completed(self) -> bool:
        return self._end_s <= MACHINE.host_s

    def wait(self, timeout: timedelta | None = None) -> bool:
        MACHINE.current.ready_s = max(MACHINE.current.ready_s, self._end_s)
        return True

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Done at once, as NCCL's is for what is queued behind it."""
        MACHINE.unjoined = max(MACHINE.unjoined, self._end_s)
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(self._result)
        return future

    def result(self) -> list[torch.Tensor]:
        return self._result


class Message(Queued):
    """A send or a receive, whose other side may be queued later."""

    def __init__(
        self, work: dist.Work, comm: MPI.Comm, other: int, nbytes: int, sends: bool
    ) -> None:
        MACHINE.host_s += LAUNCH_S
        self._mine = max(MACHINE.current.ready_s, MACHINE.messages.ready_s, MACHINE.host_s)
        super().__init__([], self._mine)
        self._work, self._comm, self._other, self._nbytes = work, comm, other, nbytes
        self._sends = sends
        self._begin, self._theirs = np.array([self._mine]), np.empty(1)
        self._told = comm.Isend(self._begin, other, TIMES_TAG)

    def wait(self, timeout: timedelta | None = None) -> bool:
        self._work.wait()
        self._comm.Recv(self._theirs, self._other, TIMES_TAG)
        self._told.Wait()
        # a short one is sent into the buffer of its receiver, who may come later
        buffered = self._sends and self._nbytes <= BUFFER_BYTES
        begin = self._mine if buffered else max(self._mine, float(self._theirs[0]))
        self._end_s = begin + collective_seconds("p2p", 2, self._nbytes)
        MACHINE.messages.ready_s = max(MACHINE.messages.ready_s, self._end_s)
        return super().wait()


class StandInGroup(MpiProcessGroup):
    """As MpiProcessGroup; a call on the current stream waits there, another one beside it."""

    backend_name = BACKEND

    def _queued(
        self, operation: str, nbytes: int, opts: Any, run: Any, result: list[torch.Tensor]
    ) -> dist.Work:
        beside = bool(opts.asyncOp)
        opts.asyncOp = False  # data travels now
        stream: Stream | None = MACHINE.messages if beside else None
        ends = [0.0]

        def work() -> None:
            with torch.utils._python_dispatch._disable_current_modes():
                run(opts)
            ends.append(together(self._comm, operation, nbytes, stream))

        MACHINE.do(work)
        return Queued(result, ends[-1])

    def allreduce(self, tensors: _Tensors, opts: Any) -> dist.Work:
        call = super().allreduce
        nbytes = tensors[0].nbytes
        return self._queued("allreduce", nbytes, opts, lambda o: call(tensors, o), list(tensors))

    def reduce(self, tensors: _Tensors, opts: Any) -> dist.Work:
        call = super().reduce
        return self._queued(
            "reduce", tensors[0].nbytes, opts, lambda o: call(tensors, o), list(tensors)
        )

    def broadcast(self, tensors: _Tensors, opts: Any) -> dist.Work:
        call = super().broadcast
        return self._queued(
            "broadcast", tensors[0].nbytes, opts, lambda o: call(tensors, o), list(tensors)
        )

    def reduce_scatter_single(
        self, output: torch.Tensor, whole: torch.Tensor, opts: Any
    ) -> dist.Work:
        call = super().reduce_scatter_single
        return self._queued(
            "reduce_scatter", whole.nbytes, opts, lambda o: call(output, whole, o), [output]
        )

    def all_gather_single(self, output: torch.Tensor, mine: torch.Tensor, opts: Any) -> dist.Work:
        call = super().all_gather_single
        return self._queued(
            "allgather", output.nbytes, opts, lambda o: call(output, mine, o), [output]
        )

    def allgather(self, outputs: Sequence[_Tensors], inputs: _Tensors, opts: Any) -> dist.Work:
        call = super().allgather
        nbytes = sum(place.nbytes for place in outputs[0])
        return self._queued(
            "allgather", nbytes, opts, lambda o: call(outputs, inputs, o), list(outputs[0])
        )

    def all_to_all_single(
        self, output: torch.Tensor, outgoing: torch.Tensor, to: Any, of: Any, opts: Any
    ) -> dist.Work:
        call = super().all_to_all_single
        return self._queued(
            "all_to_all",
            outgoing.nbytes,
            opts,
            lambda o: call(output, outgoing, to, of, o),
            [output],
        )

    def send(self, tensors: _Tensors, destination: int, tag: int = 0) -> dist.Work:
        work = super().send(tensors, destination, tag)
        return Message(work, self._comm, destination, tensors[0].nbytes, True)

    def recv(self, tensors: _Tensors, source: int, tag: int = 0) -> dist.Work:
        work = super().recv(tensors, source, tag)
        return Message(work, self._comm, source, tensors[0].nbytes, False)

    # the names before torch 2.13
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single


def passes(stream: object, operation: str, nbytes: int, comm: MPI.Comm, algorithm: str) -> None:
    """A call of nccl4py on the current stream; `algorithm` makes no difference."""
    if operation not in ("send", "recv"):
        together(comm, operation.replace("alltoall", "all_to_all"), nbytes)


core._passes = passes
core._does = MACHINE.do


def _create(options: Any, _: object) -> StandInGroup:
    world = MPI.COMM_WORLD
    of_ranks = world.group.Incl(options.global_ranks_in_group)
    return StandInGroup(world.Create_group(of_ranks), options.group_id)


dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu"])
