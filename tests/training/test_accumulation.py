"""Micro-batches whose gradients are added up: what a plain loop of PyTorch makes of them.

The references use of training the models and the synthetic batches only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.tensor_ranks import on_ranks
from tests.training.launching import needs_mpiexec, said
from torch import Tensor, nn

from calib.foundation.division import Division
from calib.training.checks.gradients import gradient_difference
from calib.training.clock import PhaseClock
from calib.training.models import ModelEntry, built
from calib.training.step import TrainingStep, synthetic_batch
from calib.training.teams import Teams
from calib.training.worker import WorkerOptions

EACH, STEPS, SEED = 12, 3, 5  # samples of a rank
EXACT: Any = {"rtol": 1e-11, "atol": 1e-12}
F64 = WorkerOptions(execution="float64")


def plain() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 5))


def normed() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)
    )


def about(build: Any) -> ModelEntry:
    return ModelEntry(build.__name__, build, (3, 6, 6), "cross_entropy", 5, EACH)


def expected(
    of: ModelEntry, ranks: int, pieces: int, together: bool = False
) -> list[dict[str, Tensor]]:
    """Gradients as "d NAME", weights and the mean loss after each step, by one process.

    The n-th micro-batch of each rank by itself, or of all ranks `together`.
    """
    batches = [synthetic_batch(of, EACH, SEED + 1 + rank) for rank in range(ranks)]
    micro = [
        (x.double(), t)
        for inputs, targets in batches
        for x, t in zip(inputs.chunk(pieces), targets.chunk(pieces), strict=True)
    ]
    if together:
        micro = [
            tuple(torch.cat(parts) for parts in zip(*micro[n::pieces], strict=True))
            for n in range(pieces)
        ]
    module = built(of, SEED).double().train()
    update = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)
    found = []
    for _ in range(STEPS):
        module.zero_grad()
        losses = []
        for x, t in micro:
            loss = F.cross_entropy(module(x), t)
            (loss / len(micro)).backward()
            losses.append(loss.detach())
        row = {"loss": torch.stack(losses).mean()}
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None
            row[f"d {name}"] = parameter.grad.clone()
        update.step()
        found.append(row | {name: p.detach().clone() for name, p in module.named_parameters()})
    return found


def trained(
    of: ModelEntry, division: Division, teams: Teams, options: WorkerOptions = F64
) -> list[dict[str, Tensor]]:
    """The same by TrainingStep; gradients as the optimizer gets them, if it is not sharded."""
    step, found = TrainingStep(of, division, SEED, teams, options), list[dict[str, Tensor]]()
    update, row = step.optimizer.step, dict[str, Tensor]()

    def spy() -> None:
        if not division.sharded_optimizer:
            for held in step.worker.held:
                assert held.parameter.grad is not None
                row[f"d {held.name}"] = held.parameter.grad.clone()
        update()

    step.optimizer.step = spy  # type: ignore[method-assign]
    for _ in range(STEPS):
        row = {}
        _, loss = step.iterate()
        assert loss is not None
        row["loss"] = torch.tensor(loss, dtype=torch.float64)
        found.append(row | {h.name: h.parameter.detach().clone() for h in step.worker.held})
    step.close()
    return found


def judge(ranks: list[list[dict[str, Tensor]]], reference: list[dict[str, Tensor]]) -> None:
    for number, wanted in enumerate(reference):
        losses = torch.stack([rows[number].pop("loss") for rows in ranks])
        torch.testing.assert_close(losses.mean(), wanted["loss"], **EXACT)
        for rows in ranks:
            assert rows[number]
            for name, value in rows[number].items():
                torch.testing.assert_close(value, wanted[name], **EXACT)


@pytest.mark.parametrize("pieces", [1, 2, 3, 12])
@pytest.mark.parametrize("p", [1, 2])
def test_gradients_are_those_of_the_whole_batch(p: int, pieces: int) -> None:
    """Without batch norms, whatever the micro-batches."""
    of, strategy = about(plain), "serial" if p == 1 else "data"
    division = Division(strategy, p, p * EACH, accumulation=pieces)
    judge(on_ranks(division, lambda teams: trained(of, division, teams)), expected(of, p, 1))


@pytest.mark.parametrize("more", [{}, {"sharded_optimizer": True}])
@pytest.mark.parametrize("p", [1, 2])
def test_batch_norms_are_of_a_micro_batch(p: int, more: dict[str, Any]) -> None:
    of = about(normed)
    division = Division("data", p, p * EACH, accumulation=3, **more)
    judge(on_ranks(division, lambda teams: trained(of, division, teams)), expected(of, p, 3))


def test_synchronized_batch_norms_are_of_the_ranks_micro_batches() -> None:
    of = about(normed)
    division = Division("data", 2, 2 * EACH, accumulation=3)
    options = WorkerOptions(execution="float64", synchronized_batch_norm=True)
    found = on_ranks(division, lambda teams: trained(of, division, teams, options))
    judge(found, expected(of, 2, 3, together=True))


@pytest.mark.parametrize("synchronized", [False, True])
@pytest.mark.parametrize("p", [1, 2])
def test_the_check_before_a_run_takes_micro_batches(p: int, synchronized: bool) -> None:
    division = Division("data", p, 8 * p, accumulation=4)
    options = WorkerOptions(synchronized_batch_norm=synchronized)
    of = about(normed)
    found = on_ranks(division, lambda teams: gradient_difference(of, division, 1, teams, options))
    assert max(found) < 1e-12


def test_the_check_finds_a_micro_batch_that_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    from calib.foundation.errors import MeasurementError
    from calib.training.worker import Worker

    forward = Worker.forward

    def half(self: Worker, inputs: Tensor, targets: Tensor) -> Tensor:
        first = torch.equal(inputs[0], self.seen) if hasattr(self, "seen") else True
        self.seen = inputs[0]  # type: ignore[attr-defined]
        loss = forward(self, inputs, targets)
        return loss if first else loss * 0.0

    monkeypatch.setattr(Worker, "forward", half)
    division = Division("serial", 1, 4, accumulation=2)

    def program(teams: Teams) -> None:
        with pytest.raises(MeasurementError, match="gradients differ"):
            gradient_difference(about(plain), division, 1, teams, WorkerOptions())

    on_ranks(division, program)


def test_phases_and_the_exchange_of_an_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward in turns, then one exchange, one update."""
    switched: list[str] = []
    switch = PhaseClock.switch

    def noted(self: PhaseClock, phase: str) -> str:
        switched.append(phase)
        return switch(self, phase)

    monkeypatch.setattr(PhaseClock, "switch", noted)
    division = Division("data", 1, 6, accumulation=3)

    def program(teams: Teams) -> None:
        TrainingStep(about(plain), division, SEED, teams).iterate()

    on_ranks(division, program)
    turns = [
        phase for phase, before in zip(switched, ["", *switched], strict=False) if phase != before
    ]
    assert turns == ["backward", "forward"] * 2 + ["backward", "update"], "it begins in forward"


