"""What this host is built of, as Linux lists it in sysfs (read only): the tree that hwloc reads, too.

Every function takes the root that holds sys and proc. What the system does not say (another system, a
virtual machine, a container without sysfs) is None, 0, "" or missing.

References
----------
Documentation/ABI/testing/sysfs-bus-pci, sysfs-devices-node, ABI/stable/sysfs-class-infiniband.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from calib.microbench.machine.network import ROOT
from calib.microbench.records.hardware import NetworkCard, NumaNode, PciLink
from calib.microbench.topology.found import SLOW_LINK

DEVICES = "sys/bus/pci/devices"
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
# GT/s of a lane -> generation of PCIe
GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
# classes of PCI devices (pci.ids): 3D controllers, other displays, accelerators; NVIDIA and AMD
GPU_CLASSES, DISPLAY, GPU_VENDORS = ("0x0302", "0x0380", "0x1200"), "0x0300", ("0x10de", "0x1002")
UNKNOWN_WIDTHS = (0, 255)  # of functions without a link of their own, as virtual ones
RATE = re.compile(r"([\d.]+) Gb/sec(?: \((\d+)X)?")
ACTIVE = "4:"  # of a port: "4: ACTIVE"


def sockets(root: Path = ROOT) -> int:
    """Of processors; 0 unknown."""
    places = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/topology/physical_package_id")
    return len({number for place in places if (number := read_text(place)) and number != "-1"})


def numa(root: Path = ROOT) -> list[NumaNode]:
    """The NUMA nodes, in the order of their numbers."""
    found = []
    for place in (root / "sys/devices/system/node").glob("node[0-9]*"):
        total = re.search(r"MemTotal:\s*(\d+) kB", read_text(place / "meminfo"))
        found.append(
            NumaNode(
                number=int(place.name.removeprefix("node")),
                cores=read_text(place / "cpulist"),
                memory_bytes=int(total[1]) * 1024 if total else 0,
            )
        )
    return sorted(found, key=lambda node: node.number)


def socket_of(core: int, root: Path = ROOT) -> int | None:
    """The socket of a core; None unknown."""
    found = read_number(root / f"sys/devices/system/cpu/cpu{core}/topology/physical_package_id")
    return None if found is None or found < 0 else found


def processor(root: Path = ROOT) -> dict[str, Any]:
    """The fields of a Device that the system states of its CPU: clock_hz, simd."""
    said = read_text(root / "proc/cpuinfo")
    most = read_number(root / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
    stated = [float(mhz) for mhz in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", said, re.MULTILINE)]
    clock_hz = most * 1e3 if most else max(stated, default=0.0) * 1e6
    flags = re.search(r"^flags\s*:(.*)$", said, re.MULTILINE)
    words = set(flags[1].split()) if flags else set()
    simd = "avx512" if "avx512f" in words else "avx2" if {"avx2", "fma"} <= words else ""
    return {"clock_hz": clock_hz or None, "simd": simd}


def pci_path(address: str, root: Path = ROOT) -> tuple[str, ...]:
    """Host bridge, bridges and the device itself, from the outermost; empty where there is none."""
    place = root / DEVICES / address
    if not place.exists():
        return ()
    parts = place.resolve().parts
    start = next((n for n, part in enumerate(parts) if HOST_BRIDGE.fullmatch(part)), len(parts))
    return parts[start:]


def in_common(one: Sequence[str], other: Sequence[str]) -> int:
    """How many of the first parts of two paths are the same."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def pci_link(address: str, root: Path = ROOT) -> PciLink:
    """The link of a device on the PCI bus; of an address that sysfs does not have, the address alone."""
    place = root / DEVICES / address
    path = pci_path(address, root)
    ends = [
        place,
        *(root / DEVICES / bridge for bridge in path[-2:-1] if ADDRESS.fullmatch(bridge)),
    ]
    node = read_number(place / "numa_node")
    return PciLink(
        address=address,
        generation=_generation(place / "current_link_speed"),
        width=_width(place / "current_link_width"),
        generation_max=_least(_generation(end / "max_link_speed") for end in ends),
        width_max=_least(_width(end / "max_link_width") for end in ends),
        numa_node=None if node is None or node < 0 else node,
    )


def network_cards(root: Path = ROOT) -> list[NetworkCard]:
    """The network cards of hardware, by name: on the PCI bus, or with a driver of their own."""
    groups: dict[str, dict[str, list[Path]]] = {}
    for kind in ("infiniband", "net"):
        for place in sorted((root / "sys/class" / kind).glob("*")):
            if not (place / "device").exists():
                continue  # bridges, VLANs, tunnels
            parts = (place / "device").resolve().parts
            address = next((part for part in reversed(parts) if ADDRESS.fullmatch(part)), "")
            groups.setdefault(address or place.name, {}).setdefault(kind, []).append(place)
    cards = [_card(key, found, root) for key, found in groups.items()]
    return sorted(cards, key=lambda card: card.name)


