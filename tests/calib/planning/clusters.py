"""Clusters made by hand."""

from __future__ import annotations

from typing import TypeVar

from calib.microbench.cases import Case, Plan
from calib.microbench.records.cluster import Cluster, Device, Host, Level


def cluster(ranks_per_node: int, nodes_per_rack: int = 0, nodes: int = 1) -> Cluster:
    """A cluster made by hand: `nodes_per_rack` 0 is a machine whose racks are not known."""
    levels = [Level(name="node", members=ranks_per_node, link="shared memory")]
    if nodes_per_rack:
        levels.append(Level(name="rack", members=nodes_per_rack, link="switch"))
    if nodes > 1:
        levels.append(Level(name="system", members=nodes, link="eth0"))
    cpu = Device(kind="cpu", name="hand-made", count=ranks_per_node, memory_bytes=2**33)
    hosts = [Host(name=f"n{i}", kernel="Linux", devices=[cpu]) for i in range(nodes)]
    return Cluster(name="hand", hosts=hosts, levels=levels)


Kind = TypeVar("Kind", bound=Case)


def cases(plan: Plan, kind: type[Kind], **fields: object) -> list[Kind]:
    """The cases of a kind whose fields are these."""
    return [
        case
        for case in plan.cases
        if isinstance(case, kind)
        and all(getattr(case, name) == value for name, value in fields.items())
    ]
