"""What a host is built of, from made-up trees of sysfs, and beside lstopo, which reads the same."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from xml.etree.ElementTree import Element, fromstring

import pytest
from tests.helpers.sysfs import ETHERNET, Tree, two_sockets

from calib.microbench.machine.hardware import (
    nearest_cards,
    network_cards,
    numa,
    pci_link,
    pci_path,
    processor,
    sockets,
)
from calib.microbench.probe import probe_host
from calib.microbench.records.hardware import NetworkCard, PciLink, link_bandwidth

LSTOPO = shutil.which("lstopo-no-graphics")
needs_lstopo = pytest.mark.skipif(LSTOPO is None, reason="hwloc is not installed")


def card(tree: Tree, name: str = "eth0", slot: tuple[int, int] = (4, 16), **link: object) -> Path:
    """A card with an interface, in a slot of this generation and width."""
    tree.device("0000:00:01.0", most=slot)
    device = tree.device("0000:00:01.0", "0000:01:00.0", kind=ETHERNET, **link)  # type: ignore[arg-type]
    tree.interface(device, name, 25000)
    return device


def test_two_sockets(tmp_path: Path) -> None:
    two_sockets(tmp_path)
    assert sockets(tmp_path) == 2
    assert [(node.number, node.cores, node.memory_bytes) for node in numa(tmp_path)] == [
        (0, "0-3", 2**30),
        (1, "4-7", 2 * 2**30),
    ]
    cards = network_cards(tmp_path)
    assert [each.name for each in cards] == ["eno1", "mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]
    assert cards[3] == NetworkCard(
        name="mlx5_2",
        interfaces=["ib2"],
        model="15b3:101b",
        fabric="InfiniBand",
        bandwidth=25e9,
        lanes=4,
        pci=PciLink(
            address="0000:a5:00.0",
            generation=4,
            width=16,
            generation_max=4,
            width_max=16,
            numa_node=1,
        ),
    )
    assert cards[0].bandwidth == 0.125e9 and not cards[0].fabric


def test_numa_nodes_are_folders_with_a_number(tmp_path: Path) -> None:
    """A kernel has other files beside them; nodes of memory alone have no cores."""
    place = tmp_path / "sys/devices/system/node"
    for name in ("node10", "node2", "node0", "nodes", "possible"):
        (place / name).mkdir(parents=True)
    (place / "node2/cpulist").write_text("\n")
    found = numa(tmp_path)
    assert [(node.number, node.cores, node.memory_bytes) for node in found] == [
        (0, "", 0),
        (2, "", 0),
        (10, "", 0),
    ]
    host = probe_host(tmp_path)
    assert host.numa_nodes == 3 and probe_host(tmp_path / "none").numa_nodes == 1


def test_the_nearest_cards_share_the_gpu_s_switch(tmp_path: Path) -> None:
    two_sockets(tmp_path)
    cards = network_cards(tmp_path)
    for gpu, near in (("0000:13:00.0", "01"), ("0000:14:00.0", "01"), ("0000:a3:00.0", "23")):
        assert nearest_cards(gpu, cards, tmp_path) == [f"mlx5_{n}" for n in near]
    slow = [each for each in cards if each.name == "eno1"]
    assert nearest_cards("0000:13:00.0", slow, tmp_path) == ["eno1"], "there is no faster one"
    assert nearest_cards("0000:a3:00.0", slow, tmp_path) == [], "behind the other socket"
    assert nearest_cards("0000:ff:00.0", cards, tmp_path) == [], "of a GPU that sysfs does not have"


def test_cards_of_the_same_node_are_nearer(tmp_path: Path) -> None:
    """Each behind a host bridge of its own, as on many boards: the NUMA node decides."""
    tree = Tree(tmp_path)
    for bus, node in (("0000:00", 0), ("0000:40", 0), ("0000:80", 1)):
        tree.interface(tree.device(f"{bus}:01.0", kind=ETHERNET, node=node), f"eth{bus[5]}", 25000)
    tree.device("0000:20:01.0", node=1)
    cards = network_cards(tmp_path)
    assert nearest_cards("0000:20:01.0", cards, tmp_path) == ["eth8"]


def test_a_card_that_is_down_is_not_nearest(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.cores(["0"], [0])
    for function, state in (("0", "1: DOWN"), ("1", "4: ACTIVE")):
        tree.port(
            tree.device(f"0000:00:01.{function}", kind=ETHERNET), f"mlx5_{function}", state=state
        )
    found = network_cards(tmp_path)
    assert [each.bandwidth for each in found] == [None, 25e9] and found[0].lanes is None
    assert nearest_cards("0000:00:01.0", found, tmp_path) == ["mlx5_1"]


@pytest.mark.parametrize(
    ("now", "most", "slot", "found"),
    [
        ((4, 16), (4, 16), (4, 16), (4, 16, 4, 16)),
        ((4, 8), (4, 16), (4, 16), (4, 8, 4, 16)),  # trained down
        ((3, 8), (4, 16), (3, 8), (3, 8, 3, 8)),  # as much as the slot has
        ((3, 0), (4, 16), (4, 16), (3, None, 4, 16)),  # a virtual function
        ((3, 255), (4, 255), (4, 16), (3, None, 4, 16)),
    ],
)
def test_a_link_and_the_most_of_both_ends(
    tmp_path: Path,
    now: tuple[int, int],
    most: tuple[int, int],
    slot: tuple[int, int],
    found: tuple[int | None, ...],
) -> None:
    card(Tree(tmp_path), slot=slot, now=now, most=most)
    link = pci_link("0000:01:00.0", tmp_path)
    assert (link.generation, link.width, link.generation_max, link.width_max) == found
    assert link.numa_node is None


def test_words_of_other_kernels(tmp_path: Path) -> None:
    device = card(Tree(tmp_path))
    for said, generation in (
        ("16 GT/s", 4),
        ("Unknown", None),
        ("", None),
        ("Unknown speed", None),
    ):
        (device / "current_link_speed").write_text(said + "\n")
        link = pci_link("0000:01:00.0", tmp_path)
        assert link.generation == generation
        assert link.words == ("PCIe 4.0 x16" if generation else "")


@pytest.mark.parametrize(
    ("rate", "layer", "bandwidth", "fabric", "lanes"),
    [
        ("400 Gb/sec (4X NDR)", "InfiniBand", 50e9, "InfiniBand", 4),
        ("100 Gb/sec (2X HDR)", "InfiniBand", 12.5e9, "InfiniBand", 2),
        ("2.5 Gb/sec (1X SDR)", "InfiniBand", 0.3125e9, "InfiniBand", 1),
        ("100 Gb/sec (4X EDR)", "Ethernet", 12.5e9, "Ethernet", None),
        ("100 Gb/sec (4X EDR)", "Unknown", 12.5e9, "", None),  # EFA
        ("", "InfiniBand", None, "InfiniBand", None),
        ("0 Gb/sec", "InfiniBand", None, "InfiniBand", None),
        ("fast", "InfiniBand", None, "InfiniBand", None),
    ],
)
def test_rates_of_ports(
    tmp_path: Path, rate: str, layer: str, bandwidth: float | None, fabric: str, lanes: int | None
) -> None:
    tree = Tree(tmp_path)
    tree.port(tree.device("0000:00:01.0"), "mlx5_0", rate, layer)
    (found,) = network_cards(tmp_path)
    assert (found.bandwidth, found.fabric, found.lanes) == (bandwidth, fabric, lanes)


def test_cards_that_are_no_hardware_are_left_out(tmp_path: Path) -> None:
    """Bridges and tunnels have no device; a card of Hyper-V has one that is not on the PCI bus."""
    tree = Tree(tmp_path)
    tree.write("sys/class/net/docker0/speed", "10000")
    vmbus = tree.write("sys/devices/vmbus/1/uevent", "").parent
    tree.interface(vmbus, "eth0", -1)
    slingshot = tree.device("0000:00:01.0", kind=ETHERNET)
    tree.interface(slingshot, "hsn0", 200000)
    (slingshot / "cxi/cxi0").mkdir(parents=True)
    virtio = tree.device("0000:00:03.0", kind=ETHERNET) / "virtio2"
    virtio.mkdir()
    tree.interface(virtio, "eth1", 2**32 - 1)
    eth0, eth1, hsn0 = network_cards(tmp_path)
    assert eth0 == NetworkCard(name="eth0", interfaces=["eth0"])
    assert eth1.pci is not None and eth1.pci.address == "0000:00:03.0" and eth1.bandwidth is None
    assert (hsn0.fabric, hsn0.bandwidth) == ("Slingshot", 25e9)


def test_nothing_is_known_without_sysfs(tmp_path: Path) -> None:
    assert sockets(tmp_path) == 0 and numa(tmp_path) == [] and network_cards(tmp_path) == []
    assert processor(tmp_path) == {"clock_hz": None, "simd": ""}
    assert pci_path("0000:00:01.0", tmp_path) == ()
    assert pci_link("0000:00:01.0", tmp_path) == PciLink(address="0000:00:01.0")


@pytest.mark.parametrize(
    ("flags", "simd"),
    [
        ("fpu avx avx2 fma avx512f", "avx512"),
        ("fpu avx avx2 fma", "avx2"),
        ("fpu avx avx2", ""),  # adds and multiplies one after the other
        ("fp asimd", ""),
    ],
)
def test_the_processor(tmp_path: Path, flags: str, simd: str) -> None:
    tree = Tree(tmp_path)
    tree.write(
        "proc/cpuinfo",
        f"processor\t: 0\ncpu MHz\t\t: 1800.5\nflags\t\t: {flags}\n\n"
        f"processor\t: 1\ncpu MHz\t\t: 2100.000\nflags\t\t: {flags}\n",
    )
    assert processor(tmp_path) == {"clock_hz": 2.1e9, "simd": simd}
    tree.write("sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "3800000")
    assert processor(tmp_path)["clock_hz"] == 3.8e9


@pytest.mark.parametrize(
    ("generation", "width", "gigabytes"),
    # PCI-SIG's table of x16, each way, to three digits: 4, 8, 15.8, 31.5, 63, 121
    [(1, 16, 4.0), (2, 16, 8.0), (3, 16, 15.75), (4, 16, 31.51), (5, 16, 63.02), (6, 16, 121.0)],
)
def test_bandwidth_of_links(generation: int, width: int, gigabytes: float) -> None:
    found = link_bandwidth(generation, width)
    assert found is not None and found / 1e9 == pytest.approx(gigabytes, rel=1e-3)
    assert link_bandwidth(generation, None) is link_bandwidth(None, width) is None


def lstopo(*arguments: str) -> Element:
    """What hwloc finds, by Linux's files alone."""
    assert LSTOPO is not None
    answer = subprocess.run(
        [LSTOPO, *arguments, "--of", "xml", "--whole-system", "--whole-io"],
        env={**os.environ, "HWLOC_COMPONENTS": "linux,stop"},
        capture_output=True,
        text=True,
        check=True,
    )
    return fromstring(answer.stdout)


