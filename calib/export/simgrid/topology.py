"""Hosts of a SimGrid platform: flat, fat tree or dragonfly; links of a route.

SimGrid wants exactly as many hosts as a tree or dragonfly has places: the rest are padding. A route's
latency is the sum of its links', which are all equal in one <cluster>, so their number matters: as
SimGrid 3.32 routes (FatTreeZone::get_local_route, d mod k; DragonflyZone::get_local_route, minimal; in a
flat cluster each host has its own link). There are as many links between switches as hosts below them,
so that none is a bottleneck, but where the machine declares how many lead out of a rack.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from calib.export.target import ExportRequest
from calib.foundation.errors import InputError

FLAT, FAT_TREE, DRAGONFLY = "flat", "fat-tree", "dragonfly"
TOPOLOGIES = (FLAT, FAT_TREE, DRAGONFLY)
MOST_HOSTS = 100_000  # SimGrid keeps every one in memory
LINKS_OF_A_HOST = 2  # up from one, down to the other

Route = Callable[[int, int], int]  # links between two places


@dataclass(frozen=True)
class SimGridHosts:
    """`nodes` hosts at `places` of a topology; `per_group` hosts in each group of `group_places`."""

    topology: str
    nodes: int
    places: int
    per_group: int
    group_places: int
    topo_parameters: str
    route: Route

    def place(self, node: int) -> int:
        """Where a node is: nodes fill one group (rack) after the other."""
        group, at = divmod(node, self.per_group)
        return group * self.group_places + at

    def ring_links(self, nodes: int) -> int:
        """The most links between neighbours of a ring over the first `nodes` nodes."""
        places = [self.place(node) for node in range(nodes)]
        pairs = zip(places, [*places[1:], places[0]], strict=True)
        return max(self.route(here, there) for here, there in pairs)


def machine_of(request: ExportRequest, needed: int) -> SimGridHosts:
    """The hosts for `needed` nodes at least. Raises InputError."""
    nodes = request.nodes or max(needed, request.parameters.nodes, _hosts(request))
    if nodes < needed:
        raise InputError(
            f"{needed} nodes of {request.parameters.ranks_per_node} rank(s) are needed for the "
            f"largest number of ranks, and --nodes gives {nodes}"
        )
    per_node = request.parameters.ranks_per_node
    if nodes > MOST_HOSTS or per_node > MOST_HOSTS:
        many = f"{nodes} nodes" if nodes > MOST_HOSTS else f"{per_node} ranks of a node"
        raise InputError(
            f"{many} are more than simgrid writes, {MOST_HOSTS}: give fewer --ranks or --nodes"
        )
    in_rack = nodes_per_rack(request)
    topology = request.topology or (FAT_TREE if in_rack and nodes > 1 else FLAT)
    if topology == FLAT:
        return SimGridHosts(FLAT, nodes, nodes, nodes, nodes, "", lambda _a, _b: LINKS_OF_A_HOST)
    if topology == FAT_TREE:
        return _fat_tree(
            nodes, min(in_rack or math.ceil(math.sqrt(nodes)), nodes), tapering(request)
        )
    if topology == DRAGONFLY:
        return _dragonfly(nodes, min(in_rack, nodes))
    raise InputError(f"unknown topology {topology!r}; known: {', '.join(TOPOLOGIES)}")


def nodes_per_rack(request: ExportRequest) -> int:
    """Nodes of the largest rack; 0 where unknown."""
    cluster = request.cluster
    if cluster is not None:
        for level in cluster.levels:
            if level.name == "rack" and level.members > 1:
                return level.members
    return request.parameters.nodes_per_rack


def tapering(request: ExportRequest) -> float:
    """Of what the nodes of a rack can send, the share that leads out of it; 1 where unknown."""
    of, cluster = request.parameters, request.cluster
    if cluster is not None:
        return cluster.levels[-1].tapering or 1.0
    links = of.nodes_per_rack * of.links_per_node
    return min(of.rack_links / links, 1.0) if links and of.rack_links else 1.0


def _hosts(request: ExportRequest) -> int:
    return len(request.cluster.hosts) if request.cluster is not None else 0


def _fat_tree(nodes: int, in_rack: int, tapering: float) -> SimGridHosts:
    """A switch for each rack, and as many above them as a rack has hosts, times the tapering."""
    racks = -(-nodes // in_rack)
    # one rack has one switch, and no level above
    above = max(1, round(tapering * in_rack))
    shape = f"2;{in_rack},{racks};1,{above};1,1" if racks > 1 else f"1;{nodes};1;1"
    places = racks * in_rack

    def route(here: int, there: int) -> int:
        return LINKS_OF_A_HOST if here // in_rack == there // in_rack else 4

    return SimGridHosts(FAT_TREE, nodes, places, in_rack, in_rack, shape, route)


def _dragonfly(nodes: int, in_rack: int) -> SimGridHosts:
    """Groups of one chassis: a router for each other group, with the same number of nodes each."""
    if in_rack:
        # a group has a router for each other group: of small racks, several are a group
        rack = in_rack
        while -(-nodes // in_rack) > in_rack:
            in_rack += rack
        groups = -(-nodes // in_rack)
        routers = groups
        at_router = -(-in_rack // routers)
    else:
        groups = routers = math.ceil((2 * nodes) ** (1 / 3)) if nodes > 1 else 1
        at_router = -(-nodes // (groups * routers))
        in_rack = routers * at_router
        groups = -(-nodes // in_rack)
    in_group = routers * at_router
    wide = in_group  # as many links as nodes may send over one

    def route(here: int, there: int) -> int:
        (group, at), (its_group, its_at) = divmod(here, in_group), divmod(there, in_group)
        router, its_router = at // at_router, its_at // at_router
        links = LINKS_OF_A_HOST
        if group != its_group:
            # router n of a group has the link to group n
            links += 1 + (router != its_group) + (group != its_router)
        else:
            links += router != its_router
        return links

    return SimGridHosts(
        DRAGONFLY,
        nodes,
        groups * in_group,
        in_rack,
        in_group,
        f"{groups},{wide};1,1;{routers},{wide};{at_router}",
        route,
    )
