"""What one topology file tells, whatever its format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from calib.foundation.words import counted
from calib.microbench.records.cluster import links_words

# a link slower than this share of the fastest is for management, and carries no collective
SLOW_LINK = 0.5


@dataclass(frozen=True)
class NodeLinks:
    """Links of a node to others: how many, and B/s of one, each way; None unknown."""

    count: int
    bandwidth: float | None

    @classmethod
    def of(cls, speeds: Sequence[float | None]) -> NodeLinks:
        """Those of cards of these speeds [n], B/s, without much slower ones."""
        known = [speed for speed in speeds if speed]
        if len(known) < len(speeds):
            return cls(len(speeds), max(known, default=None))
        fast = [speed for speed in known if speed >= SLOW_LINK * max(known)]
        return cls(len(fast), fmean(fast) if fast else None)

    @property
    def words(self) -> str:
        """`4 links of 25 GB/s`."""
        return links_words(self.count, self.bandwidth)


@dataclass(frozen=True)
class FoundHost:
    """A host in a topology file; `rack` "" where the file tells of none."""

    name: str
    speeds: tuple[float | None, ...] = ()
    gpus: int = 0
    gpu_links: int = 0
    rack: str = ""

    @property
    def links(self) -> NodeLinks:
        """Its links to other hosts."""
        return NodeLinks.of(self.speeds)


@dataclass(frozen=True)
class FoundTopology:
    """The hosts of a file, and B/s of each link above each rack.

    `of_one_host`: the file is of a single host, whose name "" is not in it, and stands for all like it.
    """

    format: str
    hosts: tuple[FoundHost, ...]
    uplinks: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    of_one_host: bool = False
    notes: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """What was read, in one line."""
        parts = [self.format]
        if not self.of_one_host:
            racks = {host.rack for host in self.hosts} - {""}
            parts += [counted(len(self.hosts), "host")]
            parts += [counted(len(racks), "rack")] if racks else []
        if self.hosts:
            usual = usual_host(self.hosts)
            parts += [counted(usual.gpus, "GPU")] if usual.gpus else []
            parts += [f"{usual.gpu_links} NVLinks a GPU"] if usual.gpu_links else []
            parts += [f"{usual.links.words} a host" if usual.speeds else "no link between hosts"]
        return ", ".join(parts)


def usual_host(hosts: Sequence[FoundHost]) -> FoundHost:
    """A host whose links most of them have; of as many, the one with more."""
    counts = Counter(host.links for host in hosts)
    return max(hosts, key=lambda host: (counts[host.links], host.links.count))
