"""Settings of this host that are known to cost, each with a line of advice.

Each check reads below a root, and finds nothing where what it looks at does not exist.

References
----------
NVIDIA, NCCL User Guide (Environment Variables, Troubleshooting), GPUDirect RDMA (Supported Systems);
Linux, Documentation/admin-guide/mm/transhuge.rst, admin-guide/pm/cpufreq.rst.
"""

from __future__ import annotations

import os
import re
import resource
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from calib.foundation.words import counted, number, several
from calib.microbench.machine.acs import redirecting_bridges
from calib.microbench.machine.environment import library_settings
from calib.microbench.machine.hardware import network_cards, numa, read_text
from calib.microbench.machine.host import listed_numbers
from calib.microbench.machine.network import ROOT
from calib.microbench.machine.placement import usable_cores
from calib.microbench.records.cluster import Device
from calib.microbench.records.doctor import DoctorFinding, ok, warn
from calib.microbench.records.hardware import NetworkCard, PciLink

# of what a PCIe link carries, at most, after the headers of its packets of 256 B: a packet has 24 B more
# (Neugebauer et al., Understanding PCIe performance for end host networking, SIGCOMM 2018, section 3)
PACKETS = 256 / 280
FULL_LANES = 4
SPLIT_LANE = 6.25e9  # B/s of a lane from HDR on: ports of two such lanes are sold (HDR100, NDR200)
SAME_RATE = 0.99
LEAST_LOCKED_BYTES = 2**30  # NCCL and UCX register hundreds of MiB for a few peers
MAY_LOCK = 14  # CAP_IPC_LOCK: no limit holds for who has it
# settings that switch a fast way off, or fix what a library chooses by size
COSTLY = re.compile(
    r"NCCL_(P2P|SHM|IB)_DISABLE=(?!0$).+|NCCL_NVLS_ENABLE=0|NCCL_(P2P|NET_GDR)_LEVEL=(LOC|0)|"
    r"NCCL_(ALGO|PROTO|MAX_NCHANNELS|MAX_CTAS)=.+|CUDA_LAUNCH_BLOCKING=(?!0$).+|"
    r"UCX_TLS=(tcp|sm|self|,)+|FI_PROVIDER=(tcp|sockets)|OMPI_MCA_btl=.*\btcp\b.*",
    re.IGNORECASE,
)


def host_settings(
    gpus: Sequence[Device] = (), environment: Mapping[str, str] = os.environ, root: Path = ROOT
) -> list[DoctorFinding]:
    """What is worth a word of the settings of this host; nothing where all is well."""
    cards = network_cards(root)
    return [
        *huge_pages(root),
        *locked_memory(root),
        *card_links(cards),
        *card_ports(cards),
        *access_control(root),
        *affinity(gpus, usable_cores(), root),
        *leftovers(environment, root),
    ]


def clocks(root: Path = ROOT) -> DoctorFinding:
    """Frequency scaling of the usable cores."""
    base = root / "sys/devices/system/cpu"
    governors = Counter(
        governor
        for core in usable_cores()
        if (governor := read_text(base / f"cpu{core}/cpufreq/scaling_governor"))
    )
    if not governors:
        return ok(
            "clocks",
            "frequency not visible (a virtual machine?)",
            "clock changes cannot be seen; repeat a run to see how far two differ",
        )
    if set(governors) == {"performance"}:
        return ok("clocks", "governor performance", "steady")
    words = ", ".join(f"{name} on {counted(n, 'core')}" for name, n in governors.most_common())
    return warn(
        "clocks",
        f"governor {next(iter(governors)) if len(governors) == 1 else words}",
        "clocks follow the load; an administrator can set the performance governor",
    )


def huge_pages(root: Path = ROOT) -> list[DoctorFinding]:
    """Transparent huge pages that are switched off."""
    setting = read_text(root / "sys/kernel/mm/transparent_hugepage/enabled")
    if "[never]" not in setting:
        return []
    return [
        warn(
            "huge pages",
            "never",
            "large tensors take a fault for every 4 KiB; an administrator can write madvise to "
            "/sys/kernel/mm/transparent_hugepage/enabled",
        )
    ]


def locked_memory(root: Path = ROOT) -> list[DoctorFinding]:
    """A limit on what a process may lock, where there is RDMA, which locks its buffers."""
    if not any((root / "sys/class/infiniband").glob("*")):
        return []
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    held = re.search(r"^CapEff:\s*([0-9a-f]+)", read_text(root / "proc/self/status"), re.MULTILINE)
    free = held is not None and bool(int(held[1], 16) >> MAY_LOCK & 1)
    if free or limit == resource.RLIM_INFINITY or limit >= LEAST_LOCKED_BYTES:
        return []
    return [
        warn(
            "locked memory",
            f"limited to {limit >> 10} KiB",
            "RDMA cannot register its buffers: ulimit -l unlimited (limits.conf; LimitMEMLOCK=infinity "
            "of slurmd)",
        )
    ]


def card_links(cards: Sequence[NetworkCard]) -> list[DoctorFinding]:
    """Network cards whose PCIe link is narrower or slower than it could be, or than their port."""
    troubles = {card.name: trouble for card in cards if (trouble := _link_trouble(card))}
    return _by_trouble(
        "network card link",
        troubles,
        "the card is held back by its link: seat it again, or give it another slot or riser",
    )


