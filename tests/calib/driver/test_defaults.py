"""The kind of device and the number of ranks where nobody says: of machines made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.calib.inside import calib

from calib.calibrate import calibrate
from calib.driver import defaults
from calib.driver.defaults import default_device, default_ranks, ranks_per_node, visible_gpus
from calib.foundation.errors import MachineError
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
