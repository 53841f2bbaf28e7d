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


def levels(racks: int = 0, **declared: float) -> list[Level]:
    """16 nodes of one rank, in racks of so many."""
    rack = [Level(name="rack", members=racks, link="l")] if racks else []
    system = Level.model_validate({"name": "system", "members": 16, "link": "l", **declared})
    return [Level(name="node", members=1, link="l"), *rack, system]


def on_nodes(seconds: float, levels: list[Level]) -> Parameters:
    """A file from allreduces of up to 128 KiB on two nodes."""
    cluster = Cluster(name="c", hosts=[host("h")], levels=levels)
    fields = {"level": "system", "nodes": 2, "active_ranks": 1}
    cases = MESSAGES[:8]
    return fit(
        [run([row for c in cases for row in constant(c, "allreduce", seconds, **fields)], cluster)]
    )


@pytest.mark.parametrize(
    ("racks", "declared", "found"),
    [
        (0, {"links": 2, "bandwidth": 1e10, "tapering": 0.25}, (2, 1e10, 0.0, 8.0)),
        (0, {"links": 2, "bandwidth": 1e10, "tapering": 1.0}, (2, 1e10, 0.0, 0.0)),
        (4, {"links": 2, "bandwidth": 1e10, "tapering": 0.25}, (2, 1e10, 2.0, 0.0)),
        (4, {"links": 2}, (2, 0.0, 0.0, 0.0)),
        (0, {"tapering": 0.5}, (0, 0.0, 0.0, 0.0)),  # of unknown links
        (0, {}, (0, 0.0, 0.0, 0.0)),
    ],
)
def test_links_as_declared(
    racks: int, declared: dict[str, float], found: tuple[float, ...]
) -> None:
    file = on_nodes(1e-3, levels(racks, **declared))
    assert (file.links_per_node, file.link_bandwidth, file.rack_links, file.shared_links) == found


def test_a_declaration_that_a_measurement_exceeds_bounds_nothing() -> None:
    """128 KiB between two nodes in 10 us are 13 GB/s each way, over a link of 1 GB/s."""
    file = on_nodes(1e-5, levels(links=1, bandwidth=1e9, tapering=0.25))
    assert file.link_bandwidth == 0.0 and file.links_per_node == 1
    (note,) = [note for note in file.provenance.notes if "too slow" in note]
    assert note == (
        "the links of a node are declared too slow, so nothing is bound by them: allreduce of 128 KiB "
        "on 2 ranks of 2 nodes took 10 µs, and by them at least 131 µs"
    )


def test_a_shared_link_that_a_measurement_exceeds_is_none() -> None:
    file = on_nodes(1.4e-4, levels(links=1, bandwidth=1e9, tapering=0.025))
    assert (file.link_bandwidth, file.shared_links) == (1e9, 0.0)
