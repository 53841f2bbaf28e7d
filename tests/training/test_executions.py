"""Item types, channels_last and graphs in training: what is of which type, and what equals what."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.tensor_ranks import on_ranks
from tests.oracle.operator_models import traced
from tests.training.launching import needs_mpiexec, python, said
from torch import Tensor, nn

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.foundation.execution import execution_of
from calib.microbench.item_types import casting
from calib.microbench.memory import optimizer_tensors
from calib.training.allowed import why_not_trained
from calib.training.checks.gradients import gradient_difference
from calib.training.models import ModelEntry, built, entry
from calib.training.run.record import TrainingRun
from calib.training.step import TrainingStep, synthetic_batch
from calib.training.teams import Teams
from calib.training.worker import WorkerOptions

EACH, STEPS, SEED = 4, 3, 5
HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def images() -> nn.Module:
    """Weights with one input channel, of 1 x 1, and depthwise: strides that are ambiguous."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 6, 1),
        nn.Conv2d(6, 6, 3, groups=6),
        nn.Conv2d(6, 7, 3),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(63, 5),
    )


def volumes() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(2, 4, 3, bias=False),
        nn.BatchNorm3d(4),
        nn.ReLU(),
        nn.Conv3d(4, 3, 3),
        nn.Flatten(),
        nn.Linear(81, 5),
    )


IMAGES = ModelEntry("images", images, (1, 10, 10), "cross_entropy", 5, EACH)
VOLUMES = ModelEntry("volumes", volumes, (2, 7, 7, 7), "cross_entropy", 5, EACH)
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


# half precision


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize(
    "about", [entry("vgg16-mini"), entry("resnet50-mini")], ids=lambda a: a.name
)
def test_everything_is_of_the_item_type(about: ModelEntry, name: str) -> None:
    dtype = HALVES[name]

    def program(teams: Teams) -> list[float]:
        step = TrainingStep(
            about, Division("serial", 1, EACH), SEED, teams, WorkerOptions(execution=name)
        )
        update, seen = step.optimizer.step, list[torch.dtype]()

        def spy() -> None:
            seen.extend(p.grad.dtype for p in step.parameters if p.grad is not None)
            update()

        step.optimizer.step = spy  # type: ignore[method-assign]
        losses = [step.iterate()[1] or math.nan for _ in range(6)]
        buffers = [b for b in step.worker.module.buffers() if b.is_floating_point()]
        held = [step.inputs, *step.parameters, *buffers, *optimizer_tensors(step.optimizer)]
        assert {tensor.dtype for tensor in held} == set(seen) == {dtype}
        assert step.targets.dtype == torch.int64
        return losses

    (losses,) = on_ranks(Division("serial", 1, EACH), program)
    assert all(map(math.isfinite, losses)) and losses[-1] < losses[0]


def small() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 5),
    )


