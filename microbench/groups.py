"""Which ranks form a group: disjoint groups by layout, over ranks in the order of the machine.

Ranks are ordered by rack, node and number, so that neighbours are near. In that order, groups of p
ranks that are `stride` apart fill blocks of p x stride: stride 1 packs a node before it takes the
next, stride = ranks per node takes one rank of each node, and the `stride` groups of a block share
the links of its nodes. The segmented allreduce of data+filter with p = p1 p2 is the p2 groups of p1
ranks that are p2 apart.
"""

from __future__ import annotations

from calib.foundation.errors import InputError
from calib.microbench.machine.placement import Placement


def machine_order(placement: Placement) -> list[int]:
    """The ranks by rack, node (in the order of their first rank) and number."""
    racks, hosts = placement.racks, placement.hosts
    first_of_rack = {rack: racks.index(rack) for rack in racks}
    first_of_host = {host: hosts.index(host) for host in hosts}
    return sorted(
        range(len(hosts)), key=lambda r: (first_of_rack[racks[r]], first_of_host[hosts[r]], r)
    )


def layout(placement: Placement, size: int, stride: int, count: int) -> list[list[int]]:
    """`count` disjoint groups of `size` ranks that are `stride` apart.

    Raises InputError when the launch has too few ranks for them.
    """
    order = machine_order(placement)
    block = size * stride
    groups = []
    for index in range(count):
        start = (index // stride) * block + index % stride
        members = order[start : start + block : stride]
        if len(members) < size:
            raise InputError(
                f"{count} groups of {size} ranks, {stride} apart, do not fit {len(order)} ranks"
            )
        groups.append(members)
    return groups


def fits(ranks: int, size: int, stride: int, count: int) -> bool:
    """Whether `layout` can be made on so many ranks."""
    last = count - 1
    start = (last // stride) * size * stride + last % stride
    return start + (size - 1) * stride < ranks


def level_of(placement: Placement, group: list[int]) -> str:
    """The slowest level that a group crosses: node, rack or system."""
    if len({placement.hosts[rank] for rank in group}) == 1:
        return "node"
    racks = {placement.racks[rank] for rank in group}
    return "rack" if len(racks) == 1 and "" not in racks else "system"


def nodes_of(placement: Placement, group: list[int]) -> int:
    """How many nodes a group spans."""
    return len({placement.hosts[rank] for rank in group})
