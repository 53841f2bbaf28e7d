"""Data parallelism against serial training on the joint batch; the exchange's messages and buckets.

The references are plain torch: of training they use the models and the synthetic batches only.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.tensor_ranks import Noted, on_ranks
from tests.training.launching import needs_mpiexec, said
from tests.training.wide_model import EACH, SEED, STEPS, WIDE, wide
from torch import Tensor, nn

from calib.foundation.division import Division
from calib.oracle.layout.traffic import gradient_messages
from calib.oracle.trace.tracing import trace
from calib.training.models import ModelEntry, built
from calib.training.step import TrainingStep, synthetic_batch
from calib.training.teams import Teams
from calib.training.worker import WorkerOptions

EXACT: Any = {"rtol": 1e-10, "atol": 1e-10}
# as training says: learning rate 1e-3, momentum 0.9
OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-3),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
}


def small() -> nn.Module:
    """4 x 27 + 4 + 5 x 64 + 5 = 437 weights, which neither 2 nor 3 divides."""
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 5))


SMALL = ModelEntry("small", small, (3, 6, 6), "cross_entropy", 5, EACH)


def serial(about: ModelEntry, p: int, optimizer: str) -> list[dict[str, Tensor]]:
    """Weights, and gradients as "d <name>", after each step on the joint batch of p ranks."""
    batches = [synthetic_batch(about, EACH, SEED + 1 + replica) for replica in range(p)]
    x, t = (torch.cat(parts) for parts in zip(*batches, strict=True))
    module = built(about, SEED).double().train()
    update, found = OPTIMIZERS[optimizer](module.parameters()), []
    for _ in range(STEPS):
        module.zero_grad()
        F.cross_entropy(module(x.double()), t).backward()
        row = {}
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None
            row[f"d {name}"] = parameter.grad.clone()
        update.step()
        found.append(row | {name: p.detach().clone() for name, p in module.named_parameters()})
    return found


def make_step(division: Division, teams: Teams, **options: Any) -> TrainingStep:
    return TrainingStep(SMALL, division, SEED, teams, WorkerOptions(execution="float64", **options))


@pytest.mark.parametrize("p", [2, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("sharded", [False, True])
def test_weights_after_every_step_are_the_serial_ones(
    p: int, optimizer: str, sharded: bool
) -> None:
    division = Division("data", p, p * EACH, sharded_optimizer=sharded)

    def program(teams: Teams) -> list[dict[str, Tensor]]:
        step, found = make_step(division, teams, optimizer=optimizer), []
        for _ in range(STEPS):
            step.iterate()
            assert all(parameter.grad is None for parameter in step.parameters)
            named = [(held.name, held.parameter) for held in step.worker.held]
            found.append({name: parameter.detach().clone() for name, parameter in named})
        assert dict(named).items() == dict(step.worker.module.named_parameters()).items()
        return found

    for rows in on_ranks(division, program):
        for found, expected in zip(rows, serial(SMALL, p, optimizer), strict=True):
            for name, weights in found.items():
                torch.testing.assert_close(weights, expected[name], **EXACT)


@pytest.mark.parametrize("p", [2, 3])
def test_each_rank_has_its_share_of_the_optimizer(p: int) -> None:
    """The state and the gradient of 1/p of the weights; `average` gives all gradients, for checks."""
    division = Division("data", p, p * EACH, sharded_optimizer=True)

    def program(teams: Teams) -> tuple[int, list[Tensor], dict[str, Tensor]]:
        step = make_step(division, teams, optimizer="adam")
        step.iterate()
        state = sum(s["exp_avg"].numel() for s in step.optimizer.state.values())
        step = make_step(division, teams)
        step.clock.begin()
        step.worker.compute(step.inputs, step.targets)
        step.exchange_gradients()
        exchange: Any = step.worker.exchange
        piece = exchange.piece.grad.clone()
        gradients = [parameter.grad for parameter in step.parameters]
        exchange.average(gradients)
        named = {f"d {held.name}": held.parameter.grad for held in step.worker.held}
        return state, piece, named

    expected = {n: t for n, t in serial(SMALL, p, "sgd")[0].items() if n.startswith("d ")}
    flat = torch.cat([gradient.flatten() for gradient in expected.values()])
    each = -(-len(flat) // p)
    for rank, (state, piece, gradients) in enumerate(on_ranks(division, program)):
        assert state == each
        own = flat[rank * each : (rank + 1) * each]
        torch.testing.assert_close(piece[: len(own)], own, **EXACT)
        assert not piece[len(own) :].any()
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected[name], **EXACT)


@pytest.mark.parametrize("p", [2, 3])
@pytest.mark.parametrize("sharded", [False, True])
def test_messages_are_those_of_the_oracle(p: int, sharded: bool) -> None:
    """Operations and bytes in float32, in their order and phase; shards are padded to equal ones."""
    division = Division("data", p, p * EACH, sharded_optimizer=sharded)

    def program(teams: Teams) -> list[tuple[str, str, int]]:
        sent: list[tuple[str, str, int]] = []

        def note(operation: str, whole: Tensor, buffers: list[Tensor]) -> None:
            storages = {buffer.untyped_storage().data_ptr() for buffer in buffers}
            assert len(storages) == len(buffers), "MPI may not read where it writes"
            phase = step.clock.switch("forward")
            step.clock.switch(phase)
            sent.append((operation, phase, whole.nbytes))

        world: Any = Noted(teams.world, note)
        step = TrainingStep(SMALL, division, SEED, replace(teams, world=world))
        step.iterate()
        return sent

    model = trace(small(), SMALL.input_shape, SMALL.name, SMALL.loss)
    expected = gradient_messages(model, division)
    for sent in on_ranks(division, program):
        assert [operation for operation, _, _ in sent] == [m.operation for m in expected]
        assert {phase for _, phase, _ in sent} == {"exchange"}
        for (_, _, nbytes), message in zip(sent, expected, strict=True):
            assert 0 <= nbytes - message.nbytes < (4 * p if sharded else 1)


SCRIPT = """
import json, sys, weakref
from pathlib import Path
import torch
import torch.distributed as dist
from calib.microbench.communicators.mpi import MpiCommunicator
from calib.foundation.division import Division
from tests.training.wide_model import EACH, SEED, STEPS, WIDE
from calib.training.step import TrainingStep
from calib.training.teams import make_teams
from calib.training.worker import WorkerOptions

