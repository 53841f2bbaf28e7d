"""The SimGrid target as text: its platform, its host file, its topologies, the published recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from tests.calib.export.asked import asking, refusal
from tests.helpers.filled import SIZES, collective, filled, near, work
from tests.helpers.published import DATA, needs_data
from tests.helpers.simgrid import in_racks

from calib.export.simgrid import platform as simgrid
from calib.export.simgrid.factors import (
    DOUBLING,
    HEADER_BYTES,
    RING,
    Messages,
    messages_of,
    middle,
    sizes,
)
from calib.export.simgrid.recipe import properties_of
from calib.export.simgrid.topology import machine_of
from calib.export.target import Exported
from calib.fitting.parameters.collectives import CollectiveFit, CollectivePoint, HockneyPiece
from calib.fitting.parameters.file import Parameters
from calib.foundation.errors import FileError, InputError

SIROCCO = DATA / "platform-calibration" / "sirocco"


def exported(parameters: Parameters | None = None, **options: Any) -> Exported:
    return simgrid.export(asking(parameters or filled(), **options))


def cluster_of(found: Exported) -> dict[str, str]:
    element = ElementTree.fromstring(found.files[""]).find("zone/cluster")
    assert element is not None
    return element.attrib


def properties(found: Exported) -> dict[str, str]:
    root = ElementTree.fromstring(found.files[""])
    return {prop.get("id", ""): prop.get("value", "") for prop in root.iter("prop")}


def test_the_platform_has_the_hosts_for_the_largest_p_and_a_host_file() -> None:
    found = exported(ranks=(16,), nodes=3)
    cluster = cluster_of(found)
    assert (cluster["radical"], cluster["prefix"], cluster["core"]) == ("0-2", "node-", "8")
    assert found.files[".hosts"] == "node-0:8\nnode-1:8\nnode-2:8\n"
    assert exported(filled(ranks_per_node=1), ranks=(2,)).files[".hosts"] == "node-0\nnode-1\n"


def test_factors_times_the_link_are_the_laws_of_a_message() -> None:
    """The allreduce of `filled` on 2 ranks of a host: 4 us + 1 ns/B, from 4 KiB 6.048 us + 0.5 ns/B.

    A step has half the time and half the bytes; SMPI adds 16 of its own.
    """
    found = exported(ranks=(2,), nodes=1)
    cluster, props = cluster_of(found), properties(found)
    latency = float(cluster["loopback_lat"].removesuffix("s"))
    bandwidth = float(cluster["loopback_bw"].removesuffix("Bps"))
    pairs = zip(
        props["smpi/lat-factor"].split(";"), props["smpi/bw-factor"].split(";"), strict=True
    )
    lines = []
    for of_latency, of_bandwidth in pairs:
        (at, lat), (same, bw) = of_latency.split(":"), of_bandwidth.split(":")
        assert at == same
        lines.append((int(at), latency * float(lat), 1 / (bandwidth * float(bw))))
    for m in (64, 512, 1 << 15, 1 << 21):  # measured
        _, start, per_byte = max(line for line in lines if line[0] < m // 2 + HEADER_BYTES)
        step = start + per_byte * (m // 2 + HEADER_BYTES)
        wanted = 4e-6 + 1e-9 * m if m <= 4096 else 6.048e-6 + 0.5e-9 * m
        assert 2 * step == pytest.approx(wanted, rel=0.011)
    assert props["smpi/allreduce"] == "lr"
    assert "smpi/os" not in props and "smpi/async-small-thresh" not in props


def test_the_speed_is_of_the_largest_layer_or_a_unit_that_is_called_one() -> None:
    # 10 us + 1e9 flop at 1e-10 s + 1e8 B at 2e-10 s
    speed = cluster_of(exported())["speed"]
    assert float(speed.removesuffix("f")) == pytest.approx(1e9 / 0.12001)
    none = exported(filled(work=[work(kind="relu")]))
    assert cluster_of(none)["speed"] == "1000000000.0f"
    assert properties(none)["smpi/simulate-computation"] == "no"
    assert any("is a unit, not a measurement" in note for note in none.notes)


@pytest.mark.parametrize(
    ("topology", "nodes", "rack", "shape", "places"),
    [
        ("", 12, 0, None, 12),
        ("", 12, 4, "2;4,3;1,4;1,1", 12),
        ("", 11, 4, "2;4,3;1,4;1,1", 12),
        ("", 3, 4, "1;3;1;1", 3),
        ("fat-tree", 9, 0, "2;3,3;1,3;1,1", 9),
        ("dragonfly", 16, 4, "4,4;1,1;4,4;1", 16),
        ("dragonfly", 10, 5, "2,6;1,1;2,6;3", 12),
        # racks of 2 alone would need 500 routers for each: 32 nodes are a group
        ("dragonfly", 1000, 2, "32,32;1,1;32,32;1", 1024),
        ("flat", 12, 4, None, 12),
    ],
)
def test_topologies(topology: str, nodes: int, rack: int, shape: str | None, places: int) -> None:
    parameters = filled(ranks_per_node=1, nodes_per_rack=rack)
    found = exported(parameters, ranks=(2,), nodes=nodes, topology=topology)
    cluster = cluster_of(found)
    assert cluster.get("topo_parameters") == shape
    assert cluster["radical"] == f"0-{places - 1}"
    hosts = found.files[".hosts"].split()
    assert len(set(hosts)) == nodes
    padded = [note for note in found.notes if "padding" in note]
    assert len(padded) == (places > nodes)


def test_a_fat_tree_has_the_links_above_a_rack_that_are_declared() -> None:
    """Racks of four nodes of two links, of which three lead out; or by a cluster's tapering."""
    made = filled(ranks_per_node=1, nodes_per_rack=4, links_per_node=2, rack_links=3.0)
    found = exported(made, ranks=(2,), nodes=12, topology="fat-tree")
    assert cluster_of(found)["topo_parameters"] == "2;4,3;1,2;1,1"  # 1.5 of four
    cluster = in_racks(12, 4)
    outer = cluster.levels[-1].model_copy(update={"tapering": 0.25})
    told = cluster.model_copy(update={"levels": [*cluster.levels[:-1], outer]})
    found = exported(made, ranks=(2,), nodes=12, topology="fat-tree", cluster=told)
    assert cluster_of(found)["topo_parameters"] == "2;4,3;1,1;1,1"


