"""The subnet that `ibnetdiscover` prints: hosts, switches, and the cables between them.

References
----------
rdma-core, infiniband-diags/ibnetdiscover.c and its manual page (the lines and their order);
InfiniBand Architecture Specification, volume 1, table of link rates.
"""

from __future__ import annotations

import re

from calib.foundation.words import counted
from calib.microbench.topology.fabric import FabricLink, fabric
from calib.microbench.topology.found import FoundTopology

# Gbit/s of data of one lane, after its encoding
LANE_GBITS = {
    "SDR": 2.0,
    "DDR": 4.0,
    "QDR": 8.0,
    "FDR10": 10.0,
    "FDR": 14.0625 * 64 / 66,
    "EDR": 25.0,
    "HDR": 50.0,
    "NDR": 100.0,
    "XDR": 200.0,
}
NODE = re.compile(
    r'^[ \t]*(Switch|Ca|Rt)\s+\d+\s+"([SHR]-[0-9a-fA-F]{1,16})"\s*#\s*"([^"]*)"', re.MULTILINE
)
# [port] "peer"[port] # "description" lid 1 4xEDR; a port of a host has its GUID behind it
PORT = re.compile(
    r'^\[(\d{1,3})\][^"\n]*"([SHR]-[0-9a-fA-F]{1,16})"\[(\d{1,3})\][^#\n]*#([^\n]*)$', re.MULTILINE
)
DESCRIPTION = re.compile(r'"([^"]*)"')
RATE = re.compile(rf"\b(\d{{1,2}})x({'|'.join(LANE_GBITS)})\b")
# "node018 HCA-1", "lrdn0001 mlx5_0", or a name alone; an adapter that was not named says what it is
HOST = re.compile(r"(?!localhost\b|\(none\))(\S+)(?:\s+(?:HCA-\d+|[A-Za-z]\w*?_?\d+))?")


def is_ibnetdiscover(text: str) -> bool:
    """Whether it is a text that ibnetdiscover prints."""
    return NODE.search(text) is not None


def read_ibnetdiscover(text: str) -> FoundTopology:
    """The topology of a subnet. Hosts are named by their adapters' descriptions, racks by a switch."""
    text = "\n".join(line.strip() for line in text.splitlines())
    kinds, said = dict[str, str](), dict[str, str]()
    cables: dict[frozenset[tuple[str, int]], float | None] = {}
    heads = list(NODE.finditer(text))
    for head, end in zip(heads, [*(each.start() for each in heads[1:]), len(text)], strict=True):
        kind, node, said[node] = head.groups()
        kinds[node] = kind
        for port, peer, of_peer, comment in PORT.findall(text, head.end(), end):
            cables[frozenset({(node, int(port)), (peer, int(of_peer))})] = _rate(comment)
            if kind == "Switch" and (about := DESCRIPTION.search(comment)):
                said.setdefault(peer, about[1])
    names = {node: _name(node, about) for node, about in said.items()}
    links = [
        FabricLink(names.get(one, ""), names.get(other, ""), rate)
        for ((one, _), (other, _)), rate in (
            (sorted(ends), rate) for ends, rate in cables.items() if len(ends) == 2
        )
    ]
    hosts = list(
        dict.fromkeys(name for node, name in names.items() if node.startswith("H-") and name)
    )
    unnamed = sum(not name for name in names.values())
    slow = sum(link.bandwidth is None for link in links)
    notes = []
    if unnamed:
        notes.append(f"{counted(unnamed, 'adapter')} without the name of a host")
    if slow:
        notes.append(f"{counted(slow, 'link')} of a width or speed that is not known")
    known = [link for link in links if link.one and link.other]
    return fabric("ibnetdiscover", known, hosts, notes)


def _name(node: str, description: str) -> str:
    """The host of an adapter, a switch's own; "" where the description names none."""
    if node.startswith("S-"):
        return node
    named = HOST.fullmatch(description.strip())
    return named[1] if named and node.startswith("H-") else ""


def _rate(comment: str) -> float | None:
    """B/s each way of `4xHDR`."""
    found = RATE.findall(comment)
    return int(found[-1][0]) * LANE_GBITS[found[-1][1]] * 1e9 / 8 if found else None
