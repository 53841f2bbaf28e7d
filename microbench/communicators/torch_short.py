"""Messages of one item under torch.distributed: "calib_short", over MPI or gloo.

A rank makes the calls of training at the same places and waits for the others as there, but one item
travels instead of the tensor. So the calls cost their latency in place and the lateness of the others;
bytes are measured separately. What a call would have received is filled in from the rank's own memory,
so that the next layer finds a warm tensor of ordinary numbers; `FILLED` counts those seconds, to be
left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from calib.microbench.communicators.rendezvous import Meeting
from calib.microbench.communicators.torch_groups import create_gloo
from calib.microbench.communicators.torch_mpi import MpiProcessGroup

BACKEND = "calib_short"
COMMON = 0.5  # what stands where nothing of the rank's own fits

_Tensors = Sequence[torch.Tensor]
_Fill = Callable[[], None] | None


class Filled:
    """Seconds of filling in since the last `take`."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def timed(self, fill: Callable[[], None]) -> None:
        """Call `fill`."""
        start = perf_counter()
        with torch.no_grad():
            fill()
        self._seconds += perf_counter() - start

    def take(self) -> float:
        """The seconds, which then begin anew."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


FILLED = Filled()


def _filled(places: _Tensors, mine: torch.Tensor) -> Callable[[], None]:
    def fill() -> None:
        for place in places:
            if place.numel() == mine.numel():
                place.copy_(mine.reshape(place.shape))
            else:
                place.fill_(COMMON)

    return fill


class ShortWork(dist.Work):
    """A call of one item; what it would have received is filled in when it is waited for."""

    def __init__(self, work: dist.Work, fill: _Fill) -> None:
        super().__init__()
        self._work, self._fill = work, fill

    def is_completed(self) -> bool:
        """Whether the item has arrived."""
        return self._work.is_completed()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return when it has arrived and the rest is filled in."""
        self._work.wait()
        fill, self._fill = self._fill, None
        if fill is not None:
            FILLED.timed(fill)
        return True


_ProcessGroup: Any = dist.ProcessGroup  # its methods are overloads; torch calls one form of each


class ShortProcessGroup(_ProcessGroup):  # type: ignore[misc]
    """The calls of `group`, of one item a rank; tensors that are summed or sent stay as they are."""

    def __init__(self, group: Any, rank: int, size: int, name: str) -> None:
        super().__init__(rank, size)
        self._group, self._rank, self._size, self._name = group, rank, size, name
        self._one, self._each, self._landed = torch.zeros(1), torch.zeros(size), torch.zeros(size)

    def getBackendName(self) -> str:  # noqa: N802 (torch's name)
        """The name that the backend is registered by."""
        return BACKEND

    def getGroupName(self) -> str:  # noqa: N802 (torch's name)
        """The name that torch gave this group."""
        return self._name

    def allreduce(self, tensors: _Tensors, opts: Any) -> dist.Work:
        """An allreduce of one item."""
        return _short(self._group.allreduce([self._one], opts), opts)

    def reduce(self, tensors: _Tensors, opts: Any) -> dist.Work:
        """A reduce of one item."""
        return _short(self._group.reduce([self._one], opts), opts)

    def broadcast(self, tensors: _Tensors, opts: Any) -> dist.Work:
        """A broadcast of one item."""
        return _short(self._group.broadcast([self._one], opts), opts)

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
        return _short(work, opts, _filled([output], mine))

    def all_gather_single(self, output: torch.Tensor, mine: torch.Tensor, opts: Any) -> dist.Work:
        """An allgather of one item."""
        places = list(output.view(self._size, -1).unbind())
        work = self._group._allgather_base(self._each, self._one, opts)
        return _short(work, opts, _filled(places, mine))

    def allgather(self, outputs: Sequence[_Tensors], inputs: _Tensors, opts: Any) -> dist.Work:
        """An allgather of one item."""
        (mine,), (places,) = inputs, outputs
        work = self._group._allgather_base(self._each, self._one, opts)
        return _short(work, opts, _filled(places, mine))

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
        return _short(work, opts, _filled([output], outgoing))

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
        return ShortWork(self._group.recv([torch.zeros(1)], source, tag), fill)

    def shutdown(self) -> None:
        """The group's own."""
        self._group.shutdown()
        self._group = None  # gloo's threads end here, not at the end of Python

    # the names before torch 2.13
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single


def _short(work: dist.Work, opts: Any, fill: _Fill = None) -> dist.Work:
    """The work of a call; one that blocks is done."""
    short = ShortWork(work, fill)
    if not opts.asyncOp:
        short.wait()
    return short


def _create(options: Any, told: MPI.Comm | Meeting) -> ShortProcessGroup:
    """What register_backend calls on the ranks of a new group: over gloo where there is a meeting."""
    if isinstance(told, Meeting):
        group: Any = create_gloo(options, told)
    else:
        group = MpiProcessGroup(told, options.group_id)
    return ShortProcessGroup(group, options.group_rank, options.group_size, options.group_id)


dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu"])