RANKS = """
import sys
from pathlib import Path
import torch
import torch.distributed as dist
from calib.microbench.communicators.mpi import MpiCommunicator
from calib.foundation.division import Division
from calib.training.teams import make_teams
from calib.training.worker import WorkerOptions
from tests.training.test_accumulation import EACH, about, normed, plain, trained

torch.set_num_threads(1)
control = MpiCommunicator()
p = control.size
for backend in ("mpi", "gloo"):
    for build in (plain, normed):
        for form in ("flat", "overlap", "one bucket"):
            division = Division("data", p, p * EACH, overlap=form == "overlap", accumulation=3)
            teams = make_teams(control, division, backend)
            options = WorkerOptions(execution="float64", ddp=form == "one bucket")
            calls, right = [], dist.all_reduce
            def all_reduce(*arguments, **named):
                calls.append(named.get("async_op", False))
                return right(*arguments, **named)
            dist.all_reduce = all_reduce
            rows = trained(about(build), division, teams, options)
            dist.all_reduce = right
            teams.close()
            name = f"{backend} {build.__name__} {form} {control.rank}.pt"
            torch.save((rows, calls), Path(sys.argv[1]) / name)
"""


@pytest.mark.mpi
@pytest.mark.waits
@needs_mpiexec
def test_every_exchange_is_made_once_an_iteration(tmp_path: Path) -> None:
    """Under DistributedDataParallel too, whose buckets wait for the last micro-batch."""
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    said(2, script, str(tmp_path))
    files = sorted(tmp_path.glob("*.pt"))
    assert len(files) == 2 * 2 * 3 * 2
    for build in (plain, normed):
        reference = expected(about(build), 2, 3)
        for backend in ("mpi", "gloo"):
            for form in ("flat", "overlap", "one bucket"):
                name = f"{backend} {build.__name__} {form}"
                left = [torch.load(tmp_path / f"{name} {rank}.pt") for rank in range(2)]
                judge([rows for rows, _ in left], reference)
                for _, calls in left:
                    assert len(calls) == STEPS, "a model of one bucket"
                    assert all(calls) == (form != "flat")
