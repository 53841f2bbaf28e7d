"""Where ranks run: hosts, cores, allocator, oversubscription. The same for measuring and training."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from microbench.allocator import hold_still
from microbench.communicators import Communicator

RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MPI_RANKID")


def launched() -> bool:
    """Whether a launcher (mpiexec, srun --mpi=...) started this process as a rank.

    SLURM_PROCID is no sign of it: it also stands in the environment of sbatch scripts and shells.
    """
    return any(name in os.environ for name in RANK_VARIABLES)


def usable_cores() -> list[int]:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def distinct_cores(cores: list[int]) -> list[int]:
    """One hardware thread of each physical core among `cores` (all of them where unknown)."""
    seen: set[str] = set()
    chosen = []
    for core in cores:
        path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        try:
            siblings = path.read_text().strip()
        except OSError:
            siblings = str(core)
        if siblings not in seen:
            seen.add(siblings)
            chosen.append(core)
    return chosen


@dataclass(frozen=True)
class Placement:
    """Where every rank of a launch runs."""

    hosts: list[str]
    cores: list[list[int]]
    ranks_per_node: int
    oversubscribed: bool
    allocator: str = "unknown"

    @property
    def level(self) -> str:
        """The slowest level that all ranks together cross."""
        return "node" if len(set(self.hosts)) == 1 else "system"

    def pair_level(self, first: int, second: int) -> str:
        """The level between two ranks."""
        return "node" if self.hosts[first] == self.hosts[second] else "system"


def place(communicator: Communicator, threads: int = 1) -> Placement:
    """Pin this rank to `threads` cores of its host, hold its allocator still, say where all are.

    A rank that a launcher has bound to its own cores stays there. More ranks than cores on a host
    is oversubscription: the ranks share cores and every row says so.
    """
    host = socket.gethostname()
    cores = distinct_cores(usable_cores())
    others = communicator.gather_objects([host, cores])
    local = [rank for rank, (name, _) in enumerate(others) if name == host]
    mine = local.index(communicator.rank)
    union = sorted({core for rank in local for core in others[rank][1]})
    shared = all(others[rank][1] == cores for rank in local)
    if shared and hasattr(os, "sched_setaffinity"):
        start = mine * threads
        chosen = [cores[(start + i) % len(cores)] for i in range(min(threads, len(cores)))]
        os.sched_setaffinity(0, chosen)
        cores = chosen
    crowded = communicator.gather_objects(len(local) * threads > len(union))
    everywhere = communicator.gather_objects(cores)
    names = [name for name, _ in others]
    return Placement(
        hosts=names,
        cores=everywhere,
        ranks_per_node=max(names.count(name) for name in set(names)),
        oversubscribed=any(crowded),
        allocator=hold_still(),
    )
