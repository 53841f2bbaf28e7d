"""Messages of one item under torch.distributed: "calib_short", over MPI or gloo.

A rank makes the calls of training at the same places and waits for the others as there, but one item
travels instead of the tensor. So the calls cost their latency in place and the lateness of the others;
bytes are measured separately. What a call would have received is filled in from the rank's own memory,
so that the next layer finds a warm tensor of ordinary numbers. Between nodes the rank sleeps before that
as long as the bytes would be on their way: a core that has waited for milliseconds has lost its caches
(a convolution of 0.9 ms took 1.3 ms after 7 ms, whether the rank slept, spun or received). `ASIDE` keeps
both out of what is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from statistics import median
from time import perf_counter, sleep
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI

from calib.microbench.communicators.mpi import MpiCommunicator
from calib.microbench.communicators.rendezvous import Meeting
from calib.microbench.communicators.torch_groups import create_gloo
from calib.microbench.communicators.torch_mpi import MpiProcessGroup
from calib.microbench.machine.placement import machine_id

BACKEND = "calib_short"
COMMON = 0.5  # what stands where nothing of the rank's own fits
# messages that tell how fast the way between nodes is, and how many are asked
PROBE_BYTES, PROBES = 1 << 20, 3
MOST_WAIT_S = 0.02  # a core is no colder after it; gradients would take seconds

_Tensors = Sequence[torch.Tensor]
_Fill = Callable[[], None] | None


class Aside:
    """What a call of one item does instead of receiving; `calls` counts them."""

    def __init__(self) -> None:
        self.calls = 0
        self._context: AbstractContextManager[object] = nullcontext()

    def within(self, context: AbstractContextManager[object]) -> None:
        """From now on in this context, one in which nothing is timed."""
        self._context = context

    def do(self, wait_s: float, fill: _Fill) -> None:
        """Sleep, and call `fill`."""
        self.calls += 1
        with self._context, torch.no_grad():
            if wait_s > 0.0:
                sleep(wait_s)
            if fill is not None:
                fill()


ASIDE = Aside()


def seconds_per_byte(members: MpiCommunicator) -> float:
    """What a byte takes around the ring of `members`; 0 where all are on one machine. Collective."""
    if len(set(members.allgather_object(machine_id()))) == 1:
        return 0.0
    outgoing, incoming = np.zeros(PROBE_BYTES, np.uint8), np.zeros(PROBE_BYTES, np.uint8)
    behind, before = (members.rank + 1) % members.size, (members.rank - 1) % members.size
    seconds = []
    for _ in range(PROBES):
        members.barrier()
        start = perf_counter()
        members.exchange([(outgoing, behind)], [(incoming, before)])
        seconds.append(perf_counter() - start)
    slowest: float = max(members.allgather_object(median(seconds)))
    return slowest / PROBE_BYTES


def _filled(places: _Tensors, mine: torch.Tensor) -> Callable[[], None]:
    def fill() -> None:
        for place in places:
            if place.numel() == mine.numel():
                place.copy_(mine.reshape(place.shape))
            else:
                place.fill_(COMMON)

    return fill


class ShortWork(dist.Work):
    """A call of one item; what it would have received is filled in when it is waited for.

    By then its bytes have been on their way since the call began: the rank sleeps the rest of `wait_s`.
    """

    def __init__(self, work: dist.Work, wait_s: float, fill: _Fill) -> None:
        super().__init__()
        self._work, self._fill, self._ready_s = work, fill, perf_counter() + wait_s

    def is_completed(self) -> bool:
        """Whether the item has arrived."""
        return self._work.is_completed()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return when it has arrived and the rest is filled in."""
        self._work.wait()
        wait_s, fill = self._ready_s - perf_counter(), self._fill
        self._ready_s, self._fill = 0.0, None
        if wait_s > 0.0 or fill is not None:
            ASIDE.do(wait_s, fill)
        return True


_ProcessGroup: Any = dist.ProcessGroup  # its methods are overloads; torch calls one form of each


