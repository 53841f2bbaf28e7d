"""Where ranks run: hosts, cores, environment, oversubscription; for measuring and training."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from calib.foundation.environment import SEVERAL, Environment
from calib.microbench.control import Control
from calib.microbench.machine.environment import environment_here, threads_of
from calib.microbench.machine.hardware import socket_of

if TYPE_CHECKING:
    from calib.microbench.records.manifest import GpuIdentity


def usable_cores() -> list[int]:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def physical_core(core: int) -> int:
    """The lowest hardware thread of the physical core that this one is a thread of, or itself."""
    path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    try:
        return int(re.split("[,-]", path.read_text().strip())[0])
    except (OSError, ValueError):
        return core


def distinct_cores(cores: list[int]) -> list[int]:
    """One hardware thread of each physical core among `cores` (all of them where unknown)."""
    first: dict[int, int] = {}
    for core in cores:
        first.setdefault(physical_core(core), core)
    return list(first.values())


def numa_node(core: int) -> int | None:
    """The NUMA node of a core; None where the system does not say."""
    nodes = Path(f"/sys/devices/system/cpu/cpu{core}").glob("node[0-9]*")
    return next((int(path.name.removeprefix("node")) for path in nodes), None)


def machine_id() -> str:
    """The same on all host names of one machine (containers, network namespaces)."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def clock_id() -> str:
    """The same for all processes that read one clock: of a machine, and of a time namespace there."""
    try:
        return f"{machine_id()} {os.readlink('/proc/self/ns/time')}"
    except OSError:
        return machine_id()


def rack_of_this_host() -> str:
    """The leaf switch that Slurm's topology plugin names (switch.switch.node), or nothing.

    The variable is of the node that set it: ranks that mpiexec started on others inherit it.
    """
    address = os.environ.get("SLURM_TOPOLOGY_ADDR", "")
    pattern = os.environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "")
    switches, _, node = address.rpartition(".")
    here = node.split(".")[0] == socket.gethostname().split(".")[0]
    return switches if here and "switch" in pattern.split(".") else ""


@dataclass(frozen=True)
class Placement:
    """Where every rank of a launch runs.

    `racks` hold "", `sockets` and `numa` None where nothing is known or cores are of several, `gpus`
    None for ranks without one. `local_ranks` count the ranks of a machine, whatever host names they
    have: ranks take its GPUs in that order.
    """

    hosts: list[str]
    cores: list[list[int]]
    ranks_per_node: int
    oversubscribed: bool
    environment: Environment = field(default_factory=Environment)
    racks: list[str] = field(default_factory=list)
    sockets: list[int | None] = field(default_factory=list)
    numa: list[int | None] = field(default_factory=list)
    gpus: list[GpuIdentity | None] = field(default_factory=list)
    local_ranks: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        unknown = {"racks": "", "sockets": None, "numa": None, "gpus": None}
        for name, value in unknown.items():
            if not getattr(self, name):
                object.__setattr__(self, name, [value] * len(self.hosts))

    @property
    def ranks_share_gpus(self) -> bool:
        """Whether two ranks work on one GPU."""
        used = [gpu.uuid for gpu in self.gpus if gpu is not None]
        return len(set(used)) < len(used)

    @property
    def level(self) -> str:
        """The slowest level that all ranks together cross."""
        if len(set(self.hosts)) == 1:
            return "node"
        return "rack" if len(set(self.racks)) == 1 and self.racks[0] else "system"


def place(
    communicator: Control, racks: Mapping[str, str] | None = None, gpu: GpuIdentity | None = None
) -> Placement:
    """Say where all ranks are, and what they run in. Ranks stay where their launcher put them.

    More ranks than physical cores of a machine is oversubscription, also where the ranks have several
    host names (network namespaces) or each a hardware thread: they share cores and every row says so.

    Parameters
    ----------
    communicator
        Connects the ranks; collective.
    racks
        Host -> rack where Slurm does not say.
    gpu
        The GPU of this rank.
    """
    host = socket.gethostname()
    cores = distinct_cores(usable_cores())
    rack = (racks or {}).get(host, "") or rack_of_this_host()
    physical = [physical_core(core) for core in cores]
    others = communicator.allgather_object([host, machine_id(), rack, physical])
    local = [rank for rank, other in enumerate(others) if other[1] == others[communicator.rank][1]]
    allowed = [others[rank][3] for rank in local]
    sharers = sum(not set(physical).isdisjoint(each) for each in allowed)
    mine = environment_here(len(local), threads_of(len(cores), sharers), len(cores))
    about = [
        cores,
        _only(numa_node(core) for core in cores),
        gpu and gpu.model_dump(),
        local.index(communicator.rank),
        bool(squeezed(allowed)),
        mine.model_dump(),
        _only(socket_of(core) for core in cores),
    ]
    everywhere = communicator.allgather_object(about)
    names = [other[0] for other in others]
    return Placement(
        hosts=names,
        cores=[each[0] for each in everywhere],
        ranks_per_node=max(names.count(name) for name in set(names)),
        oversubscribed=any(each[4] for each in everywhere),
        environment=_of_all([Environment.model_validate(each[5]) for each in everywhere]),
        racks=[other[2] for other in others],
        sockets=[each[6] for each in everywhere],
        numa=[each[1] for each in everywhere],
        gpus=[each[2] and identity_of(each[2]) for each in everywhere],
        local_ranks=[each[3] for each in everywhere],
    )


def _only(found: Iterable[int | None]) -> int | None:
    """What all of them are; None where they differ."""
    different = set(found)
    return different.pop() if len(different) == 1 else None


def _of_all(found: Sequence[Environment]) -> Environment:
    """The environment of a launch; of what differs from rank to rank all values."""
    values: dict[str, dict[str, None]] = {}
    for each in found:
        for name, value in each.variables.items():
            values.setdefault(name, {})[value] = None
    return Environment(
        ranks=max(each.ranks for each in found),
        threads=min(each.threads for each in found),
        cores=min(each.cores for each in found),
        allocator=SEVERAL.join(dict.fromkeys(each.allocator for each in found)),
        variables={name: SEVERAL.join(of) for name, of in sorted(values.items())},
        on_purpose=found[0].on_purpose,
    )


def identity_of(content: Mapping[str, str]) -> GpuIdentity:
    """The record of a GPU from its JSON."""
    # late: the driver, too, looks up cores here, and needs no records for it
    from calib.microbench.records.manifest import GpuIdentity

    return GpuIdentity.model_validate(content)


def squeezed(allowed: list[list[int]]) -> frozenset[int]:
    """The fewest physical cores that must do for more ranks than there are of them; none: empty.

    They are all of a machine, or those that ranks are bound to. `allowed` are the physical cores that
    each rank of the machine may run on.
    """
    sets = [frozenset(cores) for cores in allowed]
    everything = frozenset[int]().union(*sets)
    few = [of for of in {*sets, everything} if sum(inner <= of for inner in sets) > len(of)]
    return min(few, key=lambda of: (len(of), sorted(of)), default=frozenset())