def test_hosts_stay_in_their_rack_where_groups_are_padded() -> None:
    """Racks of 5 nodes in groups of 6 places: the second rack begins at place 6."""
    parameters = filled(ranks_per_node=1, nodes_per_rack=5)
    found = exported(parameters, ranks=(2,), nodes=10, topology="dragonfly")
    places = [int(host.removeprefix("node-")) for host in found.files[".hosts"].split()]
    assert places == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]


def test_a_link_has_its_part_of_a_routes_latency() -> None:
    """Across racks there are 4 links, inside one 2."""
    flat, tree = (
        cluster_of(exported(filled(ranks_per_node=1, nodes_per_rack=rack), ranks=(16,)))["lat"]
        for rack in (0, 4)
    )
    assert float(flat.removesuffix("s")) == pytest.approx(2 * float(tree.removesuffix("s")))


def test_p_in_one_rack_and_across_racks_are_both_held() -> None:
    """Steps of 5 us inside a rack of 4 nodes (2 links), of 10 us across (4), and 1 ns/B."""
    fits = [
        straight(4, 6 * 5e-6, 6 / 4 * 1e-9, level="rack", nodes=4),
        straight(16, 30 * 10e-6, 30 / 16 * 1e-9, level="system", nodes=16),
    ]
    made = filled(collectives=fits, structural=[], ranks_per_node=1, nodes_per_rack=4)
    assert exported(made, ranks=(4, 16)).collapses[0].mean_error < 0.02
    flat = exported(made, ranks=(4, 16), topology="flat").collapses[0]
    assert flat.mean_error > 0.1


