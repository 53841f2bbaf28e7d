"""What the network of this host has carried, sent again and held up so far (Linux, read only).

A NIC counts for all processes. Whose bytes they were it does not say: foreign are those of a time in
which the ranks sent nothing.

Bytes are those of hardware interfaces. Bridges, bonds, VLANs and tunnels carry the same bytes again and
are left out, as is an InfiniBand interface for IP, whose port counts them, too. Where there is no
hardware (a container, a network namespace), they are those of what is there but loopback. Ports of RoCE
count what is sent by RDMA alone, which the interface does not: both count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from calib.microbench.machine.ethtool import pauses, statistics_of

ROOT = Path("/")
INFINIBAND = "32"  # ARPHRD_INFINIBAND: the type of an interface for IP over InfiniBand
LANES = 4  # port counters count words of 4 B (Documentation/ABI/stable/sysfs-class-infiniband)
# of mlx5 and irdma: what a receiver missed, what a sender was told, what nobody acknowledged in time
RESENT = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err")
# of RoCE: notifications sent and obeyed, and packets that a switch marked
CONGESTED = ("np_cnp_sent", "rp_cnp_handled", "np_ecn_marked_roce_packets")
STALLED = "port_xmit_wait"


@dataclass(frozen=True)
class NetworkReading:
    """Counts so far, by interface (`eth0`), port (`mlx5_0/1`) or counter (`mlx5_0/1 np_cnp_sent`)."""

    received: dict[str, int] = field(default_factory=dict)
    """Bytes."""
    sent: dict[str, int] = field(default_factory=dict)
    """Bytes."""
    resent: dict[str, int] = field(default_factory=dict)
    """Packets that were lost or late, as either end saw it, and segments of TCP sent again."""
    congested: dict[str, int] = field(default_factory=dict)
    """Pause frames, marks and notifications of congestion."""
    stalled: dict[str, int] = field(default_factory=dict)
    """Of InfiniBand: ticks in which a port had something to send and might not. How long one is only the
    card knows."""


def read_network(root: Path = ROOT, pause_frames: bool = False) -> NetworkReading:
    """The counts of now; without those that the system does not have.

    Parameters
    ----------
    root
        What holds proc and sys.
    pause_frames
        Also ask the cards of this host for pause frames, which may take milliseconds each.
    """
    reading = NetworkReading()
    counters = _port_counters(root)
    for name, (received, sent) in _interfaces(root, bool(counters)).items():
        reading.received[name], reading.sent[name] = received, sent
        paused = pauses(statistics_of(name)) if pause_frames else None
        if paused is not None:
            reading.congested[f"{name} pause frames"] = paused
    for of, name, path, unit in counters:
        count = _number(path)
        if count is not None:
            getattr(reading, of)[name] = unit * count
    segments = _tcp(root).get("RetransSegs")
    if segments is not None:
        reading.resent["tcp RetransSegs"] = segments
    return reading


def growth(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """By how much each counter grew, of those that both readings have; 0 where it began anew."""
    return {name: max(0, after[name] - before[name]) for name in before if name in after}


def _interfaces(root: Path, has_ports: bool) -> dict[str, tuple[int, int]]:
    """Interface -> bytes received and sent, each byte once."""
    counts = _device_table(root)
    return {name: counts[name] for name in _single(tuple(counts), root, has_ports)}


@cache
def _single(names: tuple[str, ...], root: Path, has_ports: bool) -> list[str]:
    """The interfaces that together count each byte once."""
    known = {name: root / "sys/class/net" / name for name in names if name != "lo"}
    hardware = {name for name, place in known.items() if (place / "device").exists()}
    return [
        name
        for name, place in known.items()
        if (not hardware or name in hardware)
        and not name.startswith("ifb")  # packets of another interface, on their way through a queue
        and not any(place.glob("lower_*"))  # made of others
        and not (has_ports and _text(str(place / "type")) == INFINIBAND)
    ]


def _device_table(root: Path) -> dict[str, tuple[int, int]]:
    """Interface -> bytes received and sent, of all: one file, where sysfs has two for each."""
    found = {}
    for line in _text(f"{root}/proc/net/dev").splitlines():
        name, colon, numbers = line.partition(":")
        words = numbers.split()
        if colon and len(words) >= 9:
            found[name.strip()] = (int(words[0]), int(words[8]))
    return found


@cache
def _port_counters(root: Path) -> list[tuple[str, str, str, int]]:
    """What ports of InfiniBand and RoCE count: what for, as what, in which file, and its unit.

    Found once: a host with eight cards has 70 of these files.
    """
    found = []
    for port in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        name = f"{port.parents[1].name}/{port.name}"
        files = [("received", name, "counters/port_rcv_data", LANES)]
        files += [("sent", name, "counters/port_xmit_data", LANES)]
        files += [("resent", f"{name} {each}", f"hw_counters/{each}", 1) for each in RESENT]
        files += [("congested", f"{name} {each}", f"hw_counters/{each}", 1) for each in CONGESTED]
        if _text(str(port / "link_layer")) != "Ethernet":
            files += [("stalled", f"{name} {STALLED}", f"counters/{STALLED}", 1)]
        for of, counter, file, unit in files:
            if (port / file).exists():
                found.append((of, counter, str(port / file), unit))
    return found


def _tcp(root: Path) -> dict[str, int]:
    """The counters of TCP by name: /proc/net/snmp has a line of names and one of numbers."""
    lines = [
        line.split()[1:]
        for line in _text(f"{root}/proc/net/snmp").splitlines()
        if line.startswith("Tcp:")
    ]
    return dict(zip(lines[0], map(int, lines[1]), strict=False)) if len(lines) == 2 else {}


def _text(path: str) -> str:
    """The stripped content; "" where it cannot be read."""
    try:
        with open(path) as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(path: str) -> int | None:
    text = _text(path)
    return int(text) if text.isdecimal() else None
