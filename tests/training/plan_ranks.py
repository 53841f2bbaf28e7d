"""What ranks under mpiexec run for test_four_ranks.py: python plan_ranks.py FOLDER SIZE ...

Every rank trains plans of Branches one iteration in float64, and compares what it has with plain torch's
serial training of the same batch; rank 0 writes the worst differences, case by case, to FOLDER.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from tests.training.plan_models import (
    BATCH,
    DIMENSIONS,
    TABLE,
    entry_of,
    layers_of,
    mixed,
    samples_apart,
    single,
    spec_of,
)
from torch import Tensor

from calib.foundation.division import Division
from calib.microbench.communicators.mpi import MpiCommunicator
from calib.oracle.layout.partitions import Configuration
from calib.training.checks.gradients import gradient_difference
from calib.training.models import ModelEntry, built
from calib.training.plans.division import LAYERWISE, LayerwiseDivision
from calib.training.step import TrainingStep
from calib.training.teams import make_teams
from calib.training.worker import WorkerOptions

SEED, MIXES = 5, 6
EXACT = WorkerOptions(execution="float64")
Plan = tuple[Configuration, ...]


def joint_batch() -> tuple[Tensor, Tensor]:
    """Samples of different scale, so that one's own gradients are far off."""
    generator = torch.Generator().manual_seed(SEED)
    scales = torch.linspace(0.5, 1.5, BATCH, dtype=torch.float64).view(-1, 1, 1, 1)
    inputs = scales * torch.randn((BATCH, 3, 24, 24), generator=generator, dtype=torch.float64)
    return inputs, torch.randint(12, (BATCH,), generator=generator)


def serial(about: ModelEntry) -> tuple[float, dict[str, Tensor]]:
    """Plain torch's loss and gradients."""
    module = built(about, SEED).double().train()
    inputs, targets = joint_batch()
    loss = torch.nn.functional.cross_entropy(module(inputs), targets)
    loss.backward()
    return float(loss.detach()), {
        n: p.grad for n, p in module.named_parameters() if p.grad is not None
    }


def trained(
    control: MpiCommunicator, about: ModelEntry, division: Division
) -> tuple[float | None, dict[str, Any]]:
    """This rank's loss, and by parameter what it holds and the gradient of that."""
    teams = make_teams(control, division, "mpi")
    step = TrainingStep(about, division, SEED, teams, EXACT)
    inputs, targets = joint_batch()
    mine = slice(*step.worker.samples)
    step.inputs, step.targets = step.worker.take(inputs[mine], targets[mine])
    step.clock.begin("forward")
    loss = step.worker.compute(step.inputs, step.targets)
    step.exchange_gradients()
    found = {held.name: (held, held.parameter.grad) for held in step.worker.held}
    step.close()
    teams.close()
    return None if loss is None else float(loss), found


def worst(control: MpiCommunicator, about: ModelEntry, plan: Plan, expected: Any) -> dict[str, Any]:
    """How far a plan is from serial training, on any rank; and what nobody holds."""
    division = LayerwiseDivision(LAYERWISE, control.size, BATCH, configurations=plan)
    loss, found = trained(control, about, division)
    exact_loss, exact = expected
    differences = [0.0]
    for name, (held, gradient) in found.items():
        largest = exact[name].abs().max()
        differences.append(float((gradient - held.cut(exact[name])).abs().max() / largest))
    ranges = {name: held.ranges for name, (held, _) in found.items()}
    everyone = control.allgather_object((loss, max(differences), ranges))
    losses = [each for each, _, _ in everyone if each is not None]
    missing = []
    for name, like in exact.items():
        seen = torch.zeros_like(like, dtype=torch.bool)
        for _, _, theirs in everyone:
            if name in theirs:
                seen[tuple(slice(*of) for of in theirs[name])] = True
        missing += [] if seen.all() else [name]
    return {
        "loss": abs(sum(losses) / len(losses) - exact_loss) / exact_loss,
        "gradients": max(each for _, each, _ in everyone),
        "missing": missing,
        "layout": division.layout,
    }


def same_as_data(control: MpiCommunicator, about: ModelEntry, plan: Plan) -> dict[str, Any]:
    """A plan that is data parallelism, beside that strategy."""
    p = control.size
    planned = LayerwiseDivision(LAYERWISE, p, BATCH, configurations=plan)
    loss, found = trained(control, about, planned)
    other_loss, other = trained(control, about, Division("data", p, BATCH))
    differences = [
        float((gradient - other[name][1]).abs().max() / other[name][1].abs().max())
        for name, (_, gradient) in found.items()
    ]
    assert loss is not None and other_loss is not None and list(found) == list(other)
    return {"loss": abs(loss - other_loss), "gradients": max(differences), "missing": []}


def cases(control: MpiCommunicator) -> dict[str, dict[str, Any]]:
    """By name, what was found."""
    p, found = control.size, {}
    about, spec = entry_of(), spec_of()
    expected = serial(about)
    for dimension in DIMENSIONS:
        plan = single(spec, dimension, p)
        found[f"single {dimension}"] = worst(control, about, plan, expected)
    for seed in range(MIXES):
        found[f"mix {seed}"] = worst(control, about, mixed(spec, p, seed), expected)
    alone = tuple(Configuration() for _ in spec.layers)
    found["idle"] = worst(control, about, alone, expected)
    found["data"] = same_as_data(control, about, single(spec, "sample", p))
    tables = layers_of(TABLE)
    for name, plan in {
        "channels": single(tables, "channel", p),
        "mix": mixed(tables, p, 3),
    }.items():
        found[f"table, {name}"] = checked(control, TABLE, plan)
    norms, spec = entry_of(norms=True), spec_of(norms=True)
    plan = samples_apart(spec, mixed(spec, p, 100))
    found["norms"] = worst(control, norms, plan, serial(norms))
    found["norms of parts"] = checked(control, norms, mixed(spec, p, 101))
    return found


def checked(control: MpiCommunicator, about: ModelEntry, plan: Plan) -> dict[str, Any]:
    """By the check that training makes."""
    division = LayerwiseDivision(LAYERWISE, control.size, BATCH, configurations=plan)
    teams = make_teams(control, division, "mpi")
    difference = gradient_difference(about, division, SEED, teams, WorkerOptions())
    teams.close()
    return {"loss": 0.0, "gradients": difference, "missing": []}


def main(directory: Path, sizes: list[int]) -> None:
    """All cases on so many of the ranks, one size after the other; a rank that fails ends all."""
    torch.set_num_threads(1)
    everyone = MpiCommunicator()
    for p in sizes:
        control = everyone.part(range(p) if everyone.rank < p else None)
        if control is not None:
            try:
                found = cases(control)
            except BaseException:
                print(f"rank {control.rank}:", traceback.format_exc(), file=sys.stderr, flush=True)
                everyone.abort(3)
            if control.rank == 0:
                (directory / f"{p}.json").write_text(json.dumps(found))
        everyone.quiet_barrier()  # who has no part leaves the cores to the others


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(size) for size in sys.argv[2:]])
