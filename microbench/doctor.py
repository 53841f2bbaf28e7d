"""What this machine can do and what will spoil its numbers, with a line of advice each."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from calib.foundation.errors import CalibError, MachineError
from calib.foundation.file_system import file_system
from calib.foundation.words import bytes_words
from calib.microbench.binding import bindings
from calib.microbench.communicators.mpi import library_version
from calib.microbench.host_settings import clocks, host_settings
from calib.microbench.machine.boards import activity_of, cuda_of_driver, state_of
from calib.microbench.machine.launchers import launch_line
from calib.microbench.machine.placement import distinct_cores, usable_cores
from calib.microbench.machine.telemetry import THROTTLED
from calib.microbench.probe import cpu_device, read_gpus
from calib.microbench.records.doctor import DoctorFinding, DoctorVerdict, bad, finding, ok, warn
from calib.microbench.timing.timer import measure_timer
from calib.microbench.topology.sheets import sheet_of

BUSY_SHARE = 0.10  # of all cores, used by other processes
COARSE_TIMER_S = 1e-6
LITTLE_MEMORY_BYTES = 2 * 2**30


def examine(ranks: int, launcher: str, device: str = "cpu") -> list[DoctorFinding]:
    """All findings for a calibration with `ranks` ranks under `launcher` on cpu or cuda."""
    return [
        cores(ranks),
        load(),
        mpi(),
        launch(launcher, ranks),
        torch_library(),
        *gpus(device),
        clocks(),
        timer(),
        memory(ranks),
        *bindings(ranks, launcher, device),
        *host_settings(read_gpus()[0]),
        files(Path.cwd()),
    ]


def can_measure(findings: list[DoctorFinding]) -> bool:
    """Whether anything can be measured: layers need torch and collectives need an MPI."""
    verdicts = {each.name: each.verdict for each in findings}
    return not (verdicts["torch"] == "bad" or "bad" in (verdicts["mpi"], verdicts["launcher"]))


def require_measurable(findings: list[DoctorFinding]) -> None:
    """Raise MachineError where nothing can be measured."""
    if not can_measure(findings):
        first = next(each for each in findings if each.verdict == "bad")
        raise MachineError(f"nothing can be measured here: {first.name}: {first.advice}")


def cores(ranks: int) -> DoctorFinding:
    """Physical cores against ranks, and a quota of the container."""
    usable = len(distinct_cores(usable_cores()))
    quota = cpu_quota()
    found = f"{usable} usable physical cores for {ranks} ranks"
    if quota is not None and quota < min(ranks, usable):
        return warn(
            "cores",
            f"{found}, limited to {quota:.1f} cores by a cgroup",
            "the quota throttles all ranks; raise it, or use fewer ranks",
        )
    if ranks > usable:
        return warn(
            "cores",
            f"{found}: oversubscribed",
            "samples will be marked and not used for calibration; use one rank per core",
        )
    if usable == 1:
        return warn(
            "cores", found, "one core runs one rank: only serial training can be calibrated here"
        )
    return ok("cores", found, "a core for each rank at least")


def cpu_quota() -> float | None:
    """Cores that the cgroup (v2) of this process may use; None without a limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def load() -> DoctorFinding:
    """What other processes use of the cores now."""
    busy = psutil.cpu_percent(interval=0.5) / 100.0
    found = f"{busy:.0%} of the cores busy"
    if hasattr(os, "getloadavg"):
        found += f", load average {os.getloadavg()[0]:.2f}"
    if busy <= BUSY_SHARE:
        return ok("load", found, "the machine is idle")
    return warn(
        "load",
        found,
        "other processes take time from the ranks; stop them or expect wide intervals",
    )


def mpi() -> DoctorFinding:
    """The MPI library that mpi4py loads."""
    version = library_version()
    if version.startswith("none"):
        return bad("mpi", version, "install the mpich wheel, or load your system's MPI module")
    return ok("mpi", version, "loaded by mpi4py")


def launch(launcher: str, ranks: int) -> DoctorFinding:
    """Whether the launcher's program is there."""
    try:
        line = launch_line(launcher, ranks)
    except CalibError as error:
        return bad("launcher", launcher, str(error))
    return ok("launcher", " ".join(line), "starts the ranks")


