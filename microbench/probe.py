"""What this machine is: hosts, devices, levels, links, versions -> Cluster."""

from __future__ import annotations

import platform
import socket
from importlib import metadata
from pathlib import Path

from microbench.cluster import Cluster, Device, Host, Level
from microbench.communicators import Communicator
from microbench.placement import distinct_cores, usable_cores

PACKAGES = ("torch", "numpy", "mpi4py", "mpich", "cupy-cuda13x", "nvidia-nccl-cu13")


def probe(communicator: Communicator | None = None, name: str | None = None) -> Cluster:
    """The Cluster seen by this process, or by all ranks of `communicator` (SPMD)."""
    mine = probe_host().model_dump()
    everyone = [mine] if communicator is None else communicator.gather_objects(mine)
    hosts = {content["name"]: Host.model_validate(content) for content in everyone}
    names = [content["name"] for content in everyone]
    # without ranks, a node is as many PEs as it has cores to run them on
    members = (
        max(names.count(host) for host in hosts)
        if communicator is not None
        else max(1, len(distinct_cores(usable_cores())))
    )
    levels = [Level(name="node", members=members, link="shared memory")]
    if len(hosts) > 1:
        interfaces = next(iter(hosts.values())).network_interfaces
        link = ", ".join(sorted(interfaces)) or "unknown"
        levels.append(Level(name="system", members=len(hosts), link=link))
    return Cluster(
        name=name or next(iter(hosts)).split(".")[0], hosts=list(hosts.values()), levels=levels
    )


def probe_host() -> Host:
    """This host: its CPU, GPUs, network interfaces and the versions of what is used."""
    return Host(
        name=socket.gethostname(),
        kernel=f"{platform.system()} {platform.release()}",
        devices=[cpu_device(), *gpu_devices()],
        network_interfaces=network_interfaces(),
        versions=versions(),
    )


def versions() -> dict[str, str]:
    """Versions of Python, the packages in use and the MPI library."""
    from microbench.communicators.mpi import library_version

    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    found["mpi"] = library_version()
    return found


def cpu_device() -> Device:
    """The CPU: model name, usable physical cores, memory."""
    import psutil

    model = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    cores = max(1, len(distinct_cores(usable_cores())))
    return Device(kind="cpu", name=model, count=cores, memory_bytes=psutil.virtual_memory().total)


def gpu_devices() -> list[Device]:
    """NVIDIA GPUs through NVML, read only; none where the library or a driver is missing."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        devices = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
            name = _text(pynvml.nvmlDeviceGetName(handle))
            devices.append(
                Device(kind="cuda", name=name, count=1, memory_bytes=memory, driver=driver)
            )
        return devices
    finally:
        pynvml.nvmlShutdown()


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def network_interfaces() -> dict[str, float | None]:
    """Interfaces that are up, without loopback: stated bytes per second, or None if not stated."""
    import psutil

    return {
        name: stats.speed * 1e6 / 8 if stats.speed > 0 else None
        for name, stats in psutil.net_if_stats().items()
        if stats.isup and name != "lo"
    }
