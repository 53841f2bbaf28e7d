"""What topology files tell, filled into the Cluster record."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from calib.microbench.records.cluster import Cluster, Level
from calib.microbench.topology.found import FoundHost, FoundTopology, usual_host


def filled(cluster: Cluster, found: Sequence[FoundTopology]) -> tuple[Cluster, list[str]]:
    """The cluster with racks and links from files, and a line on each file that could not be used.

    Hosts are those of the same name, before its first dot. A file of a network that names none of them
    is taken as its design: links of a host, nodes of a rack, tapering. What several files tell of links
    is the fewest and slowest; what none tells stays as it was.
    """
    lines, outer, inner = list[str](), dict[str, Any](), dict[str, Any]()
    gpus = min(host.gpus for host in cluster.hosts)
    for topology in found:
        mine, line = _mine(cluster, topology)
        lines += [line] if line else []
        if not mine:
            continue
        usual = usual_host(mine)
        if usual.gpu_links and cluster.ranks_per_node <= gpus:
            inner["links"] = usual.gpu_links
        if usual.speeds:
            links = usual.links
            outer["links"] = min(links.count, outer.get("links", links.count))
            if links.bandwidth:
                outer["bandwidth"] = min(links.bandwidth, outer.get("bandwidth", math.inf))
        cluster, tapering, line = _in_racks(cluster, topology, mine)
        lines += [line] if line else []
        if tapering is not None:
            outer["tapering"] = tapering
    if outer and len(cluster.levels) == 1:
        lines.append("links between hosts were not kept: the cluster is of one host")
    return _declared(cluster, inner, outer), lines


def short(name: str) -> str:
    """A host's name without its domain."""
    return name.partition(".")[0].lower()


def _mine(cluster: Cluster, topology: FoundTopology) -> tuple[list[FoundHost], str]:
    """The hosts of a file that count, and what is to be said of the others."""
    names = {short(host.name) for host in cluster.hosts}
    if topology.of_one_host:
        (host,) = topology.hosts
        if not host.name or short(host.name) in names:
            return [host], ""
        return [], f"{topology.format} of {host.name}, which is no host of the cluster: not used"
    mine = [host for host in topology.hosts if short(host.name) in names]
    if len(mine) == len(names):
        return mine, ""
    if mine:
        return mine, f"{topology.format} names {len(mine)} of {len(names)} hosts of the cluster"
    about = f"{topology.format} names no host of the cluster: taken as the design of its network"
    return list(topology.hosts), about


def _in_racks(
    cluster: Cluster, topology: FoundTopology, mine: Sequence[FoundHost]
) -> tuple[Cluster, float | None, str]:
    """The cluster in the racks of a file, the tapering above them, and what is unknown of it."""
    racks = defaultdict[str, list[FoundHost]](list)
    for host in mine:
        racks[host.rack].append(host)
    racks.pop("", None)
    if len(racks) < 2:
        return cluster, None, ""
    largest = max(map(len, racks.values()))
    shares = [_share(topology, rack, of) for rack, of in racks.items() if len(of) == largest]
    known = [share for share in shares if share is not None]
    line = "" if known else f"{topology.format} does not tell how fast the links above a rack are"
    rack_of = {short(host.name): host.rack for host in mine}
    named = {host.name: rack_of.get(short(host.name), host.rack) for host in cluster.hosts}
    if any(short(name) in rack_of for name in named):
        return _renamed(cluster, named), max(known, default=None), line
    return _of_racks(cluster, largest), max(known, default=None), line


def _share(topology: FoundTopology, rack: str, hosts: Sequence[FoundHost]) -> float | None:
    """What the links above a rack carry of what its hosts can send, at most 1; None unknown."""
    up = topology.uplinks.get(rack, ())
    down = [speed for host in hosts for speed in host.speeds]
    if not up or None in up or None in down:
        return None
    return min(math.fsum(filter(None, up)) / math.fsum(filter(None, down)), 1.0)


def _renamed(cluster: Cluster, racks: Mapping[str, str]) -> Cluster:
    """The cluster with host -> rack, and the level that follows."""
    content = cluster.model_dump()
    for host in content["hosts"]:
        host["rack"] = racks[host["name"]]
    content["levels"] = [level for level in content["levels"] if level["name"] != "rack"]
    return Cluster.model_validate(content)


def _of_racks(cluster: Cluster, members: int) -> Cluster:
    """The cluster with a level of racks of so many nodes, whichever they are."""
    system = next((level for level in cluster.levels if level.name == "system"), None)
    if not 1 < members < cluster.nodes or system is None:
        return cluster
    rack = Level(name="rack", members=members, link=system.link)
    others = [level for level in cluster.levels if level.name not in ("rack", "system")]
    return cluster.model_copy(update={"levels": [*others, rack, system]})


def _declared(cluster: Cluster, inner: dict[str, Any], outer: dict[str, Any]) -> Cluster:
    """The cluster with what was found of links of ranks and of nodes; tapering is of its last level."""
    levels = []
    for level in cluster.levels:
        found = inner if level.name == "node" else outer
        if level is not cluster.levels[-1]:
            found = {name: value for name, value in found.items() if name != "tapering"}
        levels.append(level.model_copy(update=found))
    return cluster.model_copy(update={"levels": levels})