def of_type(topology: Element, kind: str) -> list[Element]:
    return [each for each in topology.iter("object") if each.get("type") == kind]


def compare_with(topology: Element, root: Path) -> int:
    """Assert that hwloc finds the same below a root; how many network cards."""
    assert len(of_type(topology, "Package")) == sockets(root)
    # hwloc leaves out the memory of GPUs, which has no cores
    nodes = {
        each.get("os_index")
        for each in of_type(topology, "NUMANode")
        if int(each.get("cpuset", "0").replace(",", "").replace("0x", "") or "0", 16)
    }
    assert nodes == {str(node.number) for node in numa(root) if node.cores}
    bits = topology.get("version", "").startswith("3")  # of network and OpenFabrics
    theirs: dict[str, set[str]] = {}
    for device in of_type(topology, "PCIDev"):
        address = device.get("pci_busid", "")
        speed = pci_link(address, root).bandwidth or 0.0
        assert float(device.get("pci_link_speed", "0")) == pytest.approx(speed / 1e9, rel=0.01)
        for child in device.findall("object[@type='OSDev']"):
            kind = int(child.get("osdev_type", "0"))
            if kind & (16 | 32) if bits else kind in (2, 3):
                theirs.setdefault(address, set()).add(child.get("name", ""))
    ours = {c.pci.address: {c.name, *c.interfaces} for c in network_cards(root) if c.pci}
    assert ours == theirs
    return len(ours)


@needs_lstopo
def test_hwloc_finds_the_same_in_a_made_up_host(tmp_path: Path) -> None:
    two_sockets(tmp_path)
    assert compare_with(lstopo("-i", str(tmp_path), "--if", "fsroot"), tmp_path) == 5


@needs_lstopo
def test_hwloc_finds_the_same_here() -> None:
    topology = lstopo()
    if not numa() or not Path("/sys/bus/pci/devices").is_dir():
        pytest.skip("no NUMA node or no PCI bus to be seen")
    compare_with(topology, Path("/"))
