"""Training on a GPU: full models serially and data-parallel, and strategies on several ranks of it."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
import torch
from tests.helpers.nccl_version import nccl_version
from tests.helpers.words import words_of
from tests.training.launching import completed, needs_mpiexec, run_script

from calib.training.run.record import TrainingRun

pytestmark = [
    pytest.mark.gpu,
    needs_mpiexec,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

NCCL_SHARES_GPUS = (2, 30)  # from this version on, several ranks may use one GPU
EQUAL = """
import json, sys
from pathlib import Path
from calib.microbench.communicators.mpi import MpiCommunicator
from calib.foundation.division import Division
from calib.training.checks.gradients import gradient_difference
from calib.training.models import entry
from calib.training.teams import make_teams
from calib.training.worker import WorkerOptions

control = MpiCommunicator()
found = {}
for model in ("vgg16-mini", "resnet50-mini", "cosmoflow-mini"):
    for strategy in sys.argv[2].split(","):
        division = Division(strategy, control.size, 4)
        teams = make_teams(control, division, "nccl")
        try:
            found[f"{model} {strategy}"] = gradient_difference(
                entry(model), division, 3, teams, WorkerOptions()
            )
        finally:
            teams.close()
if control.rank == 0:
    Path(sys.argv[1]).write_text(json.dumps(found))
"""


@pytest.mark.parametrize("strategy", ["serial", "data"])
@pytest.mark.parametrize("model", ["resnet50", "vgg16", "cosmoflow-128"])
def test_a_full_model_trains(tmp_path: Path, model: str, strategy: str) -> None:
    path = tmp_path / "run.jsonl"
    line = [
        sys.executable,
        "-m",
        "calib",
        "train",
        "--model",
        model,
        "--strategy",
        strategy,
        *words_of("-p 1 --backend nccl --batch-per-rank 2 --iterations 6 -o"),
        str(path),
    ]
    done = completed(line)
    assert done.returncode == 0, done.stderr[-2000:]
    run = TrainingRun.read(path)
    assert run.complete and run.header.device == "cuda"
    for iteration in run.iterations:
        assert math.isfinite(iteration.loss)
        for phase in ("forward", "backward", "update"):
            assert all(seconds > 0 for seconds in iteration.seconds[phase])


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("model", ["resnet50", "alexnet-mini", "cosmoflow-mini"])
@pytest.mark.parametrize(
    "execution",
    [
        "tf32",
        "float16",
        "bfloat16",
        "bfloat16-mixed",
        "bfloat16+channels_last",
        "float32+cuda_graph",
        "bfloat16-mixed+channels_last+cuda_graph",
    ],
)
def test_a_model_trains_in_other_executions(
    tmp_path: Path, execution: str, model: str, pieces: int
) -> None:
    """Of graphs and of micro-batches gradients are compared with plain ones (alexnet has dropout)."""
    path = tmp_path / "run.jsonl"
    line = [sys.executable, "-m", "calib", "train", "--model", model, "--execution", execution]
    words = f"--strategy serial --backend nccl --batch-per-rank 4 --accumulate {pieces}"
    done = completed([*line, *words_of(words), "--iterations", "6", "-o", str(path)])
    assert done.returncode == 0, done.stderr[-2000:]
    run = TrainingRun.read(path)
    assert run.complete and run.header.execution == execution
    assert all(math.isfinite(iteration.loss) for iteration in run.iterations)
    compared = run.header.gradient_difference
    assert (compared is not None) == (pieces > 1 or "cuda_graph" in execution)


@pytest.mark.skipif(
    torch.cuda.is_available() and nccl_version() < NCCL_SHARES_GPUS,
    reason="this NCCL refuses several ranks on one GPU (2.30 allows it)",
)
def test_strategies_equal_serial_training_with_ranks_on_one_gpu(tmp_path: Path) -> None:
    script, answer = tmp_path / "equal.py", tmp_path / "answer.json"
    script.write_text(EQUAL)
    done = run_script(
        2,
        script,
        str(answer),
        "data,filter,channel,spatial",
        NCCL_MULTI_RANK_GPU_ENABLE="1",
        NCCL_MAX_CTAS="4",
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(answer.read_text())
    assert len(found) == 12
    assert max(found.values()) <= 1e-10, found
