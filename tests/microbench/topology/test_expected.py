"""What is expected of devices and links: by hand from data sheets, and beside logs of sound machines."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.helpers.published import DATA, needs_data

from calib.microbench.records.cluster import Cluster, Device, Host, Level, levels_of
from calib.microbench.records.hardware import NetworkCard, PciLink
from calib.microbench.topology.expected import Expected, expected_of
from calib.microbench.topology.sheets import SHEETS, sheet_of

H100 = "NVIDIA H100 80GB HBM3"


def gpu(name: str = H100, **fields: Any) -> Device:
    return Device(kind="cuda", name=name, count=1, memory_bytes=80 * 2**30, **fields)


def host(*devices: Device, name: str = "a", cards: list[NetworkCard] | None = None) -> Host:
    return Host(name=name, kernel="Linux", devices=list(devices), network_cards=cards or [])


def of(*hosts: Host, level: dict[str, Any] | None = None) -> dict[str, Expected]:
    """What is expected, by name."""
    levels = levels_of(hosts, 8)
    if level:
        levels[-1] = levels[-1].model_copy(update=level)
    found = expected_of(Cluster(name="c", hosts=list(hosts), levels=levels))
    assert all(each.low < each.value < each.high and each.source for each in found)
    # an interval that holds everything says nothing
    assert all(each.high < 7 * each.low for each in found)
    return {each.name: each for each in found}


def card(
    name: str = "mlx5_0", gbit: float = 400, fabric: str = "InfiniBand", **link: int
) -> NetworkCard:
    pci = PciLink(address="0000:01:00.0", **link) if link else None
    return NetworkCard(name=name, fabric=fabric, bandwidth=gbit * 1e9 / 8, pci=pci)


def test_an_h100() -> None:
    """Data sheet: 989 TFLOP/s of bfloat16 (1,979 with sparsity), 3.35 TB/s, PCIe 5.0 x16."""
    link = PciLink(address="0000:1b:00.0", generation=1, width=16, generation_max=5, width_max=16)
    found = of(host(gpu(pci=link)))
    assert set(found) == {
        *(f"matrix product {kind}" for kind in ("float32", "tf32", "float16", "bfloat16")),
        *("device memory", "host to device copy", "device to host copy"),
    }
    # 794.5 TFLOP/s is the most that is published [1]; 593 to 802 of larger products [2]
    product = found["matrix product bfloat16"]
    assert product.low <= 593e12 and 802e12 <= product.high < 989e12 and product.unit == "FLOP/s"
    # 2 x 1,286 GB/s of a copy [3]
    memory = found["device memory"]
    assert memory.low < 2573e9 < memory.high < 3350e9 and memory.per == "device"
    # 55.63 GB/s [4], idle or not
    copy = found["host to device copy"]
    assert copy.low < 55.63e9 < copy.high < 63.0e9
    assert copy.source == "PCIe 5.0 x16: 63.0 GB/s, of which sound ones reach 70% to 92%"
    assert copy.hosts == ("a",) and copy.of == H100


def test_half_as_many_lanes_are_not_expected() -> None:
    """A link that is trained down is not what sound ones have: the most of both ends counts."""
    link = PciLink(address="0000:1b:00.0", generation=4, width=8, generation_max=4, width_max=16)
    found = of(host(gpu("NVIDIA A100-PCIE-40GB", pci=link)))["host to device copy"]
    half = 16e9 * 128 / 130 / 8 * 8
    assert half < found.low


def test_of_unknown_devices_nothing_is_said() -> None:
    link = PciLink(address="0000:1b:00.0")
    names = (
        "Some GPU",
        "unknown",
        "",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "H1000",
        "NVIDIA A100-SXM-64GB",
    )
    assert of(*(host(gpu(name, pci=link)) for name in names)) == {}
    assert of(host(Device(kind="cpu", name="Arm", count=64, memory_bytes=1, clock_hz=3e9))) == {}
    assert of(host(Device(kind="cpu", name="x86", count=64, memory_bytes=1, simd="avx2"))) == {}


def test_every_sheet_is_of_one_name() -> None:
    names = [
        pattern.replace("[23]", "2").replace("(16|32)", "16").replace("(120|480)", "480")
        for pattern, _ in SHEETS
    ]
    assert [sheet_of(f"NVIDIA {name}") for name in names] == [sheet for _, sheet in SHEETS]
    assert [sheet_of(name) for name in names] == [sheet for _, sheet in SHEETS], "of older drivers"


def test_memory_of_a_grace_hopper_is_not_behind_pcie() -> None:
    link = PciLink(address="0000:1b:00.0", generation_max=5, width_max=16)
    assert "host to device copy" not in of(host(gpu("NVIDIA GH200 480GB", pci=link)))
    assert set(of(host(gpu("NVIDIA GB10", pci=link)))) == {"device memory"}


def test_a_core() -> None:
    """Two units that multiply and add 16 numbers of 4 B at 2 GHz: 128 GFLOP/s."""
    cpu = Device(kind="cpu", name="x", count=8, memory_bytes=1, clock_hz=2e9, simd="avx512")
    found = of(host(cpu))["matrix product float32"]
    assert found.per == "core" and found.value == pytest.approx(0.75 * 128e9)
    assert found.low < 64e9, "one unit"
    assert found.high > 128e9, "a turbo that is not stated"
    narrow = of(host(cpu.model_copy(update={"simd": "avx2"})))["matrix product float32"]
    assert narrow.high == pytest.approx(found.high / 2)


@pytest.mark.parametrize(
    ("devices", "pair", "node"),
    [
        # (links between two GPUs, links of each): 25 GB/s a link and direction
        ([gpu()] * 8, 18, 18),  # of a log: eight need a switch
        ([gpu(nvswitch=True)] * 2, 18, 18),
        ([gpu(nvswitch=False)] * 4, 6, 18),
        ([gpu()] * 4, None, 18),  # of a log: four of four, or of eight behind a switch
        ([gpu()] * 2, None, None),
        ([gpu("Tesla V100-SXM2-16GB", nvswitch=False)] * 4, 2, 6),
        ([gpu("Tesla V100-SXM2-16GB", nvswitch=False)] * 8, None, None),  # a cube mesh
        ([gpu("NVIDIA A100 80GB PCIe")] * 8, None, None),
        ([gpu("NVIDIA A100 80GB PCIe", nvswitch=False, nvlinks={"3.1": 12})] * 2, None, None),
        ([gpu("New GPU", nvswitch=True, nvlinks={"4.0": 8})] * 8, 8, 8),
        ([gpu("New GPU", nvswitch=True, nvlinks={"odd": 8})] * 8, None, None),
        ([gpu("New GPU", nvswitch=True, nvlinks={"99": 8})] * 8, None, None),
        ([gpu(), gpu("NVIDIA H200")] * 4, None, None),
        ([gpu()], None, None),
    ],
)
def test_links_of_gpus(devices: list[Device], pair: int | None, node: int | None) -> None:
    found = of(host(*devices))
    for name, links, usual in (
        ("between two GPUs", pair, 0.83),
        ("bus bandwidth within a node", node, 0.80),
    ):
        expected = found.get(name)
        assert (expected is None) == (links is None)
        if expected is not None and links is not None:
            assert expected.value == pytest.approx(usual * links * 25e9)


def test_links_between_nodes() -> None:
    cards = [card(f"mlx5_{n}", generation=5, width=16) for n in range(8)]
    slow = card("eno1", 1, "")
    hosts = [host(name=name, cards=[*cards, slow]) for name in "ab"]
    found = of(*hosts)
    one, node = found["network between nodes"], found["network of a node"]
    assert (one.low, one.per, one.hosts) == (pytest.approx(0.85 * 50e9), "link", ("a", "b"))
    assert node.value == pytest.approx(8 * one.value) and node.per == "node"
    assert one.source.startswith("mlx5_0 at 400 Gb/s (InfiniBand), of which sound ones reach 85%")
    assert of(hosts[0]) == {}, "a single host has nobody to talk with"


def test_a_slot_that_is_too_slow_bounds_the_network() -> None:
    """400 Gb/s behind PCIe 4.0 x16: 31.5 GB/s, less the headers of packets."""
    hosts = [host(name=name, cards=[card(generation_max=4, width_max=16)]) for name in "ab"]
    found = of(*hosts)["network between nodes"]
    assert found.high < 31.51e9 and "behind PCIe 4.0 x16: 31.5 GB/s" in found.source


def test_what_runs_slower_than_it_could_is_not_what_is_expected() -> None:
    """A card on half its lanes, and a port at half the rate of another of its model."""
    narrow = card(gbit=200, generation=4, width=8, generation_max=4, width_max=16)
    half = card(gbit=100).model_copy(update={"model": "15b3:101b"})
    whole = card(gbit=200).model_copy(update={"model": "15b3:101b"})
    for one, other in ((narrow, narrow), (half, whole)):
        hosts = [host(name="a", cards=[one]), host(name="b", cards=[other])]
        found = of(*hosts)["network between nodes"]
        assert found.hosts == ("a", "b") and found.low == pytest.approx(0.85 * 25e9)


def test_ethernet_without_rdma() -> None:
    """Of 10 Gb/s a connection of TCP carries 94% in frames of 1,500 B; of 100 often much less."""
    slow, fast = (
        of(*(host(name=name, cards=[card("eth0", gbit, "")]) for name in "ab"))[
            "network between nodes"
        ]
        for gbit in (10, 100)
    )
    assert slow.low < 0.94 * 1.25e9 < slow.high and slow.low > 0.9e9
    assert fast.low < 3e9 < fast.high and "Ethernet, TCP" in fast.source


def test_hosts_with_other_cards_are_told_apart() -> None:
    hosts = [host(name="a", cards=[card()]), host(name="b", cards=[card(gbit=200)])]
    cluster = Cluster(name="c", hosts=hosts, levels=levels_of(hosts, 1))
    assert [(x.hosts, round(x.value / 1e9, 1)) for x in expected_of(cluster)] == [
        (("a",), 47.5),
        (("b",), 23.8),
    ]


def test_links_that_were_declared() -> None:
    hosts = [host(name=name) for name in "ab"]
    assert of(*hosts) == {}
    found = of(*hosts, level={"bandwidth": 25e9, "links": 4})["network between nodes"]
    assert found.low < 0.92 * 25e9 < found.high < 25e9
    assert "level system: 4 links of 25 GB/s" in found.source
    known = of(*(host(name=name, cards=[card()]) for name in "ab"), level={"bandwidth": 25e9})
    assert known["network between nodes"].value > 25e9, "what the hosts have is known better"
    alone = host()
    declared = Level(name="node", members=8, link="x", bandwidth=1e9)
    assert expected_of(Cluster(name="c", hosts=[alone], levels=[declared])) == []


def bus_bandwidths(name: str, least: int) -> dict[str, float]:
    """Operation -> the best bus bandwidth, B/s, of messages of `least` B and more in a log."""
    found: dict[str, float] = {}
    operation = name
    for line in (DATA / name).read_text().splitlines():
        if started := re.match(r"# Collective test starting: (\w+)_perf", line):
            operation = started[1]
        words = line.split()
        if len(words) > 8 and words[0].isdecimal() and int(words[0]) >= least:
            # ... time, algbw, busbw, #wrong out of place, and the same in place
            busbw = float(words[-6]) * 1e9
            found[operation] = max(busbw, found.get(operation, 0.0))
    return found


@needs_data
@pytest.mark.parametrize(
    ("log", "name", "gpus", "operations"),
    [
        ("nccl-tests/xx_h100_1n8g_5coll.txt", H100, 8, 5),
        ("nccl-tests/sb_a100_1n8g_allreduce.txt", "A100-SXM4-40GB", 8, 1),
        ("nccl-tests/sb_a100_1n8g_allgather.txt", "A100-SXM4-40GB", 8, 1),
        ("nccl-tests/sb_a100_1n8g_alltoall.txt", "A100-SXM4-40GB", 8, 1),
        ("nccl-tests/sb_a100_1n8g_reducescatter.txt", "A100-SXM4-40GB", 8, 1),
    ],
)
def test_sound_nodes_reach_what_is_expected(
    log: str, name: str, gpus: int, operations: int
) -> None:
    expected = of(host(*[gpu(name)] * gpus))["bus bandwidth within a node"]
    measured = bus_bandwidths(log, 4 << 30)
    assert len(measured) == operations
    for operation, busbw in measured.items():
        assert expected.low <= busbw <= expected.high, operation


@needs_data
def test_a_sound_network_and_a_slow_one() -> None:
    """Over EDR (100 Gb/s), and 200 Gb/s RoCE; half of a link is not normal."""
    edr = of(*(host(name=name, cards=[card(gbit=100)]) for name in "ab"))["network between nodes"]
    lines = (DATA / "osu/stackhpc_alaska_ib-gcc9-openmpi4-ucx_Osu_bw.txt").read_text().splitlines()
    measured = max(float(line.split()[1]) for line in lines if line[:1].isdecimal()) * 1e6
    assert edr.low <= measured <= edr.high and measured / 2 < edr.low
    roce = of(*(host(name=name, cards=[card(gbit=200, fabric="Ethernet")]) for name in "ab"))
    (gb10,) = bus_bandwidths("nccl-tests/gb10_2.18.5_allgather_2n.txt", 1 << 30).values()
    found = roce["network between nodes"]
    assert found.low <= gb10 <= found.high
