"""What ranks run with, gathered from ranks that are threads."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.nvml import Board, nvml
from tests.helpers.ranks import results, run_ranks

from calib.microbench.machine import settings
from calib.microbench.machine.placement import Placement
from calib.microbench.machine.settings import boards_of, gpudirect_rdma, relevant, software_of
from calib.microbench.records.manifest import GpuIdentity
from calib.microbench.records.settings import RankSoftware


def test_variables_of_gpus_and_networks() -> None:
    environment = {"UCX_TLS": "rc", "NCCL_ALGO": "Ring", "PATH": "/bin", "MY_CUDA_X": "1"}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "PYTORCH_CUDA_ALLOC_CONF": "a", "TORCH_LOGS": "b"}
    assert list(relevant(environment)) == [
        "CUDA_VISIBLE_DEVICES",
        "NCCL_ALGO",
        "PYTORCH_CUDA_ALLOC_CONF",
        "TORCH_LOGS",
        "UCX_TLS",
    ]


@pytest.mark.parametrize(
    ("lines", "module"),
    [
        ("nvidia_peermem 16384 0 - Live 0x0\nnvidia 1 2 x\n", "nvidia_peermem"),
        ("nvidia 1 2 nvidia_peermem, Live\n", ""),
        ("nv_peer_mem 16384 0 - Live 0x0\n", "nv_peer_mem"),
        (None, ""),
    ],
)
def test_the_module_for_rdma(tmp_path: Path, lines: str | None, module: str) -> None:
    if lines is not None:
        (tmp_path / "modules").write_text(lines)
    assert gpudirect_rdma(tmp_path / "modules") == module


def test_ranks_that_are_alike_are_named_together(monkeypatch: pytest.MonkeyPatch) -> None:
    here = threading.local()
    monkeypatch.setattr(settings, "loaded_versions", lambda: {"nccl": f"2.{30 - here.rank % 2}.1"})
    monkeypatch.setattr(settings, "relevant", lambda _: {"NCCL_ALGO": "Ring"})
    monkeypatch.setattr(settings, "gpudirect_rdma", lambda: "nvidia_peermem")

    def program(comm: Any) -> list[RankSoftware]:
        here.rank = comm.rank
        return software_of(comm)

    first, *others = results(run_ranks(4, program))
    assert all(other == first for other in others)
    same = {"environment": {"NCCL_ALGO": "Ring"}, "gpudirect_rdma": "nvidia_peermem"}
    assert first == [
        RankSoftware(ranks=[0, 2], libraries={"nccl": "2.30.1"}, **same),
        RankSoftware(ranks=[1, 3], libraries={"nccl": "2.29.1"}, **same),
    ]


@pytest.mark.parametrize(
    ("gpus", "known"), [("12", ["1", "2"]), ("211", ["2", "1"]), ("19", ["1", "9"])]
)
def test_boards_of_the_ranks(monkeypatch: pytest.MonkeyPatch, gpus: str, known: list[str]) -> None:
    """Each once, in the order of the ranks; of one that NVML does not show, its UUID is known."""
    boards = [Board("GPU-1", nvlinks=[6]), Board("GPU-2", nvlinks=[6])]
    monkeypatch.setitem(sys.modules, "pynvml", nvml(boards))
    named = [GpuIdentity(uuid=uuid, name="Some GPU") for uuid in gpus]
    placement = Placement(["h"] * len(gpus), [[0]] * len(gpus), len(gpus), False, gpus=named)
    found, *_ = results(run_ranks(len(gpus), lambda comm: boards_of(comm, placement)))
    assert [board.uuid for board in found] == known and found[0].host == "h"
    assert [board.ecc for board in found] == [None if uuid == "9" else True for uuid in known]
    linked = {(board.uuid, peer.uuid) for board in found for peer in board.peers}
    assert linked == ({("1", "2"), ("2", "1")} if "2" in known else set())


def test_a_launch_on_cpus_has_no_boards() -> None:
    placement = Placement(["h"], [[0]], 1, False)
    assert results(run_ranks(1, lambda comm: boards_of(comm, placement))) == [[]]