SMALL = ModelEntry("small", small, (3, 8, 8), "mse", 5, EACH)
RANKS = """
import sys
from pathlib import Path
import torch
from calib.foundation.division import Division
from calib.microbench.communicators.mpi import MpiCommunicator
from calib.training.models import entry
from calib.training.runner import Job, train
from calib.training.stopping import Stopping
from calib.training.teams import make_teams
from calib.training.step import TrainingStep
from calib.training.worker import WorkerOptions
from tests.training.test_executions import FORMS, RUNS, SEED, SMALL, STEPS

torch.set_num_threads(1)
control = MpiCommunicator()
for backend in ("mpi", "gloo"):
    for execution in ("float16", "bfloat16"):
        for form, (strategy, more, options) in FORMS.items():
            division = Division(strategy, 2, 8, **more)
            teams = make_teams(control, division, backend)
            options = WorkerOptions(execution=execution, **options)
            step = TrainingStep(SMALL, division, SEED, teams, options)
            losses = [step.iterate()[1] for _ in range(STEPS)]
            left = {h.name: (h.parameter.detach(), h.ranges) for h in step.worker.held}
            name = f"{backend} {execution} {form} {control.rank}.pt"
            torch.save((losses, left), Path(sys.argv[1]) / name)
            step.close()
            teams.close()
for execution in RUNS:
    options, path = WorkerOptions(execution=execution), Path(sys.argv[1]) / f"{execution}.jsonl"
    job = Job(entry("lenet5"), Division("data", 2, 16), options=options, stopping=Stopping(6))
    train(control, job, path, lambda event: None)
"""
RUNS = ("float16", "bfloat16-mixed")
NORMS: Any = {"synchronized_batch_norm": True}
FORMS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "flat": ("data", {}, NORMS),
    "overlap": ("data", {"overlap": True}, NORMS),
    "bucket": ("data", {}, {"ddp": True, **NORMS}),
    "sharded": ("data", {"sharded_optimizer": True}, NORMS),
    "accumulated": ("data", {"accumulation": 2}, {}),
    "filter": ("filter", {}, {}),
    "channel": ("channel", {}, {}),
    "spatial": ("spatial", {"grid": (2,)}, NORMS),
    "pipeline": ("pipeline", {"segments": 2, "boundaries": (4,)}, {}),
}


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one launch of two ranks left: the forms of training, and whole runs."""
    directory = tmp_path_factory.mktemp("executions")
    script = directory / "ranks.py"
    script.write_text(RANKS)
    said(2, script, str(directory))
    return directory


@pytest.mark.mpi
@pytest.mark.waits
@needs_mpiexec
def test_every_strategy_trains_in_half_precision(left: Path) -> None:
    """By both libraries: as float64 does, but for the rounding of a few steps, in its own type."""
    batches = {
        p: [synthetic_batch(SMALL, 8 // p, SEED + 1 + rank) for rank in range(p)] for p in (1, 2)
    }
    for form, (strategy, _, _) in FORMS.items():
        chunks = {"accumulated": 4, "pipeline": 2}.get(form, 1)
        parts = batches[2 if strategy == "data" else 1]
        inputs, targets = (torch.cat(each).double() for each in zip(*parts, strict=True))
        module = built(SMALL, SEED).double().train()
        start = {name: p.detach().clone() for name, p in module.named_parameters()}
        update = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)
        exact = []
        for _ in range(STEPS):
            update.zero_grad()
            pieces = zip(inputs.chunk(chunks), targets.chunk(chunks), strict=True)
            exact.append(0.0)
            for x, t in pieces:
                loss = F.mse_loss(module(x), t) / chunks
                loss.backward()
                exact[-1] += float(loss.detach())
            update.step()
        weights = dict(module.named_parameters())
        for backend in ("mpi", "gloo"):
            for execution, dtype in HALVES.items():
                rounding = 8 * torch.finfo(dtype).eps
                stem = left / f"{backend} {execution} {form}"
                ranks = [torch.load(f"{stem} {rank}.pt") for rank in range(2)]
                rows = [losses for losses, _ in ranks if losses[0] is not None]
                for mine, whole in zip(zip(*rows, strict=True), exact, strict=True):
                    assert math.isclose(sum(mine) / len(mine), whole, rel_tol=rounding), stem
                assert {name for _, held in ranks for name in held} == set(weights)
                for _, held in ranks:
                    for name, (weight, ranges) in held.items():
                        wanted, before = weights[name].detach(), start[name]
                        for dimension, (first, stop) in enumerate(ranges):
                            wanted = wanted.narrow(dimension, first, stop - first)
                            before = before.narrow(dimension, first, stop - first)
                        assert weight.dtype == dtype
                        # steps of 1e-3 are lost between numbers that are eps apart
                        far = STEPS * torch.finfo(dtype).eps * float(before.abs().max())
                        moved = float((wanted - before).abs().max())
                        off = float((weight.double() - wanted).abs().max())
                        assert off <= 2 * far + 0.3 * moved, (stem, name)


# memory format


def test_weights_and_samples_have_channels_last() -> None:
    def program(teams: Teams, about: ModelEntry) -> None:
        options = WorkerOptions(execution="float32+channels_last")
        step = TrainingStep(about, Division("serial", 1, EACH), SEED, teams, options)
        layout = FORMATS[step.inputs.dim()]
        assert step.inputs.is_contiguous(memory_format=layout)
        weights = [p for p in step.parameters if p.dim() in FORMATS]
        assert weights and all(p.is_contiguous(memory_format=layout) for p in weights)
        outputs = []
        step.worker.module[3].register_forward_hook(lambda *of: outputs.append(of[2]))  # type: ignore[index,operator]
        step.iterate()
        assert outputs[0].is_contiguous(memory_format=layout), "layers run on what they are given"

    for about in (IMAGES, VOLUMES):
        on_ranks(Division("serial", 1, EACH), lambda teams, about=about: program(teams, about))


@pytest.mark.parametrize("about", [IMAGES, VOLUMES], ids=lambda about: about.name)
@pytest.mark.parametrize(
    ("p", "more"),
    [(1, {}), (2, {}), (3, {"sharded_optimizer": True}), (2, {"accumulation": 2})],
    ids=["serial", "flat", "sharded", "accumulated"],
)
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_channels_last_training_is_training(
    about: ModelEntry, p: int, more: dict[str, Any], optimizer: str
) -> None:
    """Weights after a few steps, to float64's rounding, of channels first by the same division."""
    division = Division("data", p, p * EACH, **more)

    def program(teams: Teams) -> list[dict[str, Tensor]]:
        found = []
        for execution in ("float64", "float64+channels_last"):
            options = WorkerOptions(optimizer, execution)
            step = TrainingStep(about, division, SEED, teams, options)
            for _ in range(STEPS):
                step.iterate()
            found.append({h.name: h.parameter.detach().clone() for h in step.worker.held})
        return found

    for first, last in on_ranks(division, program):
        for name, weight in first.items():
            torch.testing.assert_close(last[name], weight, rtol=1e-10, atol=1e-12)
    start = built(about, SEED).double()
    assert all(not torch.equal(p, first[name]) for name, p in start.named_parameters())


