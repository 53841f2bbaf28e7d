"""`calib train` on stand-in GPUs, in each execution: right in what it computes and what it takes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.standin.gpu import KERNEL_S, LAUNCH_S
from tests.standin.starting import environment
from tests.training.launching import needs_mpiexec

from calib.microbench.machine.placement import distinct_cores, usable_cores

pytestmark = [pytest.mark.mpi, pytest.mark.waits, needs_mpiexec]

WITHIN = 0.02
SLOW_S = 200e-6  # a host that takes so long for a launch holds the GPU up
CAPTURED = ("float32", "bfloat16", "bfloat16-mixed")
RANK = Path(__file__).with_name("training_rank.py")


def said(launch_s: float, path: Path, *executions: str) -> dict[str, Any]:
    more = {"STANDIN_LAUNCH_S": str(launch_s), "STANDIN_HOT_FROM_S": "inf", "OMP_NUM_THREADS": "1"}
    line = [sys.executable, str(RANK), str(path), *executions]
    call = subprocess.run(
        line, env=environment(**more), capture_output=True, text=True, check=False
    )
    assert call.returncode == 0, call.stderr[-3000:]
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return said(LAUNCH_S, tmp_path_factory.mktemp("fast") / "said.json")


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    both = [name + graph for name in CAPTURED for graph in ("", "+cuda_graph")]
    return said(SLOW_S, tmp_path_factory.mktemp("slow") / "said.json", *both)


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize(
    ("execution", "faster"), [("float64", 0.5), ("float16", 2.0), ("bfloat16", 2.0)]
)
def test_work_takes_as_long_as_its_items(
    fast: dict[str, Any], phase: str, execution: str, faster: float
) -> None:
    """Apart from the start of each kernel."""
    work = {}
    for name in ("float32", execution):
        of = fast["timed"][name]
        work[name] = of["seconds"][phase] - KERNEL_S * of["launches"][phase]
    assert math.isclose(work["float32"] / work[execution], faster, rel_tol=WITHIN), work


def test_autocast_is_between_float32_and_half_precision(fast: dict[str, Any]) -> None:
    """Products in bfloat16, and each weight is cast for them."""
    launches = {name: fast["timed"][name]["launches"]["forward"] for name in fast["timed"]}
    assert launches["bfloat16-mixed"] > launches["bfloat16"] == launches["float32"]


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("execution", CAPTURED)
def test_a_graph_is_one_launch(slow: dict[str, Any], execution: str, phase: str) -> None:
    """Of the module: its input is copied to where the graph reads; the loss is eager."""
    eager, graph = (slow["timed"][name] for name in (execution, f"{execution}+cuda_graph"))
    left = graph["launches"][phase]
    assert left < eager["launches"][phase]
    outside = {"forward": 3, "backward": 4}[phase]  # copies in, the loss
    assert 1 <= left <= outside + 1, graph["launches"]
    # a launch longer than any kernel: the host is what takes time
    for of in (eager, graph):
        assert of["seconds"][phase] >= SLOW_S * (of["launches"][phase] - 1)
    assert graph["seconds"][phase] < eager["seconds"][phase]


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("graph", ["float64+cuda_graph", "float64+channels_last+cuda_graph"])
def test_a_graph_trains_as_without(fast: dict[str, Any], graph: str, pieces: int) -> None:
    """Weights, losses and running statistics, which the warm-up of the capture leaves alone."""
    eager, found = fast["trained"][f"float64 {pieces}"], fast["trained"][f"{graph} {pieces}"]
    assert set(found) == set(eager) and "1.running_mean" in eager
    for name, values in eager.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-10, atol=1e-12, err_msg=name)


def test_gradients_in_a_graphs_memory_would_be_lost(fast: dict[str, Any]) -> None:
    """What Worker._keep_gradients is for; the stand-in hands gradients on as torch does."""
    right, wrong = fast["trained"]["float64 3"], fast["shared"]
    assert not np.allclose(wrong["4.weight"], right["4.weight"], rtol=1e-6)


def test_in_place_a_graph_has_phases_alone(fast: dict[str, Any]) -> None:
    eager, graph = (fast["in place"][name] for name in ("bfloat16", "bfloat16-mixed+cuda_graph"))
    assert any(name.startswith("layer_forward:") for name in eager["rows"])
    assert graph["rows"] == ["forward", "backward", "update"]
    weights = [of["memory"]["weights"] for of in (eager, graph)]
    assert weights[1] == 2 * weights[0], "autocast keeps them in float32"
    for of in (eager, graph):
        assert of["memory"]["peak_live"] > of["memory"]["weights"] == of["memory"]["gradients"]


def test_messages_are_no_part_of_a_graph(fast: dict[str, Any]) -> None:
    assert "holds no messages" in fast["refused"]


RANKS = min(2, len(distinct_cores(usable_cores())))


@pytest.mark.parametrize(
    "options",
    [
        "--strategy data --execution bfloat16+channels_last+cuda_graph --sharded-optimizer",
        "--strategy data --execution bfloat16-mixed+cuda_graph --ddp --accumulate 2",
    ],
)
def test_calib_train_runs_it(tmp_path: Path, options: str) -> None:
    """From the options to the record, its gradients checked before."""
    line = [sys.executable, "-m", "calib", "train", "--model", "lenet5", "--backend", "nccl"]
    more = f"-p {RANKS} --batch-per-rank 8 --iterations 6 --json -o run.jsonl {options}"
    call = subprocess.run(
        [*line, *more.split()],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert call.returncode == 0, call.stderr[-3000:]
    run = json.loads(call.stdout)
    words = options.split()
    assert run["header"]["execution"] == words[words.index("--execution") + 1]
    assert run["header"]["device"] == "cuda"
    assert ("a pool of its own" in " ".join(run["header"]["notes"])) == ("cuda_graph" in options)
    assert all(math.isfinite(of["loss"]) for of in run["iterations"])
    if RANKS > 1 or "accumulate" in options:
        assert run["header"]["gradient_difference"] < 1e-10
