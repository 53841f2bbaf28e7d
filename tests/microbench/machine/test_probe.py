"""Describing hosts: one record each, the levels between them, GPUs that do not answer."""

from __future__ import annotations

import platform
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.nvml import Board, nvml
from tests.helpers.ranks import results, run_ranks
from tests.helpers.sysfs import two_sockets

import calib.microbench.probe
from calib.foundation.files import write_json
from calib.microbench.probe import cpu_model, probe, probe_host, read_gpus
from calib.microbench.records.cluster import Cluster, Device, Host, levels_of
from calib.microbench.records.hardware import NetworkCard, NumaNode, PciLink


def host(name: str, rack: str = "", **fields: Any) -> Host:
    devices = [Device(kind="cpu", name="Some CPU", count=8, memory_bytes=2**34)]
    return Host(name=name, kernel="Linux", devices=devices, rack=rack, **fields)


def cluster(*racks: str, members: int = 4) -> Cluster:
    """A host in each of these racks."""
    hosts = [host(f"h{number}", rack) for number, rack in enumerate(racks)]
    return Cluster(name="c", hosts=hosts, levels=levels_of(hosts, members))


@pytest.mark.parametrize(
    ("racks", "levels"),
    [
        (("",), {"node": 4}),
        (("r",), {"node": 4}),
        (("", ""), {"node": 4, "system": 2}),  # two unknown racks are not one
        (("r", "s"), {"node": 4, "system": 2}),
        (("r", "r"), {"node": 4, "rack": 2}),
        (("r", "r", ""), {"node": 4, "rack": 2, "system": 3}),
        (("r", "s", "r", "r", "s"), {"node": 4, "rack": 3, "system": 5}),
    ],
)
def test_levels_of_hosts_in_racks(racks: tuple[str, ...], levels: dict[str, int]) -> None:
    assert {level.name: level.members for level in cluster(*racks).levels} == levels


def test_fingerprint_is_of_how_many_share_a_rack_not_of_its_name() -> None:
    assert cluster("r", "r", "s").fingerprint == cluster("left", "right", "right").fingerprint
    prints = {cluster(*racks).fingerprint for racks in (("", ""), ("r", "r"), ("r", "r", "s"))}
    assert len(prints) == 3
    assert cluster("").fingerprint == cluster("r").fingerprint


def test_numa_nodes_are_compared() -> None:
    """A firmware setting cuts a socket in four: another memory bandwidth."""
    one, four = (
        Cluster(name="c", hosts=[host("h", numa_nodes=n)], levels=levels_of([host("h")], 8))
        for n in (1, 4)
    )
    assert one.fingerprint != four.fingerprint


def test_racks_filled_in_by_hand_make_a_level(tmp_path: Path) -> None:
    """As a user edits cluster.json: the host's rack alone."""
    path = tmp_path / "cluster.json"
    content = cluster("", "", "").model_dump()
    for each in content["hosts"][:2]:
        each["rack"] = "r"
    write_json(path, content)
    read = Cluster.read(path)
    assert read.racks == {"h0": "r", "h1": "r"}
    assert read == cluster("r", "r", "")
    read.write(path)
    assert Cluster.read(path) == read