torch.set_num_threads(1)
control = MpiCommunicator()
found = {}
for backend in ("mpi", "gloo"):
    teams = make_teams(control, Division("data", control.size, control.size * EACH), backend)
    for form in ("flat", "overlap", "one bucket"):
        division = Division("data", control.size, control.size * EACH, overlap=form == "overlap")
        options = WorkerOptions(
            execution="float64", synchronized_batch_norm=True, ddp=form == "one bucket")
        step = TrainingStep(WIDE, division, SEED, teams, options)
        rows, events, phases = [], [], []
        for held in step.worker.held:
            held.parameter.register_post_accumulate_grad_hook(
                lambda p, name=held.name: events.append(name))
        right = dist.all_reduce
        def all_reduce(tensor, *arguments, **named):
            if named.get("async_op"):
                phase = step.clock.switch("forward")
                step.clock.switch(phase)
                events.append([tensor.numel(), phase])
            return right(tensor, *arguments, **named)
        dist.all_reduce = all_reduce
        update = step.optimizer.step
        def spy():
            rows.append({"d " + held.name: held.parameter.grad.clone() for held in step.worker.held})
            update()
        step.optimizer.step = spy
        log, seconds = [], []
        for _ in range(STEPS):
            events.clear()
            seconds.append(dict(step.iterate()[0]))
            log.append(list(events))
            rows[-1].update((h.name, h.parameter.detach().clone()) for h in step.worker.held)
        dist.all_reduce = right
        ddp = getattr(step.worker, "_ddp", None)
        kept = None if ddp is None else weakref.ref(ddp)
        ddp = None
        step.close()
        freed = kept is None or kept() is None
        found[f"{backend} {form}"] = {"log": log, "seconds": seconds, "freed": freed}
        torch.save(rows, Path(sys.argv[1]) / f"{backend} {form} {control.rank}.pt")
    teams.close()
if control.rank == 0:
    (Path(sys.argv[1]) / "found.json").write_text(json.dumps(found))
"""


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks: flat, DDP with overlap and in one bucket, over MPI and gloo."""
    directory = tmp_path_factory.mktemp("ddp")
    script = directory / "ranks.py"
    script.write_text(SCRIPT)
    said(2, script, str(directory))
    return directory


BACKENDS, FORMS = ("mpi", "gloo"), ("flat", "overlap", "one bucket")


@pytest.mark.mpi
@pytest.mark.waits
@needs_mpiexec
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_serial_training(launch: Path, backend: str, form: str) -> None:
    """Gradients and weights of each step, with synchronised batch norms among the buckets."""
    for rank in range(2):
        rows = torch.load(launch / f"{backend} {form} {rank}.pt", weights_only=True)
        for found, expected in zip(rows, serial(WIDE, 2, "momentum"), strict=True):
            assert set(found) == set(expected), "names are those of the model"
            for name in expected:
                torch.testing.assert_close(found[name], expected[name], **EXACT)


def buckets(ready: list[str]) -> list[Any]:
    """The events of an iteration whose gradients are made in this order.

    As torch documents: a bucket is full at 1 MiB, later ones at 25 MiB.
    """
    sizes = {name: parameter.numel() for name, parameter in wide().named_parameters()}
    events: list[Any] = []
    limit, filled = 2**20, 0
    for name in ready:
        events.append(name)
        filled += sizes[name]
        if filled * 8 >= limit or name == ready[-1]:
            events.append([filled, "backward"])
            limit, filled = 25 * 2**20, 0
    return events


@pytest.mark.mpi
@pytest.mark.waits
@needs_mpiexec
@pytest.mark.parametrize("backend", BACKENDS)
def test_allreduces_start_when_their_bucket_is_full(launch: Path, backend: str) -> None:
    """With overlap two, the first amid the backward; else one, when the last gradient is there."""
    found = json.loads((launch / "found.json").read_text())
    for form in ("overlap", "one bucket"):
        log = found[f"{backend} {form}"]["log"]
        for number, events in enumerate(log):
            ready = [event for event in events if isinstance(event, str)]
            items = sum(parameter.numel() for parameter in wide().parameters())
            if form == "overlap" and number > 0:
                assert events == buckets(ready)
                assert sum(isinstance(event, list) for event in events) == 2
            else:
                assert events == [*ready, [items, "backward"]]
    assert not any(isinstance(e, list) for row in found[f"{backend} flat"]["log"] for e in row)


@pytest.mark.mpi
@pytest.mark.waits
@needs_mpiexec
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_ddp_takes_is_told_apart(launch: Path, backend: str) -> None:
    """No packing of ours; what is not hidden is exchange; DDP is gone before its process group."""
    found = json.loads((launch / "found.json").read_text())
    flat = {"forward", "backward", "layerwise", "pack", "exchange", "unpack", "update"}
    for form in FORMS:
        of = found[f"{backend} {form}"]
        assert of["freed"]
        for row in of["seconds"]:
            taken = {phase for phase, seconds in row.items() if seconds > 0}
            assert taken == (flat if form == "flat" else flat - {"pack", "unpack"})