def torch_library() -> DoctorFinding:
    """PyTorch, without importing it."""
    if find_spec("torch") is None:
        return bad("torch", "not installed", "install PyTorch; layers and training need it")
    return ok("torch", version("torch"), "runs layers and training")


class GpuCheck(NamedTuple):
    """One thing about a GPU: `trouble` says what is wrong by what NVML answers, or ""."""

    name: str
    trouble: Callable[[Mapping[str, Any]], str]
    advice: str
    verdict: DoctorVerdict = "warn"


def _narrow(gpu: Mapping[str, Any]) -> str:
    width, most = gpu.get("pcie_width", 0), gpu.get("pcie_width_max", 0)
    return f"PCIe x{width} of x{most}" if width < most else ""


def _held(gpu: Mapping[str, Any]) -> str:
    return ", ".join(sorted(THROTTLED.intersection(gpu.get("event_reasons", ()))))


def _unlinked(gpu: Mapping[str, Any]) -> str:
    """NVLinks that a board has and that are not active, where some are."""
    sheet, active = sheet_of(gpu.get("name", "")), sum(gpu.get("nvlinks", {}).values())
    most = sheet.nvlink[1] if sheet and sheet.nvlink else 0
    return f"{active} of {most} NVLinks" if 0 < active < most else ""


GPU_CHECKS = (
    GpuCheck(
        "gpu persistence",
        lambda gpu: "off" if gpu.get("persistence") is False else "",
        "the driver is loaded anew for each launch; an administrator can start nvidia-persistenced",
    ),
    GpuCheck(
        "gpu mode",
        lambda gpu: "exclusive" if gpu.get("compute_mode", "").startswith("exclusive") else "",
        "one process a GPU: run no more ranks than GPUs, and no other program beside them",
    ),
    GpuCheck(
        "gpu mode",
        lambda gpu: "prohibited" if gpu.get("compute_mode") == "prohibited" else "",
        "no program may compute on it; an administrator can set the default compute mode",
        "bad",
    ),
    GpuCheck(
        "gpu mig",
        lambda gpu: "cut into MIG devices" if gpu.get("mig") else "",
        "a slice is calibrated, not the GPU, and its neighbours share power and clocks",
    ),
    GpuCheck(
        "gpu ecc",
        lambda gpu: (
            "changes at the next reboot" if gpu.get("ecc") != gpu.get("ecc_pending") else ""
        ),
        "bandwidth and memory will differ then: reboot before calibrating",
    ),
    GpuCheck(
        "gpu memory",
        lambda gpu: f"{n} uncorrected errors" if (n := gpu.get("uncorrected_errors", 0)) else "",
        "results may be wrong; reset the GPU, and have it tested if they come back",
    ),
    GpuCheck(
        "gpu memory",
        lambda gpu: f"{n} rows or pages replaced" if (n := gpu.get("repairs", 0)) else "",
        "it had defects: compare it with the other GPUs, and have it tested if the number grows",
    ),
    GpuCheck(
        "gpu memory",
        lambda gpu: "rows or pages wait to be replaced" if gpu.get("repair_pending") else "",
        "reset the GPU or reboot; if it stays so, the board has no spare rows left",
    ),
    GpuCheck(
        "gpu processes",
        lambda gpu: f"{n} running" if (n := gpu.get("processes", 0)) else "",
        "rows of a shared GPU calibrate nothing; wait until it is free",
    ),
    GpuCheck(
        "gpu link",
        _narrow,
        "copies and exchanges over PCIe are slower than they could be; check slot and riser",
    ),
    GpuCheck(
        "gpu link",
        _unlinked,
        "exchanges between GPUs are slower than they could be; see nvidia-smi nvlink -s and -e",
    ),
    GpuCheck(
        "gpu throttling",
        _held,
        "it is too hot or braked now: rows are marked and calibrate nothing; see to its cooling",
    ),
)


