"""The Cluster record (cluster.json): which machine was measured."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from calib.foundation.files import read_record, write_json
from calib.foundation.names import ClusterName
from calib.foundation.quantities import (
    Bandwidth,
    CountOrNone,
    FormatVersion,
    KnownRanks,
    Nbytes,
    Ranks,
    WholeBytes,
)
from calib.foundation.words import counted, several
from calib.microbench.records.hardware import NetworkCard, NumaNode, PciLink

CLUSTER_FORMAT = 1
# fields of a host that may differ between machines whose numbers are comparable: names, what comes and
# goes (interfaces, the speed of a link), and where devices are
NOT_COMPARED: dict[str, Any] = {
    "name": True,
    "network_interfaces": True,
    "rack": True,
    "sockets": True,
    "numa": True,
    "network_cards": True,
    "devices": {
        "__all__": {"uuid", "pci", "nearest_cards", "nvlinks", "nvswitch", "clock_hz", "simd"}
    },
}
UNNAMED = ("", "unknown")  # devices that a log does not name
DECLARED = ("bandwidth", "links", "tapering")  # of a level: what it is said to have, not what it is
Clock = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]  # Hz; no transistor does more
Tapering = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


class Device(BaseModel):
    """One processing element that layers run on: a GPU, or the CPU cores of a host."""

    model_config = ConfigDict(extra="forbid")

    kind: str = Field(description="cpu or cuda")
    name: str = Field(description="as the system names it")
    count: Ranks = Field(description="cores of a CPU, 1 of a GPU")
    memory_bytes: WholeBytes = Field(description="memory, B")
    driver: str = Field(default="", description='version of its driver; "" none or unknown')
    uuid: str = Field(default="", description='of a GPU, as NVML gives it; "" none or unknown')
    pci: PciLink | None = Field(default=None, description="of a GPU; null unknown")
    nearest_cards: list[str] = Field(
        default_factory=list,
        description="of a GPU: the network cards with the fewest bridges between; as near ones together",
    )
    nvlinks: dict[str, CountOrNone] = Field(
        default_factory=dict, description="of a GPU: version of NVLink -> number of active links"
    )
    nvswitch: bool | None = Field(
        default=None, description="of a GPU: its NVLinks lead to a switch; null none or unknown"
    )
    clock_hz: Clock | None = Field(
        default=None,
        description="of a CPU: its highest clock, or what a virtual machine says; null unknown",
    )
    simd: str = Field(default="", description='of a CPU: avx512 or avx2; "" other or unknown')


class Host(BaseModel):
    """One machine and the versions on it."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(description="host name")
    kernel: str = Field(description="version of the operating system's kernel")
    devices: list[Device] = Field(description="what layers run on")
    network_interfaces: dict[str, Nbytes | None] = Field(
        default_factory=dict, description="name -> bytes per second that the system states, or null"
    )
    versions: dict[str, str] = Field(default_factory=dict, description="library -> version")
    rack: str = Field(
        default="", description='hosts of one rack share it; may be filled in by hand, "" unknown'
    )
    numa_nodes: Ranks = Field(default=1, description="number of NUMA nodes")
    sockets: KnownRanks = Field(default=0, description="of processors; 0 unknown")
    numa: list[NumaNode] = Field(default_factory=list, description="the NUMA nodes; none: unknown")
    network_cards: list[NetworkCard] = Field(
        default_factory=list, description="those of hardware, by name"
    )

    @property
    def gpus(self) -> int:
        """How many GPUs it has."""
        return sum(device.count for device in self.devices if device.kind == "cuda")

    @property
    def hardware_words(self) -> str:
        """`2 sockets, 4 NUMA nodes, 2 network cards: mlx5_0 of 25 GB/s, mlx5_1 of 25 GB/s`."""
        sockets = [counted(self.sockets, "socket")] if self.sockets else []
        cards = counted(len(self.network_cards), "network card")
        named = several([card.words for card in self.network_cards], most=8)
        return ", ".join([*sockets, counted(self.numa_nodes, "NUMA node"), cards]) + (
            f": {named}" if named else ""
        )


def links_words(count: int | None, bandwidth: float | None) -> str:
    """`4 links of 25 GB/s`, from B/s of one link; without what is not known."""
    links = counted(count, "link") if count else "links"
    return f"{links} of {bandwidth / 1e9:.3g} GB/s" if bandwidth else links


