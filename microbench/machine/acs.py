"""Access Control Services of PCIe bridges, which send what devices tell one another through the CPU.

References
----------
PCI Express Base Specification 6.0, 7.7.11 (ACS Extended Capability: control register at offset 6, bit 2
P2P Request Redirect); NVIDIA, NCCL User Guide, Troubleshooting, "PCI Access Control Services (ACS)".
"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

from calib.microbench.machine.hardware import DEVICES, in_common, is_gpu, is_network, pci_path
from calib.microbench.machine.network import ROOT

FIRST_EXTENDED = 0x100  # where extended capabilities begin in a device's configuration
ACS = 0x000D
CONTROL = 6
REQUEST_REDIRECT = 1 << 2


def redirecting_bridges(root: Path = ROOT) -> list[str]:
    """Bridges of PCIe switches that redirect what a GPU and its neighbours on the switch exchange.

    Only where two devices have a bridge in common, one a GPU, the other a GPU or a network card: others
    meet in the CPU anyway. Without the right to read configurations (root), none.
    """
    addresses = [place.name for place in (root / DEVICES).glob("*")]
    gpus = {address for address in addresses if is_gpu(address, root)}
    ends = gpus | {address for address in addresses if is_network(address, root)}
    paths = {address: pci_path(address, root) for address in sorted(ends)} if gpus else {}
    between: set[str] = set()
    for one, other in combinations(paths, 2):
        common = in_common(paths[one], paths[other])
        if common > 1 and not gpus.isdisjoint((one, other)):  # more than the host bridge
            between |= {*paths[one][common:-1], *paths[other][common:-1]}
    return sorted(bridge for bridge in between if redirects(_configuration(bridge, root)))


def redirects(configuration: bytes) -> bool:
    """Whether P2P Request Redirect is on in the configuration space of a device [4096 B]."""
    place, seen = FIRST_EXTENDED, set[int]()
    while place >= FIRST_EXTENDED and place + 8 <= len(configuration) and place not in seen:
        seen.add(place)
        header = int.from_bytes(configuration[place : place + 4], "little")
        if header & 0xFFFF == ACS:
            control = configuration[place + CONTROL : place + CONTROL + 2]
            return bool(int.from_bytes(control, "little") & REQUEST_REDIRECT)
        place = header >> 20
    return False


def _configuration(address: str, root: Path) -> bytes:
    """What may be read: 64 B without root, which hold no extended capability."""
    try:
        return (root / DEVICES / address / "config").read_bytes()
    except OSError:
        return b""
