"""What this machine can do and what will spoil its numbers, with a line of advice each."""

from __future__ import annotations

import os
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

import psutil
from pydantic import BaseModel, Field

from calib.foundation.errors import CalibError, MachineError
from calib.foundation.words import bytes_words
from calib.microbench.communicators.mpi import library_version
from calib.microbench.machine.launchers import launch_line
from calib.microbench.machine.placement import distinct_cores, usable_cores
from calib.microbench.probe import cpu_device, gpu_devices
from calib.microbench.timing.timer import measure_timer

DoctorVerdict = Literal["ok", "warn", "bad"]

BUSY_SHARE = 0.10  # of all cores, used by other processes
COARSE_TIMER_S = 1e-6
LITTLE_MEMORY_BYTES = 2 * 2**30


class DoctorFinding(BaseModel):
    """One thing about the machine: ok, warn (numbers suffer), bad (cannot be measured)."""

    name: str = Field(description="what was looked at")
    verdict: DoctorVerdict = Field(
        description="ok, warn (numbers suffer) or bad (cannot be measured)"
    )
    found: str = Field(description="what was found")
    advice: str = Field(description="what to do")


DoctorFindings = list[DoctorFinding]  # doctor.json


def _finding(verdict: DoctorVerdict, name: str, found: str, advice: str) -> DoctorFinding:
    return DoctorFinding(name=name, verdict=verdict, found=found, advice=advice)


_ok, _warn, _bad = (partial(_finding, verdict) for verdict in get_args(DoctorVerdict))


def examine(ranks: int, launcher: str, device: str = "cpu") -> list[DoctorFinding]:
    """All findings for a calibration with `ranks` ranks under `launcher` on cpu or cuda."""
    return [
        cores(ranks),
        load(),
        mpi(),
        launch(launcher, ranks),
        torch_library(),
        gpu(device),
        clocks(),
        timer(),
        memory(ranks),
    ]


def can_measure(findings: list[DoctorFinding]) -> bool:
    """Whether anything can be measured: layers need torch and collectives need an MPI."""
    verdicts = {finding.name: finding.verdict for finding in findings}
    return not (verdicts["torch"] == "bad" or "bad" in (verdicts["mpi"], verdicts["launcher"]))


def require_measurable(findings: list[DoctorFinding]) -> None:
    """Raise MachineError where nothing can be measured."""
    if not can_measure(findings):
        bad = next(finding for finding in findings if finding.verdict == "bad")
        raise MachineError(f"nothing can be measured here: {bad.name}: {bad.advice}")


def cores(ranks: int) -> DoctorFinding:
    """Physical cores against ranks, and a quota of the container."""
    usable = len(distinct_cores(usable_cores()))
    quota = cpu_quota()
    found = f"{usable} usable physical cores for {ranks} ranks"
    if quota is not None and quota < min(ranks, usable):
        return _warn(
            "cores",
            f"{found}, limited to {quota:.1f} cores by a cgroup",
            "the quota throttles all ranks; raise it, or use fewer ranks",
        )
    if ranks > usable:
        return _warn(
            "cores",
            f"{found}: oversubscribed",
            "samples will be marked and not used for calibration; use one rank per core",
        )
    if usable == 1:
        return _warn(
            "cores", found, "one core runs one rank: only serial training can be calibrated here"
        )
    return _ok("cores", found, "one rank per core, pinned")


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
        return _ok("load", found, "the machine is idle")
    return _warn(
        "load",
        found,
        "other processes take time from the ranks; stop them or expect wide intervals",
    )


def mpi() -> DoctorFinding:
    """The MPI library that mpi4py loads."""
    version = library_version()
    if version.startswith("none"):
        return _bad("mpi", version, "install the mpich wheel, or load your system's MPI module")
    return _ok("mpi", version, "loaded by mpi4py")


def launch(launcher: str, ranks: int) -> DoctorFinding:
    """Whether the launcher's program is there."""
    try:
        line = launch_line(launcher, ranks)
    except CalibError as error:
        return _bad("launcher", launcher, str(error))
    return _ok("launcher", " ".join(line), "starts the ranks")


def torch_library() -> DoctorFinding:
    """PyTorch, without importing it."""
    if find_spec("torch") is None:
        return _bad("torch", "not installed", "install PyTorch; layers and training need it")
    return _ok("torch", version("torch"), "runs layers and training")


def gpu(device: str = "cpu") -> DoctorFinding:
    """NVIDIA GPUs and their driver."""
    devices = gpu_devices()
    if not devices:
        if device == "cuda":
            return _bad("gpu", "none visible", "a GPU needs its driver and calib[gpu]")
        return _ok(
            "gpu", "none visible", "the CPU is calibrated; a GPU needs its driver and calib[gpu]"
        )
    names = ", ".join(sorted({each.name for each in devices}))
    return _warn(
        "gpu",
        f"{len(devices)} x {names}, driver {devices[0].driver}",
        "this version calibrates the CPU only; the GPUs are recorded and left idle",
    )


def clocks() -> DoctorFinding:
    """Frequency scaling of the first usable core."""
    base = Path(f"/sys/devices/system/cpu/cpu{usable_cores()[0]}/cpufreq")
    try:
        governor = (base / "scaling_governor").read_text().strip()
    except OSError:
        return _ok(
            "clocks",
            "frequency not visible (a virtual machine?)",
            "clock changes cannot be seen; repeat a run to see how far two differ",
        )
    if governor == "performance":
        return _ok("clocks", f"governor {governor}", "steady")
    return _warn(
        "clocks",
        f"governor {governor}",
        "clocks follow the load; an administrator can set the performance governor",
    )


def timer() -> DoctorFinding:
    """Resolution and overhead of the clock."""
    clock = measure_timer()
    resolution_s, overhead_s = clock.resolution_s, clock.overhead_s
    found = f"resolution {resolution_s * 1e9:.0f} ns, overhead {overhead_s * 1e9:.0f} ns"
    if max(resolution_s, overhead_s) > COARSE_TIMER_S:
        return _warn(
            "timer",
            found,
            "coarse: short calls are timed many at once; check the kernel's clock source",
        )
    return _ok("timer", found, "fine enough for single calls")


def memory(ranks: int) -> DoctorFinding:
    """Memory available to each rank."""
    share = psutil.virtual_memory().available / max(ranks, 1)
    found = f"{bytes_words(share)} available per rank on {cpu_device().name}"
    if share < LITTLE_MEMORY_BYTES:
        return _warn(
            "memory", found, "under 2 GiB: larger models will swap and their times mean nothing"
        )
    return _ok("memory", found, "enough for the mini models")