def card_ports(cards: Sequence[NetworkCard]) -> list[DoctorFinding]:
    """Ports on fewer lanes than their kind has, and ports slower than others of the same model."""
    troubles = {}
    best: dict[tuple[str, str], float] = defaultdict(float)
    for card in cards:
        best[card.model, card.fabric] = max(best[card.model, card.fabric], card.bandwidth or 0.0)
    for card in cards:
        most = best[card.model, card.fabric]
        if not (card.bandwidth and card.fabric):  # of others, one port is often for management
            continue
        of_lanes = card.lanes is not None and card.lanes < FULL_LANES
        if of_lanes and not _is_split(card):
            troubles[card.name] = f"{card.lanes}X of {FULL_LANES}X"
        elif card.bandwidth < SAME_RATE * most:
            troubles[card.name] = (
                f"{number(card.bandwidth / 1e9)} GB/s, others of its model {number(most / 1e9)}"
            )
    return _by_trouble(
        "network port", troubles, "check cable, transceiver and the switch's port (ibstat, ethtool)"
    )


def access_control(root: Path = ROOT) -> list[DoctorFinding]:
    """PCIe bridges between GPUs and network cards that redirect peer-to-peer traffic (ACS)."""
    bridges = redirecting_bridges(root)
    if not bridges:
        return []
    return [
        warn(
            "pci acs",
            f"on at {several(bridges)}",
            "what GPUs and network cards send one another goes through the CPU; an administrator can "
            "switch ACS off in the firmware or by setpci, unless virtual machines need it",
        )
    ]


def affinity(
    gpus: Sequence[Device], cores: Sequence[int], root: Path = ROOT
) -> list[DoctorFinding]:
    """GPUs on NUMA nodes of which this process may use no core."""
    nodes = {node.number: set(listed_numbers(node.cores)) for node in numa(root)}
    usable = {number for number, of in nodes.items() if not of.isdisjoint(cores)}
    elsewhere = {number for number, of in nodes.items() if of} - usable
    far = [str(n) for n, gpu in enumerate(gpus) if gpu.pci and gpu.pci.numa_node in elsewhere]
    if not usable or not far:
        return []
    here = ", ".join(map(str, sorted(usable)))
    return [
        warn(
            "gpu affinity",
            f"only cores of NUMA node {here} may be used, GPU {several(far, 8)} is elsewhere",
            "copies and launches cross sockets; bind the ranks near their GPUs (numactl, srun "
            "--gpu-bind=closest)",
        )
    ]


def leftovers(
    environment: Mapping[str, str] = os.environ, root: Path = ROOT
) -> list[DoctorFinding]:
    """Variables and files that set how NCCL, UCX, libfabric and MPI libraries work."""
    found = library_settings(environment, root)
    words = [f"{name}={value}" for name, value in found.items()]
    costly = [word for word in words if COSTLY.fullmatch(word)]
    others = [word for word in words if word not in costly]
    findings = []
    if costly:
        findings.append(
            warn(
                "settings",
                several(costly, 5),
                "a fast way is off, or a choice of the library fixed: unset what a trial left over",
            )
        )
    if others:
        findings.append(
            ok(
                "settings",
                several(others, 5),
                "the ranks run with these, and so must your programs",
            )
        )
    return findings


def _link_trouble(card: NetworkCard) -> str:
    """What is wrong with the PCIe link of a card that is up; "" nothing, or nothing is known."""
    link = card.pci
    carried = link.bandwidth if link else None
    if link is None or carried is None or card.bandwidth is None:
        return ""
    narrow = (link.width or 0) < (link.width_max or 0)
    short = PACKETS * carried < SAME_RATE * card.bandwidth
    if short:
        carries, port = (number(of / 1e9) for of in (PACKETS * carried, card.bandwidth))
        return f"{_now_and_at_most(link)} carries {carries} GB/s, its port {port}"
    # a slow card on few lanes is usual; one for RDMA is not built so
    return _now_and_at_most(link) if narrow and card.fabric else ""


def _now_and_at_most(link: PciLink) -> str:
    """`PCIe 4.0 x8 of 4.0 x16`, or without what it is no less than."""
    less = (link.width or 0) < (link.width_max or 0) or (link.generation or 0) < (
        link.generation_max or 0
    )
    return link.words + (f" of {link.generation_max}.0 x{link.width_max}" if less else "")


def _is_split(card: NetworkCard) -> bool:
    """Whether a port of two lanes is meant to be one: half of a port of HDR or later."""
    lane = (card.bandwidth or 0.0) / (card.lanes or 1)
    return card.lanes == FULL_LANES // 2 and lane >= SAME_RATE * SPLIT_LANE


def _by_trouble(name: str, troubles: Mapping[str, str], advice: str) -> list[DoctorFinding]:
    """A finding for each trouble, with the cards that have it."""
    having: dict[str, list[str]] = defaultdict(list)
    for card, trouble in troubles.items():
        having[trouble].append(card)
    return [warn(name, f"{trouble}: {several(having[trouble], 8)}", advice) for trouble in having]
