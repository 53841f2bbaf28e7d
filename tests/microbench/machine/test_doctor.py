"""Findings of a machine that is made up, piece by piece."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from calib.foundation.errors import MachineError
from calib.microbench import doctor
from calib.microbench.doctor import DoctorFinding, can_measure
from calib.microbench.records.cluster import Device
from calib.microbench.timing.timer import Timer


def machine(monkeypatch: pytest.MonkeyPatch, cores: int = 4, quota: float | None = None) -> None:
    monkeypatch.setattr(doctor, "usable_cores", lambda: list(range(2 * cores)))
    monkeypatch.setattr(doctor, "distinct_cores", lambda usable: usable[: len(usable) // 2])
    monkeypatch.setattr(doctor, "cpu_quota", lambda: quota)


@pytest.mark.parametrize(
    ("cores", "quota", "ranks", "verdict", "words"),
    [
        (4, None, 4, "ok", "4 usable physical cores for 4 ranks"),
        (4, None, 5, "warn", "oversubscribed"),
        (1, None, 1, "warn", "1 usable"),
        (1, None, 2, "warn", "oversubscribed"),
        (4, 1.5, 4, "warn", "limited to 1.5 cores"),
        (4, 1.5, 1, "ok", "4 usable"),
        (4, 4.0, 4, "ok", "4 usable"),
    ],
)
def test_cores(
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    quota: float | None,
    ranks: int,
    verdict: str,
    words: str,
) -> None:
    machine(monkeypatch, cores, quota)
    finding = doctor.cores(ranks)
    assert finding.verdict == verdict and words in finding.found
    assert finding.advice and "\n" not in finding.found + finding.advice


@pytest.mark.parametrize(
    ("content", "cores"),
    [("max 100000\n", None), ("150000 100000\n", 1.5), ("", None), ("a b", None), (None, None)],
)
def test_quota_of_a_cgroup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, cores: float | None
) -> None:
    path = tmp_path / "cpu.max"
    if content is not None:
        path.write_text(content)
    monkeypatch.setattr(doctor, "Path", lambda _: path)
    assert doctor.cpu_quota() == cores


@pytest.mark.parametrize(("percent", "verdict"), [(0.0, "ok"), (10.0, "ok"), (55.0, "warn")])
def test_load(monkeypatch: pytest.MonkeyPatch, percent: float, verdict: str) -> None:
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval: percent)
    finding = doctor.load()
    assert finding.verdict == verdict and f"{percent:.0f}% of the cores busy" in finding.found


def test_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "library_version", lambda: "MPICH Version: 4.3")
    assert doctor.mpi().verdict == "ok" and doctor.mpi().found == "MPICH Version: 4.3"
    monkeypatch.setattr(doctor, "library_version", lambda: "none (cannot load MPI library)")
    assert doctor.mpi().verdict == "bad" and "mpich wheel" in doctor.mpi().advice


def test_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "launch_line", lambda launcher, n: ["/opt/mpiexec", "-n", str(n)])
    assert doctor.launch("local", 4).found == "/opt/mpiexec -n 4"

    def missing(launcher: str, ranks: int) -> list[str]:
        raise MachineError("launcher: no mpiexec on this machine")

    monkeypatch.setattr(doctor, "launch_line", missing)
    finding = doctor.launch("local", 4)
    assert finding.verdict == "bad" and "no mpiexec" in finding.advice


def test_an_unknown_launcher_is_a_finding() -> None:
    finding = doctor.launch("pbs", 2)
    assert finding.verdict == "bad" and "neither one of" in finding.advice


def test_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.torch_library().verdict == "ok"
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    assert doctor.torch_library().verdict == "bad"


def test_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "gpu_devices", lambda: [])
    assert doctor.gpu().verdict == "ok"
    device = Device(kind="cuda", name="H100", count=1, memory_bytes=1, driver="580.1")
    monkeypatch.setattr(doctor, "gpu_devices", lambda: [device] * 2)
    assert (doctor.gpu().verdict, doctor.gpu().found) == ("warn", "2 x H100, driver 580.1")


@pytest.mark.parametrize(
    ("governor", "verdict"), [("performance", "ok"), ("powersave", "warn"), (None, "ok")]
)
def test_clocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, governor: str | None, verdict: str
) -> None:
    machine(monkeypatch)
    if governor is not None:
        (tmp_path / "scaling_governor").write_text(governor + "\n")
    asked = []
    monkeypatch.setattr(doctor, "Path", lambda path: asked.append(path) or tmp_path)
    finding = doctor.clocks()
    assert finding.verdict == verdict and (governor or "not visible") in finding.found
    assert asked == ["/sys/devices/system/cpu/cpu0/cpufreq"]


@pytest.mark.parametrize(
    ("resolution", "overhead", "verdict"),
    [(1e-9, 5e-8, "ok"), (2e-6, 5e-8, "warn"), (1e-9, 2e-6, "warn")],
)
def test_timer(
    monkeypatch: pytest.MonkeyPatch, resolution: float, overhead: float, verdict: str
) -> None:
    monkeypatch.setattr(doctor, "measure_timer", lambda: Timer(resolution, overhead))
    finding = doctor.timer()
    assert finding.verdict == verdict
    assert f"overhead {overhead * 1e9:.0f} ns" in finding.found


@pytest.mark.parametrize(("ranks", "verdict", "share"), [(2, "ok", "4"), (8, "warn", "1")])
def test_memory(monkeypatch: pytest.MonkeyPatch, ranks: int, verdict: str, share: str) -> None:
    class Memory:
        available, total = 8 * 2**30, 8 * 2**30

    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    finding = doctor.memory(ranks)
    assert finding.verdict == verdict and finding.found.startswith(f"{share} GiB")


def findings(**verdicts: Any) -> list[DoctorFinding]:
    names = ("cores", "load", "mpi", "launcher", "torch", "gpu", "clocks", "timer", "memory")
    return [
        DoctorFinding(name=name, verdict=verdicts.get(name, "ok"), found="", advice="")
        for name in names
    ]


@pytest.mark.parametrize(
    ("verdicts", "can"),
    [
        ({}, True),
        ({name: "warn" for name in ("cores", "load", "gpu", "clocks", "timer", "memory")}, True),
        ({"torch": "bad"}, False),
        ({"mpi": "bad"}, False),
        ({"launcher": "bad"}, False),
    ],
)
def test_can_measure(verdicts: dict[str, str], can: bool) -> None:
    assert can_measure(findings(**verdicts)) is can


def test_examine_of_this_machine_has_every_finding_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval: 0.0)
    found = doctor.examine(1, "local")
    assert [f.name for f in found] == [f.name for f in findings()]
    assert all(len(line.splitlines()) == 1 for f in found for line in (f.found, f.advice))