class Level(BaseModel):
    """One level of the machine: the ranks inside a node, the nodes of a rack or of the system."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(description="node, rack or system")
    members: Ranks = Field(description="ranks of a node; nodes of a rack or system")
    link: str = Field(description="what connects the members: shared memory, an interface's name")
    bandwidth: Bandwidth | None = Field(
        default=None,
        description="of one link, B/s each way; may be filled in by hand, null unknown",
    )
    links: Ranks | None = Field(
        default=None,
        description="that each member has to the others (rails); may be filled in by hand, null unknown",
    )
    tapering: Tapering | None = Field(
        default=None,
        description="of the outermost level: of what the nodes of a rack (without racks: all nodes "
        "together) can send at once, the share that the network above them carries, 1 full bisection; "
        "may be filled in by hand, null unknown",
    )

    @property
    def declared(self) -> dict[str, Any]:
        """What is known of its links, by field."""
        found = {name: getattr(self, name) for name in DECLARED}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def links_words(self) -> str:
        """The same for people: `4 links of 25 GB/s, tapering 0.5`; "" where nothing is known."""
        known = self.links or self.bandwidth
        parts = [links_words(self.links, self.bandwidth)] if known else []
        parts += [f"tapering {self.tapering:.3g}"] if self.tapering else []
        return ", ".join(parts)


def levels_of(hosts: Sequence[Host], members: int) -> list[Level]:
    """The levels of hosts with `members` ranks each: node and, of several hosts, rack and system.

    There is a rack level where a rack holds two hosts or more (its members: those of the largest
    rack), and a system level where two hosts are not known to be in the same rack.
    """
    levels = [Level(name="node", members=members, link="shared memory")]
    link = ", ".join(sorted(hosts[0].network_interfaces)) or "unknown"
    racks = [host.rack for host in hosts]
    largest = max(racks.count(rack) if rack else 1 for rack in racks)
    if largest > 1:
        levels.append(Level(name="rack", members=largest, link=link))
    if largest < len(hosts):
        levels.append(Level(name="system", members=len(hosts), link=link))
    return levels


class Cluster(BaseModel):
    """Hosts, devices, levels and library versions of one machine."""

    model_config = ConfigDict(extra="forbid")

    format_version: FormatVersion = CLUSTER_FORMAT
    name: ClusterName
    hosts: list[Host] = Field(min_length=1, description="all hosts that ranks ran on")
    levels: list[Level] = Field(
        min_length=1,
        description="from the inside out: node, then rack and system where there are several hosts",
    )

    @model_validator(mode="after")
    def _has_a_node(self) -> Cluster:
        if not any(level.name == "node" for level in self.levels):
            raise ValueError("levels holds no level named node")
        return self

    @model_validator(mode="after")
    def _has_its_racks(self) -> Cluster:
        """Racks that were filled in by hand make a level, as those do that Slurm names."""
        implied = levels_of(self.hosts, self.ranks_per_node)
        if "rack" in {level.name for level in implied} - {level.name for level in self.levels}:
            self.levels = _declared_as(implied, self.levels)
        return self

    @property
    def fingerprint(self) -> str:
        """A hash of what makes numbers comparable: devices, levels, kernel and library versions.

        Host names and UUIDs of GPUs are left out: two equal nodes of a partition have the same
        fingerprint. So are network interfaces (a container's virtual one comes and goes, and is no
        other machine), where devices are and how fast their links run (which may change from day to
        day), what was declared of links, and the names of racks; how many hosts share one, the levels
        say.
        """
        content = {
            "levels": [level.model_dump(exclude={*DECLARED}) for level in self.levels],
            "hosts": sorted(json.dumps(_compared(host), sort_keys=True) for host in self.hosts),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def machine(self) -> str:
        """A hash of the hardware alone: the same after a new driver, kernel or library.

        Numbers of one machine with two sets of versions are not merged (`fingerprint`), but they are
        one history. Memory counts as it is built in: kernels keep more or less of it for themselves.
        """
        hosts = sorted(
            json.dumps(
                [
                    host.numa_nodes,
                    [[d.kind, d.name, d.count, built_in(d.memory_bytes)] for d in host.devices],
                ]
            )
            for host in self.hosts
        )
        content = {"levels": [[x.name, x.members] for x in self.levels], "hosts": hosts}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def history(self, device_kind: str) -> str:
        """The name of its history: `machine`, and of trainings on its GPUs another."""
        if device_kind == "cpu":
            return self.machine
        return hashlib.sha256(f"{self.machine} {device_kind}".encode()).hexdigest()[:16]

    @property
    def versions(self) -> dict[str, str]:
        """Versions by name: kernel, drivers, libraries.

        Where hosts differ, each version says how many hosts have it.
        """
        found: dict[str, Counter[str]] = {}
        for host in self.hosts:
            drivers = {f"driver of {d.name}": d.driver for d in host.devices if d.driver}
            for name, version in {"kernel": host.kernel, **drivers, **host.versions}.items():
                found.setdefault(name, Counter())[version] += 1
        return {
            name: next(iter(of))
            if len(of) == 1
            else ", ".join(f"{version} ({n} hosts)" for version, n in sorted(of.items()))
            for name, of in sorted(found.items())
        }

    def strangers(self, hosts: Sequence[Host]) -> list[str]:
        """The names of hosts that equal none of this cluster's."""
        known = [_compared(host) for host in self.hosts]
        return [host.name for host in hosts if _compared(host) not in known]

    @property
    def links_per_node(self) -> int | None:
        """Links of a node to others, as a level says; None where none does."""
        return next((x.links for x in reversed(self.levels) if x.name != "node" and x.links), None)

    @property
    def nodes(self) -> int:
        """How many nodes it has, also where not every host is known."""
        return max(len(self.hosts), *(x.members for x in self.levels if x.name != "node"), 1)

    def has_all_of(self, other: Cluster) -> bool:
        """Whether the other is this machine, or fewer nodes of it: equal hosts, as many ranks each.

        Hosts whose devices nobody named (of logs) are equal to nobody's, but in a cluster of one shape.
        """
        if self.fingerprint == other.fingerprint:
            return True
        named = all(device.name not in UNNAMED for x in other.hosts for device in x.devices)
        fewer = other.nodes <= self.nodes and other.ranks_per_node == self.ranks_per_node
        return named and fewer and not self.strangers(other.hosts)

    def differs_in(self, other: Cluster) -> str:
        """The first difference between the two, in words."""
        ours, theirs = (
            {
                "ranks of a node": each.ranks_per_node,
                "devices": sorted({device.name for x in each.hosts for device in x.devices}),
                "devices of a node": sorted({sum(d.count for d in x.devices) for x in each.hosts}),
                **each.versions,
            }
            for each in (self, other)
        )
        names = [name for name in (ours | theirs) if ours.get(name) != theirs.get(name)]
        if not names:
            return f"{len(self.hosts)} and {len(other.hosts)} hosts, which are not all alike"
        one, two = (_listed(each.get(names[0], "unknown")) for each in (ours, theirs))
        return f"{names[0]}: {one} and {two}"

    @property
    def racks(self) -> dict[str, str]:
        """Host -> rack, of the hosts whose rack is known."""
        return {host.name: host.rack for host in self.hosts if host.rack}

    def in_racks(self, racks: Mapping[str, str]) -> Cluster:
        """The same with host -> rack filled in where it is not known, and the level that follows."""
        content = self.model_dump()
        for host in content["hosts"]:
            host["rack"] = host["rack"] or racks.get(host["name"], "")
        return Cluster.model_validate(content)

    def declared_as(self, before: Cluster) -> Cluster:
        """The same with what an earlier file of these hosts says of racks and links."""
        if {host.name for host in self.hosts}.isdisjoint(host.name for host in before.hosts):
            return self
        found = self.in_racks(before.racks)
        levels = _declared_as(found.levels, before.levels)
        names = {level.name for level in levels}
        by_hand = [level for level in before.levels if level.name == "rack" not in names]
        if by_hand and found.nodes == before.nodes:
            levels[1:1] = by_hand
        return found.model_copy(update={"levels": levels})

    @property
    def ranks_per_node(self) -> int:
        """Ranks of a node."""
        return next(level.members for level in self.levels if level.name == "node")

    def write(self, path: Path) -> None:
        """Write cluster.json whole or not at all."""
        write_json(path, self.model_dump())

    @classmethod
    def read(cls, path: Path) -> Cluster:
        """Read cluster.json. Raises FileError."""
        return read_record(cls, path, "cluster file", CLUSTER_FORMAT)


def _declared_as(levels: Sequence[Level], before: Sequence[Level]) -> list[Level]:
    """The levels, with what those before say of their links; new racks have those of the system."""
    known = {level.name: level.declared for level in before}
    outer = {k: v for k, v in known.get("system", {}).items() if k != "tapering"}
    return [
        level.model_copy(
            update=known.get(level.name, outer if level.name == "rack" else {}) | level.declared
        )
        for level in levels
    ]


def built_in(memory_bytes: int) -> int:
    """Memory rounded up to a sixteenth of the power of two above it: 23.5 GiB are of 24."""
    step = max(1, (1 << max(memory_bytes - 1, 1).bit_length()) // 16)
    return -(-memory_bytes // step) * step


def _listed(value: object) -> str:
    """A value, or those of a list, in words."""
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _compared(host: Host) -> dict[str, Any]:
    """What is compared of a host."""
    return host.model_dump(exclude=NOT_COMPARED)
