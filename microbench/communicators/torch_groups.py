"""Process groups of torch.distributed, made by their members alone, ranks in any order.

torch names a group by counting, or by its ranks; among ranks that have made unequal numbers of groups
its names differ, and after one has been destroyed they repeat, and then the members do not meet. So
ours meet under a name that the Control tells, and gloo and nccl are registered a second time, with
creators that take the store given.

A process has one default group, which is torch's way to know its rank: over MPI_COMM_WORLD by
"calib_mpi", made with the first group of ours unless there is one, and gone with the last.
"""

from __future__ import annotations

import secrets
from collections.abc import Container
from importlib.metadata import version
from inspect import signature
from typing import Any

import torch.distributed as dist
from mpi4py import MPI

from calib.foundation.errors import MachineError
from calib.microbench.communicators.mpi import MpiCommunicator
from calib.microbench.communicators.rendezvous import Meeting, gloo_interface
from calib.microbench.communicators.torch_mpi import BACKEND as MPI_BACKEND

GLOO_BACKEND, NCCL_BACKEND = "calib_gloo", "calib_nccl"

_dist: Any = dist  # the stores and backends are no declared exports


class _World:
    """The groups of this process."""

    def __init__(self) -> None:
        self.groups: list[Any] = []
        self.default_is_ours = False

    def begin(self) -> None:
        """Make the default group unless there is one; collective only in name: nothing is sent."""
        if not dist.is_initialized():
            world = MPI.COMM_WORLD
            dist.init_process_group(
                MPI_BACKEND,
                store=_dist.HashStore(),
                rank=world.Get_rank(),
                world_size=world.Get_size(),
                pg_options=world,
            )
            self.default_is_ours = True

    def end(self) -> None:
        """Destroy the default group if it is ours and nothing of ours needs it."""
        if self.default_is_ours and not self.groups:
            dist.destroy_process_group()
            self.default_is_ours = False


_WORLD = _World()


def new_group(backend: str, members: MpiCommunicator, meeting: Meeting | None) -> Any:
    """A process group of all `members`, in their order; collective over them alone.

    `meeting` is where gloo and nccl meet; calib_mpi needs none.
    """
    _WORLD.begin()
    options: Any
    if meeting is None:
        options = members.comm.Dup()
    else:
        name = members.broadcast_object(secrets.token_hex(8))
        options = Meeting(_dist.PrefixStore(name, meeting.store), meeting.address)
    ranks = members.allgather_object(MPI.COMM_WORLD.Get_rank())
    group = dist.new_group(
        ranks,
        backend=backend,
        pg_options=options,
        use_local_synchronization=True,
        **as_they_are(ranks, signature(dist.new_group).parameters),
    )
    members.barrier()  # whoever serves the store may close it as soon as it is through
    _WORLD.groups.append(group)
    return group


def as_they_are(ranks: list[int], takes: Container[str]) -> dict[str, Any]:
    """What `new_group` is told, which `takes` these names, so that it keeps the order of the ranks.

    Raises MachineError where it always sorts them (torch 2.11 and older) and they are not sorted.
    """
    if ranks == sorted(ranks):
        return {}
    if "sort_ranks" in takes:
        return {"sort_ranks": False}
    raise MachineError(
        f"torch {version('torch')} makes groups only of ranks in rising order, and these are "
        f"{', '.join(map(str, ranks))}: start the ranks node by node, or install torch 2.13"
    )


def destroy_group(group: Any) -> None:
    """Destroy a group made by new_group."""
    _WORLD.groups.remove(group)
    dist.destroy_process_group(group)
    _WORLD.end()


def create_gloo(options: Any, meeting: Meeting) -> Any:
    """What torch calls for calib_gloo: gloo on the address that the others reach."""
    gloo = _dist.ProcessGroupGloo
    interface = gloo_interface()
    chosen = gloo._Options()
    chosen._timeout = options.timeout
    if interface:
        chosen._devices = [gloo.create_device(interface=interface)]
    else:
        chosen._devices = [gloo.create_device(hostname=meeting.address)]
    return gloo(meeting.store, options.group_rank, options.group_size, chosen)


def _create_nccl(options: Any, meeting: Meeting) -> Any:
    """What torch calls for calib_nccl; NCCL finds its interfaces itself (NCCL_SOCKET_IFNAME)."""
    chosen = _dist.ProcessGroupNCCL.Options()
    chosen._timeout = options.timeout
    return _dist.ProcessGroupNCCL(meeting.store, options.group_rank, options.group_size, chosen)


dist.Backend.register_backend(GLOO_BACKEND, create_gloo, extended_api=True, devices=["cpu"])
dist.Backend.register_backend(NCCL_BACKEND, _create_nccl, extended_api=True, devices=["cuda"])
