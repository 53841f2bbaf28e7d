"""One rank on a stand-in GPU: what training in each execution takes and computes, as JSON.

Started by test_training.py with a fast host, or with a slow one (STANDIN_LAUNCH_S), and then for the
times of some executions alone: python training_rank.py FILE [EXECUTIONS].
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from tests.helpers.divided import model_case
from torch import Tensor, nn

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.microbench.communicators.mpi import MpiCommunicator
from calib.training.in_place.iterations import measure_in_place
from calib.training.models import ModelEntry
from calib.training.step import TrainingStep
from calib.training.teams import make_teams
from calib.training.worker import Worker, WorkerOptions

BATCH, SEED, STEPS = 12, 3, 4
EXECUTIONS = (
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "bfloat16-mixed",
    "float32+cuda_graph",
    "bfloat16+cuda_graph",
    "bfloat16-mixed+cuda_graph",
)


def wide() -> nn.Module:
    """Products of many FLOP: 2 x 12 x 2048^2 of each take 50 us of 54 in float32."""
    return nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(4)))


def normed() -> nn.Module:
    """With running statistics, and a weight that no layer uses."""
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)
    )
    net.register_parameter("unused", nn.Parameter(torch.ones(3)))
    net[0].bias.requires_grad_(False)  # type: ignore[union-attr]
    return net


WIDE = ModelEntry("wide", wide, (2048,), "mse", 2048, BATCH)
NORMED = ModelEntry("normed", normed, (3, 6, 6), "cross_entropy", 5, BATCH)
CONTROL = MpiCommunicator()


def step_of(about: ModelEntry, execution: str, pieces: int = 1) -> TrainingStep:
    division = Division("serial", 1, BATCH, accumulation=pieces)
    options = WorkerOptions(execution=execution)
    return TrainingStep(about, division, SEED, make_teams(CONTROL, division, "nccl"), options)


def timed(execution: str) -> dict[str, Any]:
    """Seconds and launches of the forward and the backward of one warm iteration."""
    step = step_of(WIDE, execution)
    from tests.standin.gpu import MACHINE  # by now the device is imported, and equipped

    launches: dict[str, int] = {}
    for _ in range(2):
        seconds, _ = step.iterate()
    before = MACHINE.launches
    step.clock.begin("forward")
    loss = step.forward()
    launches["forward"] = MACHINE.launches - before
    torch.autograd.backward(loss)
    launches["backward"] = MACHINE.launches - before - launches["forward"]
    step.clock.end()
    step.close()
    return {"seconds": seconds, "launches": launches}


def trained(execution: str, pieces: int) -> dict[str, list[float]]:
    """Weights, running statistics and losses after a few steps."""
    step = step_of(NORMED, execution, pieces)
    losses = [step.iterate()[1] for _ in range(STEPS)]
    state: dict[str, Tensor] = step.worker.module.state_dict()
    step.close()
    assert "forward" not in vars(step.worker.module), "a graph is released"
    found = {name: tensor.double().flatten().tolist() for name, tensor in state.items()}
    return found | {"losses": [loss or 0.0 for loss in losses]}


def in_place(execution: str) -> dict[str, Any]:
    """The rows of a case, and its memory."""
    case = model_case("lenet5", 1, 2, device="cuda", execution=execution)
    found = measure_in_place(CONTROL, case, 1, 0.0, 0.5)
    return {"rows": list(found.ranks), "memory": found.memory}


def refused(synchronized: bool) -> str:
    """What is said of a graph that cannot be."""
    division = Division("data", 1, BATCH)
    options = WorkerOptions(execution="float32+cuda_graph", synchronized_batch_norm=synchronized)
    try:
        TrainingStep(NORMED, division, SEED, make_teams(CONTROL, division, "nccl"), options)
    except InputError as error:
        return str(error)
    return ""


def main() -> None:
    torch.set_num_threads(1)
    _, path, *executions = sys.argv
    found: dict[str, Any] = {"timed": {name: timed(name) for name in executions or EXECUTIONS}}
    if executions:
        Path(path).write_text(json.dumps(found))
        return
    found["trained"] = {
        f"{name} {pieces}": trained(name, pieces)
        for name in ("float64", "float64+cuda_graph", "float64+channels_last+cuda_graph")
        for pieces in (1, 3)
    }
    keep = Worker._keep_gradients
    Worker._keep_gradients = lambda self: None  # type: ignore[method-assign]
    found["shared"] = trained("float64+cuda_graph", 3)
    Worker._keep_gradients = keep  # type: ignore[method-assign]
    found["in place"] = {name: in_place(name) for name in ("bfloat16", "bfloat16-mixed+cuda_graph")}
    found["refused"] = refused(True)
    Path(path).write_text(json.dumps(found))  # MPI may break a line of stdout at 64 KiB


if __name__ == "__main__":
    main()