class ShortProcessGroup(_ProcessGroup):  # type: ignore[misc]
    """The calls of `group`, of one item a rank; tensors that are summed or sent stay as they are.

    `s_per_byte` is what their bytes are taken to need: 0 until somebody sets it.
    """

    def __init__(self, group: Any, rank: int, size: int, name: str) -> None:
        super().__init__(rank, size)
        self._group, self._rank, self._size, self._name = group, rank, size, name
        self.s_per_byte = 0.0
        self._one, self._each, self._landed = torch.zeros(1), torch.zeros(size), torch.zeros(size)

    def getBackendName(self) -> str:  # noqa: N802 (torch's name)
        """The name that the backend is registered by."""
        return BACKEND

    def getGroupName(self) -> str:  # noqa: N802 (torch's name)
        """The name that torch gave this group."""
        return self._name

    def allreduce(self, tensors: _Tensors, opts: Any) -> dist.Work:
        """An allreduce of one item."""
        return self._short(
            self._group.allreduce([self._one], opts), opts, 2 * self._share(tensors[0])
        )

    def reduce(self, tensors: _Tensors, opts: Any) -> dist.Work:
        """A reduce of one item."""
        return self._short(self._group.reduce([self._one], opts), opts, tensors[0].nbytes)

    def broadcast(self, tensors: _Tensors, opts: Any) -> dist.Work:
        """A broadcast of one item."""
        return self._short(self._group.broadcast([self._one], opts), opts, tensors[0].nbytes)

    def barrier(self, opts: Any) -> dist.Work:
        """The group's own."""
        work: dist.Work = self._group.barrier(opts)
        return work

    def reduce_scatter_single(
        self, output: torch.Tensor, whole: torch.Tensor, opts: Any
    ) -> dist.Work:
        """A reduce-scatter of one item for each rank."""
        mine = whole.view(self._size, -1)[self._rank]
        work = self._group._reduce_scatter_base(self._one, self._each, opts)
        return self._short(work, opts, self._share(whole), _filled([output], mine))

    def all_gather_single(self, output: torch.Tensor, mine: torch.Tensor, opts: Any) -> dist.Work:
        """An allgather of one item."""
        places = list(output.view(self._size, -1).unbind())
        work = self._group._allgather_base(self._each, self._one, opts)
        return self._short(work, opts, self._share(output), _filled(places, mine))

    def allgather(self, outputs: Sequence[_Tensors], inputs: _Tensors, opts: Any) -> dist.Work:
        """An allgather of one item."""
        (mine,), (places,) = inputs, outputs
        work = self._group._allgather_base(self._each, self._one, opts)
        others = sum(place.nbytes for place in places) - mine.nbytes
        return self._short(work, opts, others, _filled(places, mine))

    def all_to_all_single(
        self,
        output: torch.Tensor,
        outgoing: torch.Tensor,
        output_split_sizes: Sequence[int] | None,
        input_split_sizes: Sequence[int] | None,
        opts: Any,
    ) -> dist.Work:
        """An all-to-all of one item for each rank; what goes out is filled in as what came."""
        work = self._group.alltoall_base(self._landed, self._each, [], [], opts)
        return self._short(work, opts, self._share(outgoing), _filled([output], outgoing))

    def send(self, tensors: _Tensors, destination: int, tag: int = 0) -> dist.Work:
        """One item; whole of what are no numbers but words (torch's pickles)."""
        if tensors[0].is_floating_point():
            tensors = [self._one]
        work: dist.Work = self._group.send(tensors, destination, tag)
        return work

    def recv(self, tensors: _Tensors, source: int, tag: int = 0) -> dist.Work:
        """One item; whole as in send."""
        if not tensors[0].is_floating_point():
            work: dist.Work = self._group.recv(tensors, source, tag)
            return work
        fill = _filled(tensors, torch.empty(0))
        work = self._group.recv([torch.zeros(1)], source, tag)
        return ShortWork(work, self._wait_s(tensors[0].nbytes), fill)

    def shutdown(self) -> None:
        """The group's own."""
        self._group.shutdown()
        self._group = None  # gloo's threads end here, not at the end of Python

    def _share(self, whole: torch.Tensor) -> float:
        """Bytes that a rank passes on of a tensor that goes around a ring."""
        return whole.nbytes * (self._size - 1) / self._size

    def _wait_s(self, nbytes: float) -> float:
        return min(nbytes * self.s_per_byte, MOST_WAIT_S)

    def _short(self, work: dist.Work, opts: Any, nbytes: float, fill: _Fill = None) -> dist.Work:
        """The work of a call; one that blocks is done."""
        short = ShortWork(work, self._wait_s(nbytes), fill)
        if not opts.asyncOp:
            short.wait()
        return short

    # the names before torch 2.13
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single


def _create(options: Any, told: MPI.Comm | Meeting) -> ShortProcessGroup:
    """What register_backend calls on the ranks of a new group: over gloo where there is a meeting."""
    if isinstance(told, Meeting):
        group: Any = create_gloo(options, told)
    else:
        group = MpiProcessGroup(told, options.group_id)
    return ShortProcessGroup(group, options.group_rank, options.group_size, options.group_id)


dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu"])
