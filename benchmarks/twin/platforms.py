"""Clusters of 128 nodes with 8 ranks each, as SimGrid platforms of version 4.1.

A node is one host whose ranks share its link, or on `rails` 8 hosts that share 4. Ranks fill a node
before the next. Racks hold 4 nodes, so that up to 64 ranks cross what lies above them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from calib.microbench.records.cluster import Cluster, Host, Level

NODES, PER_NODE, NODES_PER_RACK = 128, 8, 4
NICS, SLOW_NODE, SLOWER, BACKBONE_LINKS = 4, 3, 4.0, 4
GBPS, WIDE = 1e9, 1e14
HEAD = (
    "<?xml version='1.0'?>\n"
    '<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">\n'
    '<platform version="4.1">\n'
)
# MPI over a fast network: less bandwidth for short messages, and a rendezvous before long ones
MESSAGES = (
    "--cfg=smpi/bw-factor:0:0.6;8192:0.8;65536:0.95",
    "--cfg=smpi/lat-factor:0:1;65536:2.5",
    "--cfg=smpi/os:0:4e-7:0",
    "--cfg=smpi/or:0:3e-7:0",
    "--cfg=smpi/ois:0:4e-7:0",
    "--cfg=network/crosstraffic:no",
    "--cfg=smpi/simulate-computation:no",
    # fewer mappings than Linux allows a process, of 1,024 ranks' buffers
    "--cfg=smpi/shared-malloc-blocksize:16777216",
)


@dataclass(frozen=True)
class Platform:
    """A cluster and the collectives that run on it: those that a library of MPI would choose.

    `links` are the network cards of a node, of `bandwidth` B/s. Racks hold `rack` nodes (0: there are
    none); `tapering` is what can leave them at once, without racks cross the middle, of what the nodes
    can send.
    """

    name: str
    what: str
    xml: Callable[[], str]
    selector: str
    bandwidth: float
    links: int = 1
    rack: int = 0
    tapering: float = 1.0

    @property
    def cluster(self) -> Cluster:
        """The platform's truth, as a cluster declares it."""
        of_links = {"link": "simulated", "links": self.links, "bandwidth": self.bandwidth}
        rack = [Level(name="rack", members=self.rack, **of_links)] if self.rack else []
        return Cluster(
            name=self.name,
            hosts=[Host(name="n", kernel="", devices=[])],
            levels=[
                Level(name="node", members=PER_NODE, link="simulated"),
                *rack,
                Level(name="system", members=NODES, tapering=self.tapering, **of_links),
            ],
        )

    @property
    def options(self) -> list[str]:
        """Options of smpirun."""
        options = [*MESSAGES, f"--cfg=smpi/coll-selector:{self.selector}"]
        if self.selector == "ompi":
            # Open MPI's broadcast in short segments takes hours to simulate
            options.append("--cfg=smpi/bcast:mpich")
        return options

    def hosts(self, nodes: int, per_node: int) -> str:
        """The host file for the first `nodes` nodes with `per_node` ranks on each."""
        if self.links > 1:
            lines = [f"n{node}g{gpu}" for node in range(nodes) for gpu in range(per_node)]
        else:
            lines = [f"n{node}:{per_node}" for node in range(nodes)]
        return "\n".join(lines) + "\n"


def _fat_tree() -> str:
    racks, up = NODES // NODES_PER_RACK, NODES_PER_RACK // 2
    return _cluster("FAT_TREE", f"2;{NODES_PER_RACK},{racks};1,{up};1,1", 12.5 * GBPS)


def _dragonfly() -> str:
    # SimGrid 3.32: router n of a group has the link to group n, so 8 routers for 8 groups
    return _cluster("DRAGONFLY", "8,1;2,1;4,1;2", 12.5 * GBPS)


def _cluster(topology: str, shape: str, bandwidth: float) -> str:
    return (
        f'{HEAD}<cluster id="machine" prefix="n" suffix="" radical="0-{NODES - 1}" speed="1Gf" '
        f'core="{PER_NODE}" bw="{bandwidth:.0f}Bps" lat="500ns" topology="{topology}" '
        f'topo_parameters="{shape}" sharing_policy="SPLITDUPLEX" loopback_bw="20GBps" '
        'loopback_lat="300ns"/>\n</platform>\n'
    )


