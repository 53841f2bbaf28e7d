"""What ranks under mpiexec run for test_equality.py: python equality_program.py DIRECTORY [NAMES].

Every case: a few iterations of training as a run makes them. Each rank leaves, in DIRECTORY/<case>,
an .npz of what it has and a .json of what part of the whole that is; nothing is compared here.
"""

from __future__ import annotations

import json
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
from tests.helpers.norms import Tensors
from tests.helpers.programs import quiet
from tests.helpers.sharded import weights_of
from tests.helpers.side_by_side import side_by_side
from torch import Tensor

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.foundation.execution import execution_of
from calib.microbench.item_types import weight_type
from calib.training.checks.gradients import gradient_difference
from calib.training.layer_program import LayerProgram, layer_program
from calib.training.models import ModelEntry, built
from calib.training.models.alexnet import AlexNet
from calib.training.models.cosmoflow import CosmoFlow
from calib.training.models.resnet import ResNet
from calib.training.models.vgg import VGG16
from calib.training.step import TrainingStep
from calib.training.strategies.fully_sharded import FullyShardedWorker
from calib.training.teams import Teams, make_teams
from calib.training.worker import Worker, WorkerOptions

SEED = 11
STEPS, CURVE = 4, 12  # iterations: the first is looked into, the weights are compared after STEPS


def _model(name: str, build: Any, shape: tuple[int, ...], outputs: int, **more: Any) -> ModelEntry:
    loss: Any = "mse" if name.startswith("cosmoflow") else "cross_entropy"
    return ModelEntry(name, lambda: quiet(build(**more)), shape, loss, outputs, 2)


MODELS = {
    model.name: model
    for model in (
        _model("vgg", VGG16, (3, 32, 32), 10, size=32, classes=10, hidden=32, divisor=16),
        # 16, 32, 64 and 128 filters on 3 ranks; heights 45, 22, 11, 5, 2
        _model("vgg-odd", VGG16, (3, 45, 45), 10, size=45, classes=10, hidden=32, divisor=4),
        _model("alexnet", AlexNet, (3, 64, 64), 10, classes=10, hidden=16, divisor=16, pooled=1),
        _model("resnet", ResNet, (3, 64, 64), 10, classes=10, width=4, stage_blocks=(1, 1, 1, 1)),
        _model(
            "cosmoflow",
            CosmoFlow,
            (4, 16, 16, 16),
            4,
            size=16,
            hidden=(16, 8),
            divisor=4,
            padded=True,
        ),
    )
}
BATCH = {"vgg": 4, "vgg-odd": 3, "alexnet": 4, "resnet": 8, "cosmoflow": 4}


@dataclass(frozen=True)
class Case:
    """One training: a model, its division, how it computes. `name` says what is not the default.

    `curve`: CURVE iterations are run. `checked`: the check before a run is made as well.
    """

    model: str
    division: Division
    execution: str = "float64"
    optimizer: str = "momentum"
    synchronized: bool = False
    ddp: bool = False
    backend: str = "mpi"
    curve: bool = False
    checked: bool = False

    @property
    def name(self) -> str:
        """Of the test and of the directory."""
        d = self.division
        said = [self.model, d.strategy, f"p{d.p}"]
        said += [f"inner{d.inner}"] * (d.inner > 1) + [f"S{d.segments}"] * (d.segments > 1)
        said += ["x".join(map(str, d.grid))] * bool(d.grid) + [d.schedule] * (d.schedule != "gpipe")
        said += ["overlap"] * d.overlap + ["ddp"] * self.ddp
        said += (
            ["until"] * bool(d.split_until)
            + ["all"] * (d.gradients == "all")
            + ["sharded"] * d.sharded_optimizer
        )
        said += ["sync"] * self.synchronized + [self.optimizer] * (self.optimizer != "momentum")
        said += [self.backend] * (self.backend != "mpi") + [self.execution]
        return "-".join(said)

    @property
    def about(self) -> ModelEntry:
        """The model."""
        return MODELS[self.model]

    @property
    def iterations(self) -> int:
        """How many are run."""
        return CURVE if self.curve else STEPS

    @property
    def options(self) -> WorkerOptions:
        """How it computes, as a run is told."""
        return WorkerOptions(self.optimizer, self.execution, self.synchronized, self.ddp)


def of(model: str, strategy: str, p: int, /, **more: Any) -> list[Case]:
    """The case in both item types; what is no field of Case is of its division."""
    mine = {key: more.pop(key) for key in list(more) if key in Case.__dataclass_fields__}
    kinds = [mine.pop("execution")] if "execution" in mine else ["float64", "float32"]
    division = Division(strategy, p, BATCH[model], **more)
    return [Case(model, division, execution=name, **mine) for name in kinds]


