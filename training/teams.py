"""Process groups and samples of each rank under a division.

Ranks are numbered in the order of the machine (microbench/groups.py), so that the ranks of a group are
close to one another. Rank e of a hybrid is part e % p2 of group e // p2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from calib.foundation.division import Division
from calib.microbench.communicator import TorchGroup
from calib.microbench.communicators import make_communicator
from calib.microbench.control import Control
from calib.microbench.devices import take_device


class Backend(NamedTuple):
    """A library of ours and the kind of device that it sends from."""

    library: str
    device: str


# by what a user calls a backend of torch.distributed
BACKENDS = {
    "mpi": Backend("torch_mpi", "cpu"),
    "gloo": Backend("torch_gloo", "cpu"),
    "nccl": Backend("torch_nccl", "cuda"),
}


@dataclass(frozen=True)
class RankPart:
    """What a rank has: `replica` says which samples, `part` which part of what its group shares.

    `stage` is a pipeline's (0 otherwise); `cell` is the part's place in the grid of a spatial strategy,
    row by row (the last dimension varies fastest), as microbench's halo exchange counts.
    """

    rank: int
    replica: int
    part: int
    stage: int
    cell: tuple[int, ...]


def place_of(division: Division, rank: int) -> RankPart:
    """The place of rank `rank` of 0..p-1."""
    replica, part = divmod(rank, division.parts)
    if division.strategy == "layerwise":  # training/plans/: all of the batch, by the plan
        return RankPart(rank, 0, 0, 0, ())
    if division.traits.stages:
        return RankPart(rank, 0, 0, rank, ())
    cell = []
    for n in reversed(division.cells):
        part, index = divmod(part, n)
        cell.append(index)
    return RankPart(rank, replica, rank % division.parts, 0, tuple(reversed(cell)))


def group_of(division: Division, rank: int) -> list[int]:
    """The ranks that share layers with this one: those of its replica."""
    start = rank - rank % division.parts
    return list(range(start, start + division.parts))


def across_of(division: Division, rank: int) -> list[int]:
    """The ranks with the same part of other samples: one of each replica."""
    return list(range(rank % division.parts, division.p, division.parts))


@dataclass
class Teams:
    """The communicators of one rank. `group` and `across` have the ranks of group_of and across_of.

    Each is None where this rank would be alone in it; `leaders` also where this rank is not the first
    of its group.
    """

    place: RankPart
    world: TorchGroup
    group: TorchGroup | None
    across: TorchGroup | None
    leaders: TorchGroup | None

    def close(self) -> None:
        """Free them all, the world last; collective."""
        for team in (self.leaders, self.across, self.group, self.world):
            if team is not None:
                team.close()


def make_teams(
    control: Control, division: Division, backend: str, order: Sequence[int] | None = None
) -> Teams:
    """The communicators of a division; collective over all ranks of `control`.

    `order` has the ranks in the order of the machine, by default their own. The number of ranks must be
    p. Raises MachineError where the backend's library or its device is missing.
    """
    library, kind = BACKENDS[backend]
    ranks = list(range(control.size)) if order is None else list(order)
    members = control.part(ranks)
    assert members is not None  # every rank is in it
    # every library of BACKENDS is one of torch.distributed
    world = make_communicator(library, members, take_device(kind, members))
    return teams_of(cast(TorchGroup, world), division)


def teams_of(world: TorchGroup, division: Division) -> Teams:
    """The communicators of a division whose ranks are those of `world`; collective over them."""
    place = place_of(division, world.rank)
    of_group, of_across = group_of(division, world.rank), across_of(division, world.rank)
    whole = division.parts * division.replicas == division.p  # not a pipeline
    group = world.group(of_group) if whole and len(of_group) > 1 else None
    across = world.group(of_across) if whole and len(of_across) > 1 else None
    leaders = None
    if group is not None and across is not None:
        leaders = world.group(of_across if place.part == 0 else None)
    return Teams(place, world, group, across, leaders)