@pytest.mark.parametrize("more", [{}, {"sharded_optimizer": True}, {"accumulation": 2}])
def test_the_check_before_a_run_has_the_memory_format(
    more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    division, options = (
        Division("data", 2, 8, **more),
        WorkerOptions(execution="bfloat16+channels_last"),
    )
    made: list[str] = []

    class Noted(TrainingStep):
        def __init__(self, *arguments: Any) -> None:
            made.append(arguments[4].execution)
            super().__init__(*arguments)

    monkeypatch.setattr("calib.training.checks.gradients.TrainingStep", Noted)
    found = on_ranks(
        division, lambda teams: gradient_difference(VOLUMES, division, 1, teams, options)
    )
    assert max(found) < 1e-6 and set(made) == {"float64+channels_last"}


# what cannot be


@pytest.mark.parametrize(
    ("division", "execution", "more", "said"),
    [
        (
            "spatial",
            "float32+channels_last",
            {},
            "channels_last is of serial, data and fully_sharded, not of spatial",
        ),
        ("pipeline", "float32+cuda_graph", {}, "cuda_graph is of serial and data, not of pipeline"),
        (
            "fully_sharded",
            "float32+cuda_graph",
            {},
            "cuda_graph is of serial and data, not of fully",
        ),
        ("data", "float32+channels_last", {"input_shape": (6,)}, "a sample of this model is 6"),
        ("data", "float32+channels_last", {"input_shape": (6, 9)}, "a sample of this model is 6x9"),
        ("data", "float32+cuda_graph", {"synchronized": True}, "holds no messages"),
    ],
)
def test_what_training_refuses(
    division: str, execution: str, more: dict[str, Any], said: str
) -> None:
    found = why_not_trained(Division(division, 2, 8), None, execution, **more)
    assert len(found) == 1 and said in found[0]


def test_what_training_takes() -> None:
    for execution in (
        "float16",
        "bfloat16+channels_last",
        "bfloat16-mixed+channels_last+cuda_graph",
    ):
        for shape in ((3, 8, 8), (2, 7, 7, 7)):
            assert not why_not_trained(
                Division("data", 2, 8), None, execution, ddp=True, input_shape=shape
            )


def test_a_graph_on_a_cpu_is_refused_in_one_line() -> None:
    def program(teams: Teams) -> None:
        with pytest.raises(InputError, match="leave \\+cuda_graph out"):
            TrainingStep(
                IMAGES,
                Division("serial", 1, EACH),
                SEED,
                teams,
                WorkerOptions(execution="float32+cuda_graph"),
            )

    on_ranks(Division("serial", 1, EACH), program)


def test_autocast_in_a_graph_caches_nothing() -> None:
    for mark, cached in (("", True), ("+cuda_graph", False)):
        with casting(execution_of(f"bfloat16-mixed{mark}"), "cpu"):
            assert torch.is_autocast_enabled("cpu")
            assert torch.is_autocast_cache_enabled() == cached


@pytest.mark.mpi
@pytest.mark.waits
@needs_mpiexec
def test_a_run_says_its_execution_and_micro_batches(tmp_path: Path) -> None:
    execution = "bfloat16+channels_last"
    line = (
        f"-m calib train --model lenet5 --strategy data -p 2 --execution {execution} --accumulate 4"
    )
    done = python(tmp_path, *line.split(), "--iterations", "6", "--json", "-o", "run.jsonl")
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    assert run["summary"]["execution"] == run["header"]["execution"] == execution
    assert run["summary"]["accumulation"] == run["header"]["division"]["accumulation"] == 4
    assert all(math.isfinite(of["loss"]) for of in run["iterations"])
    assert run["header"]["gradient_difference"] < 1e-10


@pytest.mark.mpi
@pytest.mark.waits
@needs_mpiexec
@pytest.mark.parametrize("execution", RUNS)
def test_a_record_says_its_execution(left: Path, execution: str) -> None:
    run = TrainingRun.read(left / f"{execution}.jsonl")
    assert run.complete and run.header.execution == execution
    assert all(of.loss is not None and math.isfinite(of.loss) for of in run.iterations)
    assert run.header.gradient_difference is not None and run.header.gradient_difference < 1e-10


def test_operators_and_shared_weights_are_trained_by_every_strategy() -> None:
    """But by a plan per layer, which cuts each layer by the rules of its kind."""
    for model in ("vit", "language"):
        for division in (
            Division("data", 2, 8),
            Division("filter", 2, 8),
            Division("channel", 2, 8),
            Division("pipeline", 2, 8, segments=2),
        ):
            assert not why_not_trained(division, traced(model))
    (why,) = why_not_trained(Division("pipeline", 2, 8, boundaries=(1,)), traced("language"))
    assert why.startswith("nothing is sent to the stage that begins with ")  # but positions
    assert not why_not_trained(Division("spatial", 2, 8, grid=(2,)), traced("vit"))
    (why,) = why_not_trained(Division("spatial", 2, 8, grid=(2,)), traced("language"))
    assert "the first layer, arange, cannot be split" in why