def _flat(bandwidth: float, latency: str, slow: bool, backbone: float) -> str:
    """Every node has a link of its own to one switch, of `backbone` B/s where that is not 0."""
    lines = [_link("switch", backbone, latency, "SHARED")] if backbone else []
    middle = ["switch"] if backbone else []
    for node in range(NODES):
        own = bandwidth / SLOWER if slow and node == SLOW_NODE else bandwidth
        lines += [
            f'<host id="n{node}" speed="1Gf" core="{PER_NODE}"/>',
            _link(f"l{node}", own, latency),
            _link(f"m{node}", 20 * GBPS, "300ns", "FATPIPE"),
        ]
    for node in range(NODES):
        lines.append(_route(f"n{node}", f"n{node}", [f"m{node}"]))
        for other in range(node + 1, NODES):
            links = [f"l{node} UP", *middle, f"l{other} DOWN"]
            lines.append(_route(f"n{node}", f"n{other}", links))
    return _zone("machine", lines)


def _rails() -> str:
    """Nodes of 8 GPUs on a fast switch; GPUs 2 i and 2 i + 1 share network card i."""
    # SimGrid's DTD wants zones before links
    lines = [line for node in range(NODES) for line in _node_of_gpus(node)]
    # a link of each node and not one for all: SimGrid works out together what shares a link
    lines += [_link(f"w{node}", WIDE, "500ns") for node in range(NODES)]
    for node in range(NODES):
        for other in range(node + 1, NODES):
            lines.append(
                f'<zoneRoute src="z{node}" dst="z{other}" gw_src="r{node}" gw_dst="r{other}">'
                f'<link_ctn id="w{node}" direction="UP"/><link_ctn id="w{other}" direction="DOWN"/>'
                "</zoneRoute>"
            )
    return _zone("machine", lines)


def _node_of_gpus(node: int) -> Iterator[str]:
    yield f'<zone id="z{node}" routing="Full">'
    for gpu in range(PER_NODE):
        yield f'<host id="n{node}g{gpu}" speed="1Gf"/>'
    yield f'<router id="r{node}"/>'
    links = [(f"v{node}-{gpu}", 200 * GBPS, "700ns") for gpu in range(PER_NODE)]
    links += [(f"c{node}-{card}", 25 * GBPS, "1us") for card in range(NICS)]
    for link in links:
        yield _link(*link)
    for gpu in range(PER_NODE):
        card = gpu * NICS // PER_NODE
        yield _route(f"n{node}g{gpu}", f"r{node}", [f"c{node}-{card} UP"])
        for other in range(gpu + 1, PER_NODE):
            ways = [f"v{node}-{gpu} UP", f"v{node}-{other} DOWN"]
            yield _route(f"n{node}g{gpu}", f"n{node}g{other}", ways)
    yield "</zone>"


def _link(name: str, bandwidth: float, latency: str, sharing: str = "SPLITDUPLEX") -> str:
    return (
        f'<link id="{name}" bandwidth="{bandwidth:.0f}Bps" latency="{latency}" '
        f'sharing_policy="{sharing}"/>'
    )


def _route(here: str, there: str, links: list[str]) -> str:
    """A route both ways over links, each perhaps with a direction."""
    parts = []
    for link in links:
        name, _, direction = link.partition(" ")
        way = f' direction="{direction}"' if direction else ""
        parts.append(f'<link_ctn id="{name}"{way}/>')
    return f'<route src="{here}" dst="{there}">{"".join(parts)}</route>'


def _zone(name: str, lines: list[str]) -> str:
    return (
        f'{HEAD}<zone id="{name}" routing="Full">\n' + "\n".join(lines) + "\n</zone>\n</platform>\n"
    )


PLATFORMS = {
    platform.name: platform
    for platform in (
        Platform(
            "fat_tree",
            f"racks of {NODES_PER_RACK} nodes, half as many links above a rack as below it; 12.5 GB/s",
            _fat_tree,
            "mpich",
            12.5 * GBPS,
            rack=NODES_PER_RACK,
            tapering=0.5,
        ),
        Platform(
            "dragonfly",
            "8 groups of 2 chassis of 4 routers of 2 nodes, one link between two groups; 12.5 GB/s",
            _dragonfly,
            "ompi",
            12.5 * GBPS,
            rack=16,
            tapering=7 / 16,
        ),
        Platform(
            "rails",
            f"nodes of {PER_NODE} GPUs at 200 GB/s with {NICS} cards of 25 GB/s, a wide core",
            _rails,
            "ompi",
            25 * GBPS,
            links=NICS,
        ),
        Platform(
            "slow_link",
            f"12.5 GB/s to one switch, node {SLOW_NODE} {SLOWER:.0f} times slower",
            lambda: _flat(12.5 * GBPS, "1us", True, 0.0),
            "mpich",
            12.5 * GBPS,
        ),
        Platform(
            "shared_link",
            f"1.25 GB/s to a backbone of {BACKBONE_LINKS} times that, which all share",
            lambda: _flat(1.25 * GBPS, "10us", False, BACKBONE_LINKS * 1.25 * GBPS),
            "ompi",
            1.25 * GBPS,
            tapering=BACKBONE_LINKS / NODES,
        ),
    )
}
