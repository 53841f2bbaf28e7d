"""What this machine is: hosts, devices, levels, links, versions -> Cluster."""

from __future__ import annotations

import platform
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from calib.foundation.nccl import NCCL_PACKAGES
from calib.microbench.communicators.mpi import library_version
from calib.microbench.control import Control
from calib.microbench.machine import hardware
from calib.microbench.machine.boards import place_of, state_of
from calib.microbench.machine.network import ROOT
from calib.microbench.machine.placement import distinct_cores, rack_of_this_host, usable_cores
from calib.microbench.machine.telemetry import initialized_nvml
from calib.microbench.records.cluster import Cluster, Device, Host, levels_of
from calib.microbench.records.hardware import NetworkCard, PciLink

CPU_INFORMATION = Path("/proc/cpuinfo")
PACKAGES = ("torch", "numpy", "mpi4py", "mpich", "nccl4py", *NCCL_PACKAGES)


def probe(
    communicator: Control | None = None,
    name: str | None = None,
    racks: Mapping[str, str] | None = None,
) -> Cluster:
    """The Cluster seen by this process, or by all ranks of `communicator` (SPMD).

    `racks` gives host -> rack where Slurm does not, as in a cluster.json that was edited by hand.
    """
    mine = probe_host().model_dump()
    everyone = [mine] if communicator is None else communicator.allgather_object(mine)
    hosts = {content["name"]: Host.model_validate(content) for content in everyone}
    for host in hosts.values():
        host.rack = (racks or {}).get(host.name, "") or host.rack
    names = [content["name"] for content in everyone]
    # without ranks, a node is as many ranks as it has cores to run them on
    members = (
        max(names.count(host) for host in hosts)
        if communicator is not None
        else max(1, len(distinct_cores(usable_cores())))
    )
    found = list(hosts.values())
    return Cluster(
        name=name or found[0].name.split(".")[0], hosts=found, levels=levels_of(found, members)
    )


def probe_host(root: Path = ROOT) -> Host:
    """This host: its CPU, GPUs, network interfaces, rack and the versions of what is used.

    GPUs that NVML lists and cannot read are left out, and the versions say so under "nvml". `root` holds
    the sysfs with sockets, NUMA nodes, network cards and places of GPUs.
    """
    cards, numa = hardware.network_cards(root), hardware.numa(root)
    gpus, problem = read_gpus(cards, root)
    return Host(
        name=socket.gethostname(),
        kernel=f"{platform.system()} {platform.release()}",
        devices=[cpu_device(), *gpus],
        network_interfaces=network_interfaces(),
        versions={**versions(), **({"nvml": problem} if problem else {})},
        rack=rack_of_this_host(),
        numa_nodes=max(1, len(numa)),
        sockets=hardware.sockets(root),
        numa=numa,
        network_cards=cards,
    )


def versions() -> dict[str, str]:
    """Versions of Python, the packages in use and the MPI library."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    found["mpi"] = library_version()
    return found


def cpu_device() -> Device:
    """The CPU: model name, usable physical cores, memory, clock, width of its arithmetic."""
    cores = max(1, len(distinct_cores(usable_cores())))
    memory = psutil.virtual_memory().total
    return Device(
        kind="cpu", name=cpu_model(), count=cores, memory_bytes=memory, **hardware.processor()
    )


def cpu_model(information: Path = CPU_INFORMATION) -> str:
    """The processor's name, as the kernel has it, or else as Python does."""
    with suppress(OSError):
        for line in information.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def read_gpus(cards: Sequence[NetworkCard] = (), root: Path = ROOT) -> tuple[list[Device], str]:
    """The GPUs that NVML can read, and one line on those that it cannot (fallen off the bus).

    There are none where pynvml or a driver is missing. `cards` are those that one may be near to.
    """
    nvml = initialized_nvml()
    if nvml is None:
        return [], ""
    devices: list[Device] = []
    problems: list[str] = []
    try:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
                name, uuid = (
                    _text(ask(handle)) for ask in (nvml.nvmlDeviceGetName, nvml.nvmlDeviceGetUUID)
                )
            except nvml.NVMLError as error:
                problems.append(f"GPU {index} left out: {error}")
                continue
            devices.append(
                Device(
                    kind="cuda",
                    name=name,
                    count=1,
                    memory_bytes=memory,
                    driver=driver,
                    uuid=uuid,
                    **_links(uuid, cards, root),
                )
            )
    except nvml.NVMLError as error:
        problems.append(f"no GPU read: {error}")
    return devices, "; ".join(problems)


def _links(uuid: str, cards: Sequence[NetworkCard], root: Path) -> dict[str, Any]:
    """The fields of a GPU that say where it is and what it is connected to.

    Of its link, NVML knows what GPU and machine support; sysfs may be missing in a container.
    """
    place, state = place_of(uuid), state_of(uuid)
    found: dict[str, Any] = {"nvlinks": state.get("nvlinks", {}), "nvswitch": place.get("nvswitch")}
    if address := place.get("address"):
        said = {
            field: state[f"pcie_{field}"]
            for field in ("generation", "width", "generation_max", "width_max")
            if state.get(f"pcie_{field}")
        }
        link = hardware.pci_link(address, root).model_dump() | said
        found["pci"] = PciLink.model_validate(link)
        found["nearest_cards"] = hardware.nearest_cards(address, cards, root)
    return found


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def network_interfaces() -> dict[str, float | None]:
    """Interfaces that are up, without loopback: stated bytes per second, or None if not stated."""
    return {
        name: stats.speed * 1e6 / 8 if stats.speed > 0 else None
        for name, stats in psutil.net_if_stats().items()
        if stats.isup and name != "lo"
    }