def joint_batch(model: str) -> tuple[Tensor, Tensor]:
    """The samples of all replicas: of different scale, so that one's own gradients are far off."""
    about, batch = MODELS[model], BATCH[model]
    generator = torch.Generator().manual_seed(5)
    scales = torch.linspace(0.5, 1.5, batch).view(-1, *[1] * len(about.input_shape))
    inputs = scales * torch.randn((batch, *about.input_shape), generator=generator)
    if about.loss == "mse":
        return inputs, torch.randn((batch, about.outputs), generator=generator)
    return inputs, torch.randint(about.outputs, (batch,), generator=generator)


def observed(worker: Worker, about: ModelEntry) -> LayerProgram:
    """The worker's program; where it has the plain module, one that stands before that."""
    if isinstance(worker.module, LayerProgram):
        return worker.module
    program = layer_program(built(about, SEED), about, worker.division.local_batch)
    for node in program.graph.graph.nodes:
        if node.op == "call_module":
            path = str(node.target)
            program.graph.set_submodule(path, worker.module.get_submodule(path))
    worker.module = program
    ddp: Any = getattr(worker, "_ddp", None)
    if ddp is not None:
        ddp.module = program
    return program


def gradients_after_exchange(step: TrainingStep) -> dict[str, Tensor]:
    """By parameter, what the optimizer is given; of a sharded one all of what was averaged."""
    step.worker.average_gradients()
    held = step.worker.held
    found = {h.name: h.parameter.grad.clone() for h in held if h.parameter.grad is not None}
    if isinstance(step.worker, FullyShardedWorker):  # the next backward would add to them
        for parameter in step.parameters:
            parameter.grad = None
    return found


def train(case: Case, teams: Teams) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What this rank has of everything, and what part of the whole that is."""
    step = TrainingStep(case.about, case.division, SEED, teams, case.options)
    worker, dtype = step.worker, weight_type(execution_of(case.options.execution))
    inputs, targets = joint_batch(case.model)
    targets = targets.to(dtype) if targets.is_floating_point() else targets
    mine = slice(*worker.samples)
    step.inputs, step.targets = worker.take(inputs[mine].to(dtype), targets[mine])
    program, seen = observed(worker, case.about), Tensors()
    found: dict[str, Tensor] = {}

    update = step.optimizer.step

    def spy(*arguments: Any, **more: Any) -> Any:
        if program.observer is not None:  # the first time
            program.observer = None
            found.update({f"weight|{n}": g for n, g in gradients_after_exchange(step).items()})
            for node in program.graph.graph.nodes:
                if node.op == "call_module" and node.name in program.layer_of:
                    module = program.graph.get_submodule(str(node.target))
                    for name in ("running_mean", "running_var"):
                        value = getattr(module, name, None)
                        if value is not None:
                            found[f"{name}|{program.layer_of[node.name]}"] = value.clone()
        return update(*arguments, **more)

    step.optimizer.step = spy
    program.observer = seen.see
    losses = []
    for iteration in range(case.iterations):
        losses.append(step.iterate()[1])
        if iteration + 1 == STEPS:
            found |= {f"after|{name}": w for name, w in weights_of(worker).items()}
    found |= {f"output|{name}": torch.cat(parts) for name, parts in seen.outputs.items()}
    for name, parts in seen.gradients.items():
        known = [part for part in parts if part is not None]
        if known:
            found[f"gradient|{name}"] = torch.cat(known)
    part = {
        "samples": worker.samples,
        "losses": losses,
        "region": worker.region,
        "held": {h.name: [h.ranges, h.gradient] for h in worker.held},
        "replica": teams.place.replica,
        "cell": teams.place.cell,
    }
    step.close()
    return found, part


def run_case(case: Case, teams: Teams, directory: Path) -> None:
    """Train and write; of a division that is refused, the reason."""
    rank = teams.world.rank
    try:
        checked = None
        if case.checked:
            checked = gradient_difference(case.about, case.division, SEED, teams, case.options)
        found, part = train(case, teams)
        part["checked"] = checked
    except InputError as error:
        found, part = {}, {"refused": str(error)}
    directory.mkdir(exist_ok=True)
    np.savez(directory / f"rank{rank}.npz", **{k: v.numpy() for k, v in found.items()})
    (directory / f"rank{rank}.json").write_text(json.dumps(part))


def main(directory: Path, names: list[str]) -> None:
    """Every case, or those of `names`, on the ranks of one launch: side by side where they fit."""
    from tests.training.equality_cases import CASES

    from calib.microbench.communicators.mpi import MpiCommunicator

    torch.set_num_threads(1)
    everyone = MpiCommunicator()
    wanted = [case for case in CASES if case.name in names or not names]
    for case, control in side_by_side(everyone, wanted, lambda case: case.division.p):
        try:
            teams = make_teams(control, case.division, case.backend)
            run_case(case, teams, directory / case.name)
            teams.close()
        except BaseException:
            print(f"{case.name}, rank {control.rank}:", traceback.format_exc(), file=sys.stderr)
            sys.stderr.flush()
            everyone.abort(3)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