def test_ranks_of_two_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three ranks on two hosts: a record for each host, ranks of a node from the fullest."""
    here = threading.local()
    names = ["a.example", "b", "b"]
    module = calib.microbench.probe
    monkeypatch.setattr(module, "probe_host", lambda: host(names[here.rank], "x"[: here.rank]))

    def program(comm: Any) -> Cluster:
        here.rank = comm.rank
        return probe(comm, racks={"a.example": "x"})

    first, *others = results(run_ranks(3, program))
    assert all(other == first for other in others)
    assert first.name == "a" and [each.name for each in first.hosts] == ["a.example", "b"]
    assert first.racks == {"a.example": "x", "b": "x"}
    assert {level.name: level.members for level in first.levels} == {"node": 2, "rack": 2}


def test_this_host() -> None:
    """What the system says of itself; what hardware it is, other tests read from fixtures."""
    found = probe_host()
    assert found.name == socket.gethostname() and found.kernel.endswith(platform.release())
    assert found.devices[0].kind == "cpu"
    assert found.versions["python"] == platform.python_version()


def test_the_name_of_the_processor(tmp_path: Path) -> None:
    information = tmp_path / "cpuinfo"
    assert cpu_model(information) == cpu_model(tmp_path) != ""  # Arm's kernel names none
    information.write_text("processor\t: 0\nmodel name\t: AMD EPYC 9B14\nmodel name\t: other\n")
    assert cpu_model(information) == "AMD EPYC 9B14"


@pytest.mark.parametrize(
    ("boards", "lost", "driver", "names", "problem"),
    [
        ("ab", "", "580.1", ["GPU a", "GPU b"], ""),
        ("", "", "580.1", [], ""),
        ("abc", "b", "580.1", ["GPU a", "GPU c"], "GPU 1 left out: GPU is lost"),
        ("ab", "", None, [], "no GPU read: Unknown Error"),
    ],
)
def test_gpus_that_do_not_answer_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
    boards: str,
    lost: str,
    driver: str | None,
    names: list[str],
    problem: str,
) -> None:
    """On a made-up NVML: a board that fell off the bus has a handle, and every reading fails."""
    monkeypatch.setitem(sys.modules, "pynvml", nvml(boards, lost, driver))
    devices, found = read_gpus()
    assert [device.name for device in devices] == names and found == problem
    assert [device.uuid[-1] for device in devices] == [name[-1] for name in names]
    assert all(device.memory_bytes == 2**36 and device.kind == "cuda" for device in devices)
    described = probe_host()
    assert [device.name for device in described.devices[1:]] == names
    assert described.versions.get("nvml", "") == problem


def test_where_gpus_are_and_what_is_near(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two boards behind switches of their own; the speed of an idle link is not its most."""
    two_sockets(tmp_path)
    boards = [
        Board("GPU-1", address="00000000:13:00.0", pcie_generation=(1, 4), nvlinks=[6, 6]),
        Board("GPU-2", address="00000000:A4:00.0", nvlinks=[6], switched=False),
        Board("GPU-3", address="00000000:77:00.0"),  # a container whose sysfs hides it
        Board("GPU-4", refuses={"nvmlDeviceGetPciInfo", "nvmlDeviceGetNvLinkRemoteDeviceType"}),
    ]
    monkeypatch.setitem(sys.modules, "pynvml", nvml(boards))
    first, second, hidden, silent = probe_host(tmp_path).devices[1:]
    assert first.pci is not None and second.pci is not None and hidden.pci is not None
    assert (first.pci.address, first.pci.numa_node, first.pci.generation) == ("0000:13:00.0", 0, 1)
    assert (first.pci.generation_max, first.pci.width_max) == (4, 16)
    assert first.nearest_cards == ["mlx5_0", "mlx5_1"]
    assert (first.nvlinks, first.nvswitch) == ({"4.0": 2}, True)
    assert second.nearest_cards == ["mlx5_2", "mlx5_3"] and second.nvswitch is False
    assert (hidden.pci.generation_max, hidden.pci.numa_node, hidden.nvswitch) == (5, None, None)
    assert silent.pci is None and silent.nearest_cards == []
    found = probe_host(tmp_path)
    card = found.network_cards[1]
    assert (card.name, card.pci and card.pci.numa_node) == ("mlx5_0", 0)
    assert found.hardware_words == (
        "2 sockets, 2 NUMA nodes, 5 network cards: eno1 of 0.125 GB/s, mlx5_0 of 25.0 GB/s, "
        "mlx5_1 of 25.0 GB/s, mlx5_2 of 25.0 GB/s, mlx5_3 of 25.0 GB/s"
    )
    assert found.sockets == 2 and [node.cores for node in found.numa] == ["0-3", "4-7"]


def test_where_devices_are_is_not_compared() -> None:
    """An idle link is slower, and a card may be down: the machine is the same."""
    link = PciLink(address="0000:01:00.0", generation=1, width=16)
    plain = host("h")
    cpu = plain.devices[0].model_copy(update={"pci": link, "clock_hz": 3e9, "simd": "avx2"})
    told = plain.model_copy(
        update={
            "devices": [cpu],
            "sockets": 2,
            "numa": [NumaNode(number=0, cores="0-7", memory_bytes=2**30)],
            "network_cards": [NetworkCard(name="mlx5_0", pci=link)],
        }
    )
    one, two = (
        Cluster(name="c", hosts=[each], levels=levels_of([each], 8)) for each in (plain, told)
    )
    assert one.fingerprint == two.fingerprint and one.machine == two.machine
    assert one.has_all_of(two) and two.has_all_of(one)
