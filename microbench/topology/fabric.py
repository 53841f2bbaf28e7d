"""Racks of a network of hosts and switches, and the links above them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from calib.microbench.topology.found import FoundHost, FoundTopology


class FabricLink(NamedTuple):
    """A cable between two hosts or switches, by their names; B/s each way, None unknown."""

    one: str
    other: str
    bandwidth: float | None


def fabric(
    made_by: str, links: Iterable[FabricLink], hosts: Sequence[str], notes: Sequence[str] = ()
) -> FoundTopology:
    """Hosts with their links; those whose switches some host connects are one rack.

    With rails a host has a link to each of several switches, which together are those of its rack.
    """
    names, speeds = set(hosts), defaultdict[str, list[float | None]](list)
    leaves, between = defaultdict[str, list[str]](list), []
    for link in links:
        ends = [end for end in link[:2] if end in names]
        for host in ends:
            speeds[host].append(link.bandwidth)
        if len(ends) == 1:
            leaves[ends[0]].append(link.other if ends[0] == link.one else link.one)
        elif not ends:
            between.append(link)
    rack_of = _joined(leaves.values())
    uplinks = defaultdict[str, list[float | None]](list)
    for link in between:
        racks = {rack_of.get(link.one, ""), rack_of.get(link.other, "")}
        for rack in racks - {""} if len(racks) > 1 else ():
            uplinks[rack].append(link.bandwidth)
    found = tuple(
        FoundHost(
            name=host,
            speeds=tuple(speeds[host]),
            rack=rack_of[leaves[host][0]] if leaves[host] else "",
        )
        for host in hosts
    )
    above = {rack: tuple(each) for rack, each in uplinks.items()}
    return FoundTopology(made_by, found, above, notes=tuple(notes))


def _joined(groups: Iterable[Sequence[str]]) -> dict[str, str]:
    """Switch -> the first name of all that are joined with it, as one host has links to both."""
    parents: dict[str, str] = {}

    def root(name: str) -> str:
        parents.setdefault(name, name)
        while parents[name] != name:
            parents[name] = parents[parents[name]]
            name = parents[name]
        return name

    for first, *others in groups:
        mine = root(first)
        for other in others:
            one, two = sorted((mine, root(other)))
            parents[two], mine = one, one
    return {name: root(name) for name in list(parents)}