def nearest_cards(address: str, cards: Sequence[NetworkCard], root: Path = ROOT) -> list[str]:
    """The names of the cards that are nearest to a device: with most bridges in common, then its node.

    Much slower cards are for management and do not count, nor do those that are down beside some that
    are not. None where all are equally far: on other host bridges and NUMA nodes, or unknown.
    """
    fastest = max((card.bandwidth or 0.0 for card in cards), default=0.0)
    mine, node = pci_path(address, root), pci_link(address, root).numa_node
    near: dict[tuple[int, bool], list[str]] = {}
    for card in cards:
        if card.pci is None or (card.bandwidth or 0.0) < SLOW_LINK * fastest:
            continue
        other = pci_path(card.pci.address, root)
        common = in_common(mine, other)
        near.setdefault((common, node is not None and card.pci.numa_node == node), []).append(
            card.name
        )
    nearest = max(near, default=(0, False))
    return sorted(near[nearest]) if any(nearest) else []


def is_gpu(address: str, root: Path = ROOT) -> bool:
    """Whether a PCI device is an accelerator, or a display of those who make GPUs, by its class."""
    kind = read_text(root / DEVICES / address / "class")
    vendor = read_text(root / DEVICES / address / "vendor")
    return kind.startswith(GPU_CLASSES) or (kind.startswith(DISPLAY) and vendor in GPU_VENDORS)


def is_network(address: str, root: Path = ROOT) -> bool:
    """Whether a PCI device is a network card, by its class."""
    return read_text(root / DEVICES / address / "class").startswith("0x02")


def _card(key: str, found: Mapping[str, Sequence[Path]], root: Path) -> NetworkCard:
    """The card of an address (or of a name, where it is not on PCI) from its folders in sysfs."""
    pci = key if ADDRESS.fullmatch(key) else ""
    interfaces = [place.name for place in found.get("net", ())]
    ports = [port for place in found.get("infiniband", ()) for port in place.glob("ports/*")]
    port = max(map(_port, ports), key=lambda each: each["bandwidth"] or 0.0, default={})
    speeds = [speed for place in found.get("net", ()) if (speed := _speed(place))]
    about: dict[str, Any] = {"bandwidth": max(speeds, default=None), **port}
    place = root / DEVICES / pci
    if pci:
        words = [read_text(place / name).removeprefix("0x") for name in ("vendor", "device")]
        about["model"] = ":".join(words) if all(words) else ""
        about["pci"] = pci_link(pci, root)
        if any(place.glob("cxi/cxi*")):
            about["fabric"] = "Slingshot"
    names = [each.name for each in found.get("infiniband", ())] or interfaces
    return NetworkCard(name=names[0], interfaces=interfaces, **about)


def _port(place: Path) -> dict[str, Any]:
    """Fields of a NetworkCard that a port of RDMA tells."""
    fabric = read_text(place / "link_layer")
    rate = RATE.match(read_text(place / "rate"))
    active = read_text(place / "state").startswith(ACTIVE) and rate is not None
    lanes = int(rate[2]) if rate and rate[2] and active and fabric == "InfiniBand" else None
    return {
        "fabric": fabric if fabric in ("InfiniBand", "Ethernet") else "",
        "bandwidth": float(rate[1]) * 1e9 / 8 if rate and active and float(rate[1]) else None,
        "lanes": lanes,
    }


def _speed(place: Path) -> float | None:
    """B/s of an interface; None down or unknown. Some drivers say 2^32 - 1 for unknown."""
    mbit = read_number(place / "speed")
    return mbit * 1e6 / 8 if mbit and 0 < mbit < 2**31 else None


def _generation(place: Path) -> int | None:
    """Of `16.0 GT/s PCIe`, or `8 GT/s` of older kernels."""
    word = read_text(place).partition(" ")[0]
    try:
        return GENERATIONS.get(float(word))
    except ValueError:
        return None


def _width(place: Path) -> int | None:
    width = read_number(place)
    return None if width is None or width in UNKNOWN_WIDTHS or width < 0 else width


def _least(found: Iterator[int | None]) -> int | None:
    return min((each for each in found if each is not None), default=None)


def read_text(path: Path) -> str:
    """The stripped content of a file of sysfs; "" where it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):  # a card that is down refuses to tell its speed
        return ""


def read_number(path: Path) -> int | None:
    """A whole number in a file of sysfs; None where there is none."""
    try:
        return int(read_text(path))
    except ValueError:
        return None