def gpus(device: str = "cpu") -> list[DoctorFinding]:
    """NVIDIA GPUs and their driver, and a finding for each trouble, with the GPUs that have it.

    That there is none is bad where `device`, which is to be calibrated, is "cuda".
    """
    devices, lost = read_gpus()
    missing = [bad("gpu", lost, "reboot, or have the board tested")] if lost else []
    if not devices:
        advice = "a GPU needs its driver and calib[gpu]"
        if device == "cuda":
            return missing or [bad("gpu", "none visible", advice)]
        return missing or [ok("gpu", "none visible", f"the CPU is calibrated; {advice}")]
    names = ", ".join(sorted({device.name for device in devices}))
    found = f"{len(devices)} x {names}, driver {devices[0].driver}"
    answers = [{"name": gpu.name, **state_of(gpu.uuid), **activity_of(gpu.uuid)} for gpu in devices]
    return [
        ok("gpu", found, "calibrated where the device of a plan is cuda"),
        *missing,
        *gpu_torch(),
        *(each for check in GPU_CHECKS for each in _troubles(check, answers)),
    ]


def _troubles(check: GpuCheck, answers: Sequence[Mapping[str, Any]]) -> list[DoctorFinding]:
    """A finding for each trouble in the words of the check, with the indices of its GPUs."""
    having: dict[str, list[str]] = {}
    for number, gpu in enumerate(answers):
        if trouble := check.trouble(gpu):
            having.setdefault(trouble, []).append(str(gpu.get("index", number)))
    return [
        finding(check.verdict, check.name, f"{trouble}: GPU {', '.join(indices)}", check.advice)
        for trouble, indices in having.items()
    ]


def gpu_torch() -> list[DoctorFinding]:
    """Whether PyTorch and the driver can work together; nothing where they can."""
    built, driver = torch_cuda(), cuda_of_driver()
    if built is None:
        return [
            warn(
                "gpu torch",
                "PyTorch is built without CUDA",
                "the GPUs stay idle; install a PyTorch that is built for CUDA",
            )
        ]
    if driver is None or int(built.partition(".")[0]) <= driver:
        return []
    return [
        bad(
            "gpu torch",
            f"PyTorch is built for CUDA {built}, the driver supports CUDA {driver}",
            f"update the driver, or install a PyTorch that is built for CUDA {driver}",
        )
    ]


def torch_cuda() -> str | None:
    """The CUDA that PyTorch is built for, without importing it; None without PyTorch or CUDA."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    said = Path(spec.origin).with_name("version.py").read_text()
    match = re.search(r"^cuda\b[^=]*= *['\"]([\d.]+)", said, re.MULTILINE)
    return match and match[1]


def timer() -> DoctorFinding:
    """Resolution and overhead of the clock."""
    clock = measure_timer()
    resolution_s, overhead_s = clock.resolution_s, clock.overhead_s
    found = f"resolution {resolution_s * 1e9:.0f} ns, overhead {overhead_s * 1e9:.0f} ns"
    if max(resolution_s, overhead_s) > COARSE_TIMER_S:
        return warn(
            "timer",
            found,
            "coarse: short calls are timed many at once; check the kernel's clock source",
        )
    return ok("timer", found, "fine enough for single calls")


def memory(ranks: int) -> DoctorFinding:
    """Memory available to each rank."""
    share = psutil.virtual_memory().available / max(ranks, 1)
    found = f"{bytes_words(share)} available per rank on {cpu_device().name}"
    if share < LITTLE_MEMORY_BYTES:
        return warn(
            "memory", found, "under 2 GiB: larger models will swap and their times mean nothing"
        )
    return ok("memory", found, "enough for the mini models")


def files(directory: Path) -> DoctorFinding:
    """The file system of a directory, as other hosts see it."""
    found = file_system(directory)
    if not found.is_shared:
        return ok("files", f"{found.kind}, of this host alone", "several hosts need a shared one")
    if found.has_cluster_locks:
        return ok("files", f"{found.kind}, with locks between hosts", "fine for several hosts")
    return warn(
        "files",
        f"{found.kind}, whose locks may be each host's own",
        "calib keeps hosts apart by claims, and after a kill waits 30 s; NFS has locks without nolock, "
        "Lustre with flock",
    )