def test_a_ring_over_hosts_does_not_wait_for_messages_inside_one() -> None:
    """On 4 ranks of a node a step takes 100 us, on 16 of 4 nodes 10 us."""
    fits = [
        straight(4, 6 * 100e-6, 6 / 4 * 9e-9, level="node"),
        straight(16, 30 * 10e-6, 30 / 16 * 1e-9, level="system", nodes=4),
    ]
    found = exported(filled(collectives=fits, structural=[], ranks_per_node=4), ranks=(16,))
    cluster = cluster_of(found)
    route = 2 * float(cluster["lat"].removesuffix("s"))
    assert float(cluster["loopback_lat"].removesuffix("s")) <= route * (1 + 1e-9)
    assert cluster["loopback_bw"] == cluster["bw"]
    assert found.collapses[0].worst_error < 0.011


def straight(ranks: int, intercept: float, slope: float, **changes: Any) -> CollectiveFit:
    """An allreduce whose law is one line, and its points."""
    piece = HockneyPiece(
        from_nbytes=SIZES[0],
        to_nbytes=SIZES[-1],
        intercept_s=near(intercept),
        slope_s_per_byte=near(slope),
    )
    points = [
        CollectivePoint(nbytes=m, seconds=near(intercept + slope * m), n=20)
        for m in (SIZES[0] << k for k in range(22))
    ]
    line = {"intercept_s": near(intercept), "slope_s_per_byte": near(slope), "pieces": [piece]}
    return collective(ranks, points=points, **(line | changes))


@pytest.mark.parametrize(
    ("made", "options", "words"),
    [
        ({}, {"nbytes": (4, 8), "ranks": (16,)}, "must reach 4 B for each of 16 ranks"),
        ({}, {"topology": "torus"}, "unknown topology 'torus'; known: flat, fat-tree, dragonfly"),
        ({}, {"ranks": (64,), "nodes": 2}, "8 nodes of 8 rank"),
        ({}, {"ranks": (1,)}, "one rank sends nothing"),
        ({}, {"ranks": (10**9,)}, "125000000 nodes are more than simgrid writes"),
        ({"ranks_per_node": 10**9}, {"ranks": (2,)}, "1000000000 ranks of a node are more than"),
        ({"collectives": [], "structural": []}, {}, "simgrid needs times of allreduce or p2p"),
    ],
)
def test_refusals(made: dict[str, Any], options: dict[str, Any], words: str) -> None:
    assert words in refusal(simgrid.export, filled(**made), **options)


def test_ranks_that_were_asked_for_are_not_mixed_with_others() -> None:
    """Of 4 nodes, for the 8 ranks of one: the platform is of these alone, and says so."""
    found = exported(filled(nodes=4), ranks=(8,))
    assert found.collapses[0].ranks == (8,) and found.collapses[0].worst_error < 0.01
    assert any("messages between hosts are as inside one" in note for note in found.notes)


def test_p2p_alone_leaves_the_allreduce_to_simgrid() -> None:
    found = exported(filled(collectives=[collective(2, operation="p2p")], structural=[]))
    assert "smpi/allreduce" not in properties(found)
    assert any("no allreduce was measured" in note for note in found.notes)
    assert found.collapses[0].worst_error < 0.011


def test_another_machines_cluster_is_said() -> None:
    found = exported(ranks=(16,), cluster=in_racks(6, 2))
    comment = " ".join(found.files[""].split("-->")[0].split())
    assert "note: the machine's shape is that of" in comment
    assert cluster_of(found)["topo_parameters"] == "2;2,3;1,2;1,1"


