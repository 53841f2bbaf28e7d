"""The kind of device and the number of ranks where nobody says: of machines made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.calib.inside import calib
from tests.calib.nightly_runs import calibration, here, own_lock, request

from calib.calibrate import calibrate
from calib.driver import defaults, launches
from calib.driver import probe as driver_probe
from calib.driver.defaults import default_device, default_ranks, ranks_per_node, visible_gpus
from calib.foundation.errors import MachineError
from calib.foundation.files import ensure_directory, write_whole
from calib.foundation.run_files import PLAN_FILE
from calib.microbench.cases import CollectiveCase, Plan
from calib.microbench.records.cluster import Device

GPU = Device(kind="cuda", name="Some GPU", count=1, memory_bytes=2**34)


def listed(monkeypatch: pytest.MonkeyPatch, gpus: int, shown: str | None = None) -> None:
    """NVML lists so many GPUs, CUDA_VISIBLE_DEVICES is this, on 3 cores and without Slurm."""
    monkeypatch.setattr(defaults, "read_gpus", lambda: ([GPU] * gpus, ""))
    monkeypatch.setattr(defaults, "usable_cores", lambda: [0, 1, 2])
    monkeypatch.setattr(defaults, "distinct_cores", lambda cores: cores)
    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_NTASKS", "SLURM_NNODES"):
        monkeypatch.delenv(name, raising=False)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)


@pytest.mark.parametrize(
    ("gpus", "shown", "found"),
    [
        (4, None, 4),
        (4, "2,0", 2),
        (4, "", 0),
        (4, "-1", 0),
        (4, "1, -1, 2", 1),  # CUDA ends at the first that it does not know
        (1, "MIG-1,MIG-2", 2),
        (0, "0,1", 0),
    ],
)
def test_visible_gpus(
    monkeypatch: pytest.MonkeyPatch, gpus: int, shown: str | None, found: int
) -> None:
    listed(monkeypatch, gpus, shown)
    assert visible_gpus() == found
    assert default_ranks(device="cuda") == max(1, found)
    assert default_ranks() == 3


@pytest.mark.parametrize(
    ("gpus", "built", "device"), [(2, "12.8", "cuda"), (2, None, "cpu"), (0, "12.8", "cpu")]
)
def test_device(monkeypatch: pytest.MonkeyPatch, gpus: int, built: str | None, device: str) -> None:
    """cuda takes a GPU, and a PyTorch that can use it."""
    listed(monkeypatch, gpus)
    monkeypatch.setattr(defaults, "torch_cuda", lambda: built)
    assert default_device() == device


def test_slurm_says_how_many_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    listed(monkeypatch, 4)
    monkeypatch.setenv("SLURM_NTASKS", "16")
    monkeypatch.setenv("SLURM_NNODES", "2")
    assert default_ranks("slurm", "cuda") == default_ranks("slurm") == 16
    assert ranks_per_node("slurm", "cuda") == 8
    assert (ranks_per_node("local", "cuda"), ranks_per_node("local")) == (4, 3)


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One line, before anything is looked at; a launcher may start ranks where there are some."""
    listed(monkeypatch, 0)
    with pytest.raises(MachineError, match="device cuda: no GPU is to be seen on this machine"):
        calibrate(tmp_path / "run", models=["vgg16-mini"], device="cuda")
    defaults.require_device("cuda", "slurm")
    for verb in ("calibrate --quick", "measure --models vgg16-mini"):
        ended = calib(tmp_path, f"{verb} --device cuda -o run")
        assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (2, "", 1)
        assert "no GPU is to be seen" in ended.stderr
    assert list(tmp_path.iterdir()) == []


NO_GPU = "device cuda: no GPU is to be seen on this machine"


@pytest.mark.parametrize(
    "line", ["probe --device cuda -o cluster.json", "measure --resume -o run", "nightly"]
)
def test_a_gpu_is_asked_for_before_ranks_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str
) -> None:
    listed(monkeypatch, 0)
    for of in (driver_probe, launches):
        monkeypatch.setattr(of, "run_ranks", lambda *_: pytest.fail("ranks were started"))
    case = CollectiveCase(
        operation="allreduce", nbytes=8, ranks=2, group_size=2, library="torch_nccl", device="cuda"
    )
    made = Plan(cases=(case,), budget_seconds=1.0)
    write_whole(ensure_directory(tmp_path / "run") / PLAN_FILE, made.model_dump_json())
    calibration(tmp_path / "runs/latest", request(device="cuda", libraries=("torch_nccl",)))
    own_lock(monkeypatch, tmp_path / "locks")
    before = sorted(tmp_path.rglob("*"))
    ended = calib(tmp_path, line)
    assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (2, "", 1)
    assert NO_GPU in ended.stderr
    assert [
        p for p in sorted(tmp_path.rglob("*")) if p not in before and "lock" not in str(p)
    ] == []


def test_the_doctor_says_all_it_found_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    listed(monkeypatch, 0)
    ended = calib(tmp_path, "doctor --device cuda --ranks 1")
    assert ended.returncode == 2 and "none visible" in ended.stdout
    assert NO_GPU in ended.stderr and len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("gpus", "option", "ranks"), [(2, "", 2), (2, "--device cpu", 3), (0, "", 3), (2, "-n 1", 1)]
)
def test_a_probe_starts_a_rank_for_each_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpus: int, option: str, ranks: int
) -> None:
    listed(monkeypatch, gpus)
    monkeypatch.setattr(defaults, "torch_cuda", lambda: "13.0")
    started = []

    def run_ranks(launcher: str, p: int, *_: object) -> None:
        started.append(p)
        here().write(tmp_path / "cluster.json")

    monkeypatch.setattr(driver_probe, "run_ranks", run_ranks)
    assert calib(tmp_path, f"probe -o cluster.json {option}").returncode == 0
    assert started == [ranks]
