"""A made-up host as Linux lists it: `Tree(root)` writes the files of sysfs and procfs below a root.

`two_sockets` is half a DGX A100: a PCIe switch with two GPUs and two cards on each socket, and a slow
card for management beside the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

BRIDGE, GPU, ETHERNET, INFINIBAND = "0x060400", "0x030200", "0x020000", "0x020700"
SPEEDS = {1: "2.5 GT/s PCIe", 3: "8.0 GT/s PCIe", 4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe"}
ACS_AT, ACS_ID, VENDOR_AT = 0x140, 0x000D, 0x100
SWITCHES = {0: "0000:10", 1: "0000:a0"}  # socket -> where its host bridge begins


def configuration(redirect: bool, length: int = 4096) -> bytes:
    """A configuration space with two extended capabilities, the second of which is ACS.

    Laid out by hand as the PCI Express specification has it (7.6.3 and 7.7.11).
    """
    space = bytearray(length)
    if length > ACS_AT:
        # version in bits 16 to 19, the next capability's place above
        space[VENDOR_AT : VENDOR_AT + 4] = (0x000B | 1 << 16 | ACS_AT << 20).to_bytes(4, "little")
        space[ACS_AT : ACS_AT + 4] = (ACS_ID | 1 << 16).to_bytes(4, "little")
        # what it could do, then what is on: source validation always, request redirect if asked
        space[ACS_AT + 4 : ACS_AT + 6] = (0x1F).to_bytes(2, "little")
        space[ACS_AT + 6 : ACS_AT + 8] = (0x01 | redirect << 2).to_bytes(2, "little")
    return bytes(space)


@dataclass(frozen=True)
class Tree:
    """What is written below `root`."""

    root: Path

    def write(self, name: str, text: str | bytes) -> Path:
        """A file below the root."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else f"{text}\n".encode())
        return path

    def link(self, name: str, target: Path) -> None:
        """A symbolic link below the root, as sysfs has them."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

    def cores(self, nodes: list[str], sockets: list[int], governor: str = "") -> None:
        """A core for each entry of `sockets`, and NUMA nodes with these lists of cores."""
        self.write("sys/devices/system/cpu/online", f"0-{len(sockets) - 1}")
        for core, socket in enumerate(sockets):
            place = f"sys/devices/system/cpu/cpu{core}"
            self.write(f"{place}/topology/physical_package_id", str(socket))
            self.write(f"{place}/topology/core_id", str(core))
            self.write(f"{place}/topology/thread_siblings_list", str(core))
            self.write(f"{place}/topology/core_cpus", f"{1 << core:x}")
            package = sum(1 << n for n, other in enumerate(sockets) if other == socket)
            self.write(f"{place}/topology/package_cpus", f"{package:x}")
            if governor:
                self.write(f"{place}/cpufreq/scaling_governor", governor)
        for number, cores in enumerate(nodes):
            place = f"sys/devices/system/node/node{number}"
            self.write(f"{place}/cpulist", cores)
            first, _, last = cores.partition("-")
            mask = sum(1 << core for core in range(int(first), int(last or first) + 1))
            self.write(f"{place}/cpumap", f"{mask:x}")
            self.write(
                f"{place}/meminfo",
                f"Node {number} MemTotal:       {(number + 1) << 20} kB\nNode {number} MemFree: 7 kB",
            )
        self.write("sys/devices/system/node/online", f"0-{len(nodes) - 1}")
        self.write("sys/devices/system/node/possible", f"0-{len(nodes) - 1}")

    def device(
        self,
        *path: str,
        kind: str = BRIDGE,
        ids: tuple[str, str] = ("0x8086", "0x0001"),
        node: int = -1,
        now: tuple[int, int] = (4, 16),
        most: tuple[int, int] = (4, 16),
        redirect: bool = False,
        readable: bool = True,
    ) -> Path:
        """A PCI device at the end of a path of bridges (0000:bb:dd.f), from the host bridge's bus on.

        `now` and `most` are generation and width of its link.
        """
        address = path[-1]
        place = "/".join((f"sys/devices/pci{path[0][:7]}", *path))
        files = {
            "class": kind,
            "vendor": ids[0],
            "device": ids[1],
            "subsystem_vendor": "0x0000",
            "subsystem_device": "0x0000",
            "revision": "0x00",
            "numa_node": str(node),
            "current_link_speed": SPEEDS[now[0]],
            "current_link_width": str(now[1]),
            "max_link_speed": SPEEDS[most[0]],
            "max_link_width": str(most[1]),
        }
        for name, text in files.items():
            self.write(f"{place}/{name}", text)
        self.write(f"{place}/config", configuration(redirect, 4096 if readable else 64))
        self.link(f"sys/bus/pci/devices/{address}", self.root / place)
        return self.root / place

    def interface(self, device: Path, name: str, mbit: int) -> None:
        """A network interface of a device."""
        place = device / "net" / name
        self.write(str((place / "speed").relative_to(self.root)), str(mbit))
        (place / "device").symlink_to(device)
        self.link(f"sys/class/net/{name}", place)

    def port(
        self,
        device: Path,
        name: str,
        rate: str = "200 Gb/sec (4X HDR)",
        layer: str = "InfiniBand",
        state: str = "4: ACTIVE",
    ) -> None:
        """An RDMA device with one port."""
        place = device / "infiniband" / name
        for file, text in (("rate", rate), ("link_layer", layer), ("state", state)):
            self.write(str((place / "ports/1" / file).relative_to(self.root)), text)
        (place / "device").symlink_to(device)
        self.link(f"sys/class/infiniband/{name}", place)


def two_sockets(root: Path, redirect: bool = False, readable: bool = True) -> Tree:
    """Two sockets of four cores; behind each a switch with two GPUs and two cards of HDR."""
    tree = Tree(root)
    tree.cores(["0-3", "4-7"], [0] * 4 + [1] * 4)
    for socket, bus in SWITCHES.items():
        begin = bus[:6]  # 0000:1, 0000:a
        up = (f"{bus}:01.0", f"{begin}1:00.0")
        for bridge in (up[:1], up):
            tree.device(*bridge, node=socket)
        for slot in range(4):
            down = (*up, f"{begin}2:0{slot}.0")
            tree.device(*down, node=socket, redirect=redirect, readable=readable)
            end = (*down, f"{begin}{slot + 3}:00.0")
            if slot < 2:
                tree.device(*end, kind=GPU, ids=("0x10de", "0x20b0"), node=socket)
            else:
                card = tree.device(*end, kind=INFINIBAND, ids=("0x15b3", "0x101b"), node=socket)
                tree.interface(card, f"ib{2 * socket + slot - 2}", 200000)
                tree.port(card, f"mlx5_{2 * socket + slot - 2}")
    beside = ("0000:10:03.0", "0000:18:00.0")
    tree.device(beside[0], node=0, now=(1, 1))
    management = tree.device(*beside, kind=ETHERNET, node=0, now=(1, 1), most=(1, 1))
    tree.interface(management, "eno1", 1000)
    return tree