def test_what_lies_beyond_the_measurements_is_called_so() -> None:
    """Of one node of 8, on 16 ranks: a platform of two hosts whose link nobody measured."""
    found = exported(ranks=(16,))
    assert any("no link between nodes was measured" in note for note in found.notes)
    assert found.holds_for[0].endswith("(extrapolated beyond what was measured)")
    inside = exported(ranks=(8,))
    assert not any("no link" in note for note in inside.notes)
    # an item of each rank at least: less goes by SimGrid's own default
    assert inside.holds_for == ("allreduce on 8 ranks, of 32 B to 16 MiB",)
    assert any("an allreduce of under 32 B" in note for note in inside.notes)
    assert any("over 16 MiB takes the oracle's extrapolation to 256 MiB" in n for n in inside.notes)
    assert inside.library == "mpi"


def test_hostile_names_stay_in_their_comment() -> None:
    made = filled()
    name = 'a--><prop id="smpi/os" value="9"/>\x1b[31m\n<!--'
    made = made.model_copy(
        update={"provenance": made.provenance.model_copy(update={"cluster_name": name})}
    )
    text = exported(made, ranks=(2,)).files[""]
    assert "smpi/os" not in properties(exported(made, ranks=(2,)))
    assert text.isascii() and "\x1b" not in text


def test_a_message_is_the_least_of_both_times_and_the_rest_is_the_others() -> None:
    nbytes = np.array([64, 1024, 65536, 1 << 20])
    step, alone = 5e-6 + 2e-9 * nbytes, 3e-6 + 1e-9 * nbytes
    found = messages_of(nbytes, step, alone, 2)
    assert [found.alone(m, 2) for m in nbytes] == pytest.approx(list(alone), rel=1e-9)
    assert [found.step(m, 2, False) for m in nbytes] == pytest.approx(list(step), rel=1e-9)
    assert not found.send
    # the other way round, what MPI_Send adds ends at 64 KiB
    found = messages_of(nbytes, alone, step, 2)
    assert found.alone(1024, 2) == pytest.approx(step[1], rel=1e-9)
    assert found.alone(1 << 20, 2) == pytest.approx(alone[3], rel=1e-9)
    assert not found.isend


def test_one_line_is_one_piece_and_a_jump_two() -> None:
    nbytes = np.array(sizes(4, 1 << 20))
    nothing = np.full(len(nbytes), np.nan)
    line = messages_of(nbytes, 2e-6 + 1e-9 * nbytes, nothing, 2)
    assert len(line.route) == 1
    jump = messages_of(nbytes, np.where(nbytes < 8192, 2e-6, 9e-6) + 1e-9 * nbytes, nothing, 2)
    assert len(jump.route) == 2
    assert 6144 < jump.route[1].from_nbytes <= 8192


def test_an_allreduce_is_steps_and_its_rest() -> None:
    """A ring of 3: 4 steps of 100 B, and of 304 B one item more, by 2 messages in a row."""
    nbytes = np.array([4, 4096])
    found = messages_of(nbytes, 1e-6 + 1e-9 * nbytes, np.full(2, np.nan), 2)
    assert isinstance(found, Messages)
    assert found.allreduce(300, 3, 2, False) == pytest.approx(4 * (1e-6 + 100e-9))
    # and one message waits for the other on the first rank's link, with SMPI's header of 16 B
    rest = 2 * (1e-6 + 4e-9) + (3 - 2) * (4 + 16) * 1e-9
    assert found.allreduce(304, 3, 2, False) == pytest.approx(4 * (1e-6 + 100e-9) + rest)


def test_steps_of_the_algorithms() -> None:
    assert [RING.steps(p) for p in (2, 3, 16)] == [2, 4, 30]
    # what is over a power of two joins before and leaves after
    assert [DOUBLING.steps(p) for p in (2, 3, 16, 17)] == [1, 3, 4, 6]


def test_the_middle_has_the_least_relative_error() -> None:
    times = [1.0, 2.0, 5.0, 5.5]
    grid = np.linspace(0.5, 6, 2000)
    best = grid[np.argmin([sum(abs(t / time - 1) for time in times) for t in grid])]
    assert middle(times) == pytest.approx(best, abs=0.005)


