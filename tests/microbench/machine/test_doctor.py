"""Findings of a machine that is made up, piece by piece."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from tests.helpers.nvml import Board, nvml

from calib.foundation import file_system
from calib.foundation.errors import MachineError
from calib.microbench import doctor
from calib.microbench.doctor import can_measure
from calib.microbench.records.doctor import DoctorFinding
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


def gpus(
    monkeypatch: pytest.MonkeyPatch, *boards: Board, cuda: int = 13000, torch: str | None = "13.0"
) -> list[tuple[str, str, str]]:
    """Verdict, name and what was found about these GPUs, and a PyTorch built for a CUDA."""
    monkeypatch.setitem(sys.modules, "pynvml", nvml(boards, cuda=cuda))
    monkeypatch.setattr(doctor, "torch_cuda", lambda: torch)
    found = doctor.gpus()
    assert all(line and "\n" not in line for each in found for line in (each.found, each.advice))
    return [(each.verdict, each.name, each.found) for each in found]


def boards(**changes: Any) -> list[Board]:
    """Two H100, the second of which is changed."""
    return [Board("GPU-1", "H100"), Board("GPU-2", "H100", **changes)]


FINE = ("ok", "gpu", "2 x H100, driver 580.105.08")


def test_gpus_that_are_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpus(monkeypatch, *boards()) == [FINE]
    assert gpus(monkeypatch) == [("ok", "gpu", "none visible")]
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert [finding.found for finding in doctor.gpus()] == ["none visible"]


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({"persistence": False}, ("warn", "gpu persistence", "off: GPU 1")),
        ({"compute_mode": 3}, ("warn", "gpu mode", "exclusive: GPU 1")),
        ({"compute_mode": 2}, ("bad", "gpu mode", "prohibited: GPU 1")),
        ({"slices": ["MIG-1"]}, ("warn", "gpu mig", "cut into MIG devices: GPU 1")),
        ({"ecc": (True, False)}, ("warn", "gpu ecc", "changes at the next reboot: GPU 1")),
        ({"uncorrected_errors": 2}, ("warn", "gpu memory", "2 uncorrected errors: GPU 1")),
        ({"rows_replaced": (1, 2)}, ("warn", "gpu memory", "3 rows or pages replaced: GPU 1")),
        (
            {"rows_pending": True},
            ("warn", "gpu memory", "rows or pages wait to be replaced: GPU 1"),
        ),
        ({"processes": [1, 2]}, ("warn", "gpu processes", "2 running: GPU 1")),
        ({"pcie_width": (8, 16)}, ("warn", "gpu link", "PCIe x8 of x16: GPU 1")),
        ({"pcie_generation": (1, 5)}, None),  # idle
        ({"reasons": {"idle"}}, None),
        ({"reasons": {"software_power_cap"}}, None),
        (
            {"reasons": {"hardware_thermal", "hardware_slowdown"}},
            ("warn", "gpu throttling", "hardware_slowdown, hardware_thermal: GPU 1"),
        ),
        ({"lost": True}, ("bad", "gpu", "GPU 1 left out: GPU is lost")),
        ({"refuses": {"nvmlDeviceGetEccMode", "nvmlDeviceGetMaxPcieLinkWidth"}}, None),
    ],
)
def test_troubles_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], finding: tuple[str, str, str] | None
) -> None:
    first, *others = gpus(monkeypatch, *boards(**changes))
    assert first == (
        FINE if not changes.get("lost") else ("ok", "gpu", FINE[2].replace("2", "1", 1))
    )
    assert others == ([] if finding is None else [finding])


def test_gpus_with_one_trouble_are_named_together(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [Board("GPU-0", "H100", persistence=False), *boards(persistence=False)]
    _, finding = gpus(monkeypatch, *both)
    assert finding == ("warn", "gpu persistence", "off: GPU 0, 2")


@pytest.mark.parametrize(
    ("name", "links", "found"),
    [
        ("NVIDIA H100 80GB HBM3", 18, ""),
        ("NVIDIA H100 80GB HBM3", 17, "17 of 18 NVLinks: GPU 0"),
        ("NVIDIA H100 80GB HBM3", 0, ""),  # a machine without them, or lent by itself
        ("Another GPU", 3, ""),
    ],
)
def test_nvlinks_that_are_down(
    monkeypatch: pytest.MonkeyPatch, name: str, links: int, found: str
) -> None:
    _, *others = gpus(monkeypatch, Board("GPU-1", name, nvlinks=[6] * links + [0]))
    assert others == ([("warn", "gpu link", found)] if found else [])


@pytest.mark.parametrize(
    ("torch", "cuda", "finding"),
    [
        ("13.0", 13010, None),
        ("12.8", 13000, None),
        ("12.8", 12040, None),  # minor versions of one major version are compatible
        (
            "13.0",
            12080,
            ("bad", "gpu torch", "PyTorch is built for CUDA 13.0, the driver supports CUDA 12"),
        ),
        (None, 13000, ("warn", "gpu torch", "PyTorch is built without CUDA")),
    ],
)
def test_pytorch_and_the_driver(
    monkeypatch: pytest.MonkeyPatch,
    torch: str | None,
    cuda: int,
    finding: tuple[str, str, str] | None,
) -> None:
    _, *found = gpus(monkeypatch, Board("GPU-1"), cuda=cuda, torch=torch)
    assert found == ([] if finding is None else [finding])


def test_the_cuda_of_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What PyTorch writes in its version.py, and what it says of itself."""
    assert doctor.torch_cuda() == torch.version.cuda
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(doctor, "find_spec", lambda name: spec)
    for line, found in (
        ("cuda: Optional[str] = '13.0'", "13.0"),
        ("cuda = '11.8'", "11.8"),
        ("cuda: Optional[str] = None", None),
    ):
        (tmp_path / "version.py").write_text(f"debug = False\n{line}\nhip = '6.0'\n")
        assert doctor.torch_cuda() == found
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    assert doctor.torch_cuda() is None


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


@pytest.mark.parametrize(
    ("how", "verdict", "found"),
    [
        ("ext4 /dev/sda1 rw", "ok", "ext4, of this host alone"),
        ("nfs4 there:/home rw,local_lock=none", "ok", "nfs4, with locks between hosts"),
        (
            "nfs there:/home rw,nolock,local_lock=all",
            "warn",
            "nfs, whose locks may be each host's own",
        ),
    ],
)
def test_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, verdict: str, found: str
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 1 0:1 / / rw - {how}\n")
    monkeypatch.setattr(file_system, "MOUNTS", mounts)
    finding = doctor.files(tmp_path)
    assert (finding.verdict, finding.found) == (verdict, found)


def findings(**verdicts: Any) -> list[DoctorFinding]:
    names = (
        "cores",
        "load",
        "mpi",
        "launcher",
        "torch",
        "gpu",
        "clocks",
        "timer",
        "memory",
        "files",
    )
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
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(
        doctor, "host_settings", lambda gpus: []
    )  # of this machine: whatever it has
    found = doctor.examine(1, "local")
    assert [f.name for f in found] == [f.name for f in findings()]
    assert all(len(line.splitlines()) == 1 for f in found for line in (f.found, f.advice))
