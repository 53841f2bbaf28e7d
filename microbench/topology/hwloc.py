"""A host as hwloc writes it (`lstopo host.xml`, `lstopo --of xml`): GPUs, network cards, NUMA nodes.

References
----------
hwloc 2 and 3, hwloc2.dtd; include/hwloc.h, hwloc_obj_osdev_type_e, whose numbers became bits in
version 3; topology-linux.c for the attributes of InfiniBand ports (PortNState, 4 is active).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from xml.etree.ElementTree import Element, ParseError, fromstring

from calib.foundation.errors import FileError
from calib.microbench.topology.found import FoundHost, FoundTopology

# types of a device of the operating system, before version 3 and as bits from it on
NETWORK, OPENFABRICS = (2, 16), (3, 32)
FABRICS = re.compile(r"(?:hsn|bxi|cxi)\d+")  # network interfaces of Slingshot and BXI
GPU_CLASSES, DISPLAYS = ("0302", "0380", "1200"), ("[10de:", "[1002:")
PORT_STATE, ACTIVE = re.compile(r"Port\d+State"), "4"


def is_xml(text: str) -> bool:
    """Whether it looks like XML."""
    return text.lstrip().startswith("<")


def read_hwloc(text: str) -> FoundTopology:
    """The topology of one host. Raises FileError where it is no XML of hwloc.

    A card's speed is that of its PCI link, which is faster than its port: hwloc does not tell that.
    """
    if "<!ENTITY" in text:
        raise FileError("it defines entities, which hwloc's files do not")
    try:
        root = fromstring(text)
    except (ParseError, ValueError) as error:
        raise FileError(f"it is truncated or no XML ({error})") from error
    if root.tag != "topology":
        raise FileError(f"it is XML with {root.tag!a:.40} outermost, where hwloc has topology")
    bits = root.get("version", "0").partition(".")[0] >= "3"
    cards, networks, gpus = [], [], 0
    for pci in _objects(root, "PCIDev"):
        gpus += _is_gpu(pci.get("pci_type", ""))
        speed = _speed(pci.get("pci_link_speed", ""))
        for device in pci.findall("object[@type='OSDev']"):
            if _is(device, OPENFABRICS, bits):
                cards += [speed] if _is_active(device) else []
            elif _is(device, NETWORK, bits) and FABRICS.fullmatch(device.get("name", "")):
                networks.append(speed)
    name = next(
        (of.get("value", "") for of in root.iter("info") if of.get("name") == "HostName"), ""
    )
    notes = (
        () if cards or networks else ("no card of InfiniBand, RoCE or Slingshot that is active",)
    )
    host = FoundHost(name, tuple(cards or networks), gpus)
    return FoundTopology("hwloc", (host,), of_one_host=True, notes=notes)


def _objects(root: Element, kind: str) -> Iterator[Element]:
    return (each for each in root.iter("object") if each.get("type") == kind)


def _is(device: Element, kind: tuple[int, int], bits: bool) -> bool:
    """Whether a device of the operating system is of a type."""
    number = device.get("osdev_type", "")
    if not (number.isascii() and number.isdecimal()) or len(number) > 9:
        return False
    return bool(int(number) & kind[1]) if bits else int(number) == kind[0]


def _is_active(device: Element) -> bool:
    """Whether a port has a link; where hwloc does not say, it counts."""
    states = [
        of.get("value") for of in device.findall("info") if PORT_STATE.fullmatch(of.get("name", ""))
    ]
    return not states or ACTIVE in states


def _is_gpu(pci_type: str) -> bool:
    """By the class of its PCI device: an accelerator, or a display of those who make GPUs."""
    kind = pci_type[:4]
    return kind in GPU_CLASSES or (kind == "0300" and any(of in pci_type for of in DISPLAYS))


def _speed(text: str) -> float | None:
    """B/s of a PCI link, which hwloc gives in GB/s and 0 where it is unknown."""
    try:
        speed = float(text) * 1e9
    except ValueError:
        return None
    return speed if math.isfinite(speed) and speed > 0 else None
