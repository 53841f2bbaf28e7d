"""MPI under torch.distributed with messages of one item: "calib_short".

A rank makes the calls of training at the same places and waits for the others as there, but one item
travels instead of the tensor. So the calls cost their latency in place and the lateness of the others;
bytes are measured separately. What a call would have received is filled in from the rank's own memory,
so that the next layer finds a warm tensor of ordinary numbers; `FILLED` counts those seconds, to be
left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI

from calib.microbench.communicators.torch_mpi import MpiProcessGroup, MpiWork, run_call

BACKEND = "calib_short"
COMMON = 0.5  # what stands where nothing of the rank's own fits

_Tensors = Sequence[torch.Tensor]


class Filled:
    """Seconds of filling in since the last `take`."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def timed(self, fill: Callable[[], None]) -> Callable[[], None]:
        """`fill`, timed."""

        def run() -> None:
            start = perf_counter()
            with torch.no_grad():
                fill()
            self._seconds += perf_counter() - start

        return run

    def take(self) -> float:
        """The seconds, which then begin anew."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


FILLED = Filled()


def _fill(places: _Tensors, mine: torch.Tensor) -> Callable[[], None]:
    def fill() -> None:
        for place in places:
            if place.numel() == mine.numel():
                place.copy_(mine.reshape(place.shape))
            else:
                place.fill_(COMMON)

    return FILLED.timed(fill)


class ShortProcessGroup(MpiProcessGroup):
    """As MpiProcessGroup, of one item a rank; tensors that are summed or sent stay as they are."""

    backend_name = BACKEND

    def __init__(self, comm: MPI.Comm, name: str) -> None:
        super().__init__(comm, name)
        size: int = comm.Get_size()
        self._one, self._each = np.zeros(1, np.float32), np.zeros(size, np.float32)
        self._landed = np.zeros(size, np.float32)

    def allreduce(self, tensors: _Tensors, opts: Any) -> dist.Work:
        """MPI_Allreduce of one item."""
        return run_call(
            self._allreduce, (MPI.IN_PLACE, self._one, MPI.SUM), opts, list(tensors), None, None
        )

    def reduce(self, tensors: _Tensors, opts: Any) -> dist.Work:
        """MPI_Reduce of one item."""
        root = opts.rootRank
        sent: Any = MPI.IN_PLACE if root == self._rank else self._one
        landed = self._one if root == self._rank else None
        return run_call(
            self._reduce, (sent, landed, MPI.SUM, root), opts, list(tensors), None, None
        )

    def broadcast(self, tensors: _Tensors, opts: Any) -> dist.Work:
        """MPI_Bcast of one item."""
        return run_call(
            self._broadcast, (self._one, opts.rootRank), opts, list(tensors), None, None
        )

    def reduce_scatter_single(
        self, output: torch.Tensor, whole: torch.Tensor, opts: Any
    ) -> dist.Work:
        """MPI_Reduce_scatter_block of one item for each rank."""
        mine = whole.view(self._size, -1)[self._rank]
        call = (self._each, self._one, MPI.SUM)
        return run_call(
            self._reduce_scatter, call, opts, [output], _fill([output], mine), (output, whole)
        )

    def all_gather_single(self, output: torch.Tensor, mine: torch.Tensor, opts: Any) -> dist.Work:
        """MPI_Allgather of one item."""
        places = list(output.view(self._size, -1).unbind())
        call = (self._one, self._each)
        return run_call(self._allgather, call, opts, [output], _fill(places, mine), (output, mine))

    def allgather(self, outputs: Sequence[_Tensors], inputs: _Tensors, opts: Any) -> dist.Work:
        """MPI_Allgather of one item."""
        (mine,), (places,) = inputs, outputs
        call = (self._one, self._each)
        return run_call(
            self._allgather, call, opts, list(places), _fill(places, mine), (places, mine)
        )

    def all_to_all_single(
        self,
        output: torch.Tensor,
        outgoing: torch.Tensor,
        output_split_sizes: Sequence[int] | None,
        input_split_sizes: Sequence[int] | None,
        opts: Any,
    ) -> dist.Work:
        """MPI_Alltoall of one item for each rank; what goes out is filled in as what came."""
        call = (self._each, self._landed)
        fill = _fill([output], outgoing)
        return run_call(self._alltoall, call, opts, [output], fill, (output, outgoing))

    def send(self, tensors: _Tensors, destination: int, tag: int = 0) -> dist.Work:
        """MPI_Isend of one item; whole of what are no numbers but words (torch's pickles)."""
        if not tensors[0].is_floating_point():
            return super().send(tensors, destination, tag)
        request = self._comm.Isend(self._one, destination, tag)
        return MpiWork(request, list(tensors), None, self._one)

    def recv(self, tensors: _Tensors, source: int, tag: int = 0) -> dist.Work:
        """MPI_Irecv of one item; whole as in send."""
        if not tensors[0].is_floating_point():
            return super().recv(tensors, source, tag)
        landed = np.zeros(1, np.float32)
        request = self._comm.Irecv(landed, source, tag)
        return MpiWork(request, list(tensors), _fill(tensors, torch.empty(0)), landed)

    # the names before torch 2.13
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single


def _create(options: Any, comm: MPI.Comm) -> ShortProcessGroup:
    """What register_backend calls on the ranks of a new group."""
    return ShortProcessGroup(comm, options.group_id)


dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu"])