@needs_data
def test_the_published_factors_of_sirocco() -> None:
    """sirocco_output.xml, with the bandwidth and latency that its settings expect."""
    published = {
        # two names of 2016 have gained an h
        (prop.get("id") or "").replace("thres", "thresh"): prop.get("value") or ""
        for prop in ElementTree.parse(SIROCCO / "sirocco_output.xml").getroot()
    }
    found = {option: value for option, value, _ in properties_of(SIROCCO, 4e9, 1e-5)}
    assert set(found) == set(published)
    for option, value in published.items():
        assert numbers(found[option]) == pytest.approx(numbers(value), rel=1e-9), option


def numbers(value: str) -> list[float]:
    return [float(number) for part in value.split(";") for number in part.split(":")]


def calls(directory: Path, receive: float = 1e-6, rising: float = 1e-9) -> Path:
    """Calls of 0 to 1 KiB whose ping-pong takes 5 us + 4 ns/B more than its receive."""
    rows: dict[str, list[str]] = {name: [] for name in ("PingPong", "Isend", "Recv")}
    for m in (k for k in range(0, 1024, 64) for _ in range(10)):
        got = receive + rising * m
        rows["PingPong"] += [
            f"MPI_Send,{m},0,{2e-6 + 3e-9 * m}",
            f"MPI_Recv,{m},0,{got + 3e-6 + 1e-9 * m}",
        ]
        rows["Isend"].append(f"MPI_Isend,{m},0,{3e-6 + 2e-9 * m}")
        rows["Recv"].append(f"MPI_Recv,{m},0,{got}")
    for name, lines in rows.items():
        (directory / f"made_{name}.csv").write_text("\n".join(lines) + "\n")
    (directory / "made_Wtime.csv").write_text("MPI_Wtime,0,0,0.3\n")
    for name in ("Iprobe", "Test"):
        (directory / f"made_{name}.csv").write_text(f"MPI_{name},0,0,2e-07\n" * 3)
    (directory / "breakpoints").write_text("Limit, Name\n512, Asynchronous\n")
    return directory


def test_raw_calls_replace_the_factors(tmp_path: Path) -> None:
    """(ping-pong - receive) / 2 = 2.5 us + 2 ns/B, over the platform's own link.

    Above the threshold a receive takes nothing of its own: 3 us + 2.5 ns/B.
    """
    found = exported(ranks=(16,), calls=calls(tmp_path))
    cluster, props = cluster_of(found), properties(found)
    latency = 2 * float(cluster["lat"].removesuffix("s"))
    bandwidth = float(cluster["bw"].removesuffix("Bps"))
    assert numbers(props["smpi/lat-factor"])[1::2] == pytest.approx(
        [2.5e-6 / latency, 3e-6 / latency]
    )
    assert numbers(props["smpi/bw-factor"])[1::2] == pytest.approx(
        [1 / (2e-9 * bandwidth), 1 / (2.5e-9 * bandwidth)]
    )
    assert numbers(props["smpi/ois"])[:3] == pytest.approx([0, 3e-6, 2e-9])
    assert props["smpi/async-small-thresh"] == props["smpi/send-is-detached-thresh"] == "512"
    assert "smpi/allreduce" not in props and not found.collapses
    assert float(props["smpi/wtime"]) == pytest.approx(3e-8)


def test_calls_that_give_impossible_factors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"smpi/or the value -.*no line that rises"):
        exported(calls=calls(tmp_path, receive=5e-6, rising=-4e-9))
    with pytest.raises(FileError, match="one file"):
        exported(calls=tmp_path / "nowhere")


def test_the_machine_has_no_fewer_nodes_than_ranks_need() -> None:
    assert machine_of(asking(filled(nodes=32)), 4).nodes == 32
    assert machine_of(asking(filled()), 4).nodes == 4
