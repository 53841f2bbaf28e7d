"""Nodes, nodes of a rack and links of a node: from the cluster record to the parameter file."""

from __future__ import annotations

import pytest
from tests.helpers.rows import constant
from tests.helpers.runs import MESSAGES, run

from calib.fitting.fit import fit
from calib.fitting.parameters.file import FORMAT_VERSION, Parameters
from calib.microbench.records.cluster import Cluster, Device, Host, Level, levels_of

ETHERNET, FAST = 1.25e8, 1.25e10


def host(name: str, rack: str = "", **interfaces: float | None) -> Host:
    cpu = Device(kind="cpu", name="Some CPU", count=4, memory_bytes=2**34)
    return Host(name=name, kernel="k", devices=[cpu], rack=rack, network_interfaces=interfaces)


def fitted(*hosts: Host, levels: list[Level] | None = None) -> Parameters:
    """A file from two sizes of an allreduce on a cluster of these hosts."""
    cluster = Cluster(name="c", hosts=list(hosts), levels=levels or levels_of(hosts, 4))
    samples = [row for case in MESSAGES[:2] for row in constant(case, "allreduce", 1e-5)]
    return fit([run(samples, cluster)])


@pytest.mark.parametrize(
    ("racks", "nodes", "per_rack"),
    [
        ("-", 1, 0),
        ("--", 2, 0),  # nobody knows the racks
        ("aabb", 4, 2),
        ("aaab", 4, 3),  # its largest rack
        ("aa", 2, 0),  # all in one: how many more it could hold is unknown
        ("ab", 2, 0),
    ],
)
def test_nodes_and_racks(racks: str, nodes: int, per_rack: int) -> None:
    hosts = [host(f"h{n}", rack.strip("-")) for n, rack in enumerate(racks)]
    found = fitted(*hosts)
    assert (found.format_version, found.ranks_per_node) == (FORMAT_VERSION, 4)
    assert (found.nodes, found.nodes_per_rack) == (nodes, per_rack)


def test_nodes_that_only_the_levels_tell() -> None:
    """An imported log names one host, and ranks on three nodes."""
    levels = [Level(name="node", members=4, link="l"), Level(name="system", members=3, link="l")]
    assert fitted(host("unknown"), levels=levels).nodes == 3


@pytest.mark.parametrize(
    ("interfaces", "links"),
    [
        ([{"ib0": FAST, "ib1": FAST, "eth0": ETHERNET, "lo": 1e12}], 2),
        ([{"ib0": FAST, "ib1": FAST}, {"ib0": FAST}], 1),  # of the host that has the fewest
        ([{"ib0": FAST, "ib1": 0.6 * FAST}], 2),
        ([{"eth0": None}], 0),
        ([{"eth0": FAST}, {}], 0),
        ([{}], 0),
    ],
)
def test_links_are_the_interfaces_that_carry_collectives(
    interfaces: list[dict[str, float | None]], links: int
) -> None:
    hosts = [host(f"h{n}", **names) for n, names in enumerate(interfaces)]
    assert fitted(*hosts).links_per_node == links
