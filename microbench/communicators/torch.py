"""torch.distributed as a communicator: torch_gloo, torch_nccl, and torch_mpi of torch_mpi.py.

The timed methods call torch.distributed's public functions, so its Python layer is part of a time,
as it is part of anybody's. `process_group` is what DistributedDataParallel takes.

How groups are made: torch_groups.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from calib.foundation.errors import InputError
from calib.microbench.communicators import torch_short  # noqa: F401 (registers its backend)
from calib.microbench.communicators.buffers import TensorBuffers
from calib.microbench.communicators.mpi import MpiCommunicator, mpi_control
from calib.microbench.communicators.rendezvous import Meeting, meet
from calib.microbench.communicators.torch_groups import destroy_group, new_group
from calib.microbench.control import Control
from calib.microbench.device import CPU, Device

all_gather_single: Any
reduce_scatter_single: Any
if hasattr(dist, "all_gather_single"):
    all_gather_single, reduce_scatter_single = dist.all_gather_single, dist.reduce_scatter_single
else:  # the names before torch 2.13
    all_gather_single, reduce_scatter_single = (
        dist.all_gather_into_tensor,
        dist.reduce_scatter_tensor,
    )


class TorchCommunicator(TensorBuffers):
    """A process group of one backend on tensors of `device`. Made by `make` and `group`.

    `members` is a control of the group's ranks alone, which this communicator owns.
    """

    queues = False

    def __init__(
        self, library: str, members: MpiCommunicator, meeting: Meeting | None, device: Device = CPU
    ) -> None:
        self.library, self.device = library, device
        self._members, self._meeting = members, meeting
        self.rank, self.size = members.rank, members.size
        self.process_group: Any = new_group(device.backends[library], members, meeting)

    def barrier(self) -> None:
        """torch.distributed.barrier."""
        dist.barrier(self.process_group)

    def meet(self) -> None:
        """Nothing: on a CPU ranks meet at a barrier."""

    def allreduce(self, buffer: Any) -> None:
        """torch.distributed.all_reduce."""
        dist.all_reduce(buffer, group=self.process_group)

    def allgather(self, mine: Any, gathered: Any) -> None:
        """torch.distributed.all_gather_single."""
        all_gather_single(gathered, mine, group=self.process_group)

    def allgatherv(self, mine: Any, gathered: Any, counts: Sequence[int]) -> None:
        """torch.distributed.all_gather into slices of unequal length."""
        places = list(torch.split(gathered, list(counts)))
        dist.all_gather(places, mine, group=self.process_group)

    def reduce_scatter(self, whole: Any, mine: Any) -> None:
        """torch.distributed.reduce_scatter_single."""
        reduce_scatter_single(mine, whole, group=self.process_group)

    def all_to_all(self, outgoing: Any, incoming: Any) -> None:
        """torch.distributed.all_to_all_single."""
        dist.all_to_all_single(incoming, outgoing, group=self.process_group)

    def broadcast(self, buffer: Any, root: int) -> None:
        """torch.distributed.broadcast."""
        dist.broadcast(buffer, group=self.process_group, group_src=root)

    def reduce(self, buffer: Any, root: int) -> None:
        """torch.distributed.reduce."""
        dist.reduce(buffer, group=self.process_group, group_dst=root)

    def send(self, buffer: Any, to: int) -> None:
        """torch.distributed.send."""
        dist.send(buffer, group=self.process_group, group_dst=to)

    def receive(self, buffer: Any, source: int) -> None:
        """torch.distributed.recv."""
        dist.recv(buffer, group=self.process_group, group_src=source)

    def exchange(
        self, outgoing: Sequence[tuple[Any, int]], incoming: Sequence[tuple[Any, int]]
    ) -> None:
        """torch.distributed.batch_isend_irecv, receives first, and wait."""
        group = self.process_group
        messages = [
            dist.P2POp(dist.irecv, buffer, group=group, group_peer=source)
            for buffer, source in incoming
        ]
        messages += [
            dist.P2POp(dist.isend, buffer, group=group, group_peer=to) for buffer, to in outgoing
        ]
        if messages:
            for work in dist.batch_isend_irecv(messages):
                work.wait()

    def group(self, ranks: Sequence[int] | None) -> TorchCommunicator | None:
        """A process group of these ranks; see the module's docstring."""
        part = self._members.part(ranks)
        return None if part is None else type(self)(self.library, part, self._meeting, self.device)

    def close(self) -> None:
        """torch.distributed.destroy_process_group; collective.

        Who holds the process group, as DistributedDataParallel does, is to let go of it before:
        gloo's destructor waits for its threads, and a run where it came after this hung.
        """
        destroy_group(self.process_group)
        self.process_group = None  # gloo's threads end here, not at the end of Python
        self._members.close()


class GlooCommunicator(TorchCommunicator):
    """gloo gathers only equal counts."""

    def allgatherv(self, mine: Any, gathered: Any, counts: Sequence[int]) -> None:
        """Everyone sends its block to all others, at once."""
        places = torch.split(gathered, list(counts))
        places[self.rank].copy_(mine)
        others = [rank for rank in range(self.size) if rank != self.rank]
        self.exchange(
            [(mine, rank) for rank in others if counts[self.rank]],
            [(places[rank], rank) for rank in others if counts[rank]],
        )


class QueuedCommunicator(TorchCommunicator):
    """On a GPU calls are queued behind its current stream."""

    queues = True

    def __init__(
        self, library: str, members: MpiCommunicator, meeting: Meeting | None, device: Device
    ) -> None:
        super().__init__(library, members, meeting, device)
        self._one = self.buffer(1)
        self.fill(self._one, 0.0)

    def meet(self) -> None:
        """An all_reduce of one item."""
        self.allreduce(self._one)

    def barrier(self) -> None:
        """The same, waited for."""
        self.meet()
        self.device.synchronize()


def make(library: str, control: Control, device: Device) -> TorchCommunicator:
    """All ranks of `control`; see make_communicator. Raises MachineError where a part is missing."""
    world = mpi_control(library, control)
    if library not in device.backends:
        raise InputError(f"{library} takes no buffers of {device.kind}")
    meeting = None if library == "torch_mpi" else meet(world)
    kinds: dict[str, type[TorchCommunicator]] = {
        "torch_gloo": GlooCommunicator,
        "torch_nccl": QueuedCommunicator,
    }
    return kinds.get(library, TorchCommunicator)(library, world.whole(), meeting, device)


def short(library: str, control: Control) -> TorchCommunicator:
    """Of all ranks of `control`, by MPI or gloo, with messages of one item: torch_short.py."""
    world = mpi_control(library, control)
    meeting = None if library == "torch_mpi" else meet(world)
    return TorchCommunicator("torch_short", world.whole(), meeting)
