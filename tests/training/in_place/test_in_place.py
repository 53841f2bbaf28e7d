"""Iterations in place: rows of the phases and of the layers, and hooks that change nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.helpers.divided import model_case
from tests.helpers.programs import build
from tests.helpers.ranks import results, run_ranks
from tests.helpers.stepped import SteppedDevice
from tests.helpers.tensor_ranks import on_ranks, taking_turns, thread_teams
from torch import Tensor, nn

from calib.foundation.division import Division
from calib.microbench.timing.repeat import Repetitions
from calib.training.clock import PhaseClock
from calib.training.in_place import iterations as in_place
from calib.training.in_place.iterations import measure_in_place
from calib.training.in_place.layers import LayerTimes, nodes_between
from calib.training.models import entry
from calib.training.step import TrainingStep
from calib.training.teams import Teams, place_of
from calib.training.worker import WorkerOptions

ONE_RANK, DATA = ("forward", "backward", "update"), ("pack", "unpack")


@pytest.fixture(autouse=True)
def _few_repetitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many iterations settle in a time depends on the machine."""
    monkeypatch.setattr(in_place, "SETTLE_S", 0.0)


def measured(model: str, ranks: int, **more: Any) -> list[Repetitions]:
    """The fewest repetitions, on threads as ranks."""
    case = model_case(model, ranks, 2, **more)
    with taking_turns(ranks):
        return results(
            run_ranks(ranks, lambda c: measure_in_place(c, case, 1, 0.0, 0.5, thread_teams))
        )


def parameter_bytes(model: str) -> int:
    return sum(4 * p.numel() for p in build(model, 0).parameters())


@pytest.mark.parametrize("model", ["vgg16-mini", "resnet50-mini"])
def test_one_rank_times_phases_and_every_layer(model: str) -> None:
    (found,) = measured(model, 1)
    phases = {name for name in found.ranks if ":" not in name}
    assert phases == set(ONE_RANK)
    module = build(model, 0)
    leaves = {name for name, part in module.named_modules() if not list(part.children())}
    forwards = {n.partition(":")[2] for n in found.ranks if n.startswith("layer_forward:")}
    backwards = {n.partition(":")[2] for n in found.ranks if n.startswith("layer_backward:")}
    assert forwards == {*leaves, "loss"}
    identities = {name for name, part in module.named_modules() if isinstance(part, nn.Identity)}
    assert backwards == forwards - identities
    assert phases | {f"layer_forward:{n}" for n in forwards} | {
        f"layer_backward:{n}" for n in backwards
    } == set(found.ranks)
    # no budget: one repetition to warm up and the fewest after it, of both passes
    assert {len(rows) for rows in found.ranks.values()} == {1 + 6}
    assert found.warmup == 1
    assert found.first_s == sum(found.ranks[phase][0][0] for phase in ONE_RANK)


@pytest.mark.parametrize(("execution", "share"), [("bfloat16", 0.5), ("bfloat16-mixed", 1.0)])
def test_a_case_runs_in_its_execution(execution: str, share: float) -> None:
    """Weights and state of the model in its type; under autocast they stay in float32.

    There the backward keeps a copy of them, of half the size.
    """
    (found,) = measured("vgg16-mini", 1, execution=execution)
    (usual,) = measured("vgg16-mini", 1)
    assert set(found.ranks) == set(usual.ranks)
    for part in ("weights", "gradients", "optimizer"):
        assert found.memory[part] == share * usual.memory[part]
    copies = 0.0 if share < 1 else parameter_bytes("vgg16-mini") / 2
    assert copies < found.memory["activations"] < copies + 0.9 * usual.memory["activations"]


def test_several_ranks_time_their_own_work_and_no_exchange() -> None:
    """The gradients' allreduce is measured by itself: here one item of them travels."""
    first, second = measured("vgg16-mini", 2)
    phases = {name for name in first.ranks if ":" not in name}
    assert phases == {*ONE_RANK, *DATA}
    (alone,) = measured("vgg16-mini", 1)
    assert set(first.ranks) - phases == {name for name in alone.ranks if ":" in name}
    assert first.ranks == second.ranks and first.memory == second.memory
    assert {len(row) for rows in first.ranks.values() for row in rows} == {2}
    assert first.memory["exchange"] == parameter_bytes("vgg16-mini")


@pytest.mark.parametrize(("optimizer", "state"), [("sgd", 0), ("momentum", 1), ("adam", 2)])
def test_memory_of_an_iteration(optimizer: str, state: int) -> None:
    model = "cosmoflow-mini"
    (found,) = measured(model, 1, optimizer=optimizer)
    weights, memory = parameter_bytes(model), found.memory
    tensors = len(list(build(model, 0).parameters()))
    assert memory["weights"] == memory["gradients"] == weights
    assert memory["optimizer"] == state * weights + (4 * tensors if optimizer == "adam" else 0)
    info = entry(model)
    assert memory["inputs"] == 2 * 4 * (torch.Size(info.input_shape).numel() + info.outputs)
    parts = ("weights", "buffers", "gradients", "optimizer", "activations", "inputs")
    assert memory["parts"] == sum(memory[part] for part in parts)
    assert memory["workspace"] == max(0, memory["peak_live"] - memory["parts"])
    assert memory["activations"] < memory["peak_live"] < memory["peak_rss"]


def test_memory_is_that_of_the_rank_that_needs_most(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_a_rank(step: TrainingStep) -> dict[str, int]:
        return {"peak_live": 10 + step.inputs.numel(), "rank": ranks[id(step)]}

    ranks: dict[int, int] = {}

    class Uneven(TrainingStep):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            rank = ranks[id(self)] = arguments[3].place.rank
            if rank == 1:
                self.inputs = torch.cat([self.inputs, self.inputs])
                self.targets = torch.cat([self.targets, self.targets])

    monkeypatch.setattr(in_place, "TrainingStep", Uneven)
    monkeypatch.setattr(in_place, "step_memory", of_a_rank)
    assert [found.memory["rank"] for found in measured("cosmoflow-mini", 2)] == [1, 1]


def test_the_step_takes_the_optimizer() -> None:
    division = Division("serial", 1, 2)

    def program(teams: Teams) -> list[type]:
        about = entry("cosmoflow-mini")
        made = [
            TrainingStep(about, division, 0, teams),
            TrainingStep(about, division, 0, teams, WorkerOptions("adam")),
        ]
        assert made[0].optimizer.defaults["momentum"] == 0.9
        return [type(step.optimizer) for step in made]

    (types,) = on_ranks(division, program)
    assert types == [torch.optim.SGD, torch.optim.Adam]


def test_phases_are_kept_apart_by_barriers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that only the others move: 100 s until they come to a barrier, 7 s of an allreduce."""
    now = [0.0]
    monkeypatch.setattr("calib.training.clock.perf_counter", lambda: now[0])
    calls: list[str] = []

    class Team:
        rank, size, device = 0, 2, SteppedDevice(lambda: now[0])

        def barrier(self) -> None:
            calls.append("barrier")
            now[0] += 100.0

        def allreduce(self, buffer: Tensor) -> None:
            calls.append("allreduce")
            now[0] += 7.0

    division, team = Division("data", 2, 2), Team()
    teams: Any = Teams(place_of(division, 0), team, None, None, None)
    step = TrainingStep(entry("cosmoflow-mini"), division, 0, teams)
    phases = [*ONE_RANK, *DATA]
    timings = in_place.in_place_block(step, [*phases, "exchange"])(2)
    assert calls == ["barrier", "barrier", "allreduce"] * 2
    assert timings.seconds["exchange"] == [7.0, 7.0]
    assert sum(map(sum, timings.seconds.values())) == 14.0
    assert all(timings.seconds[phase] == [0.0, 0.0] for phase in phases)
    assert timings.starts == [100.0, 307.0], "where an iteration begins"
    calls.clear()
    step.iterate()
    assert calls == ["allreduce"], "training runs without barriers"


class Residual(nn.Module):
    """ReLUs in place, one used twice, and an addition that is no module."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 1)
        self.norm, self.relu = nn.BatchNorm2d(3), nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm(self.first(x)))
        z: Tensor = self.drop(self.relu(self.second(y) + y))
        return z


def gradients(module: nn.Module, x: Tensor) -> list[Tensor]:
    module.zero_grad(set_to_none=True)
    torch.manual_seed(3)  # of the dropout's mask
    module(x).square().sum().backward()
    return [p.grad for p in module.parameters() if p.grad is not None]


def test_hooks_change_no_gradient_and_are_removed() -> None:
    torch.manual_seed(0)
    module, x = Residual(), torch.randn(2, 3, 5, 5)
    expected = gradients(module, x)
    clock = PhaseClock()
    with LayerTimes(dict(module.named_modules()), clock) as times:
        clock.begin()
        found = gradients(module, x)
        clock.end()
        names = set(times.seconds)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert all(seconds > 0 for seconds in times.seconds.values())
    parts = ("first", "second", "norm", "relu", "drop")
    assert names == {f"layer_{way}:{part}" for way in ("forward", "backward") for part in parts}
    clock.begin()
    gradients(module, x)
    clock.end()
    assert times.seconds == {}, "without hooks nothing is timed"


def test_a_backward_is_the_nodes_that_the_module_added() -> None:
    module, x = nn.Linear(3, 2), torch.randn(4, 3)
    for given in (x, (2 * x.clone().requires_grad_())):
        latest = -1 if given.grad_fn is None else given.grad_fn._sequence_nr()
        output = module(given)
        assert output.grad_fn is not None
        nodes = nodes_between({output.grad_fn}, latest)
        assert sorted(node.name() for node in nodes) == ["AddmmBackward0", "TBackward0"]
    assert nodes_between({output.grad_fn}, output.grad_fn._sequence_nr()) == []


def test_a_change_in_place_of_a_view_has_its_own_backward_alone() -> None:
    """Dropout in place after flatten, as in EfficientNet: its input's node is not behind it."""
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2, inplace=True)
    )
    last = module[-1]
    found: list[str] = []

    def after(_: nn.Module, given: tuple[Tensor], output: Tensor) -> None:
        assert output.grad_fn is not None
        found.extend(node.name() for node in nodes_between({output.grad_fn}, latest[0]))

    latest: list[int] = []
    last.register_forward_pre_hook(lambda _, given: latest.append(given[0].grad_fn._sequence_nr()))
    last.register_forward_hook(after)
    module(torch.randn(2, 3, 6, 6))
    assert found and not any("Convolution" in name or "Mean" in name for name in found)


def test_seconds_are_of_the_layer_alone() -> None:
    """A clock that only the layers move: 2 s forward, 3 s backward a use; between them 100 s."""
    now = [0.0]

    class Ticking(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, forth: float, back: float) -> Tensor:
            now[0] += forth
            ctx.back = back
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradient: Tensor) -> Any:
            now[0] += ctx.back
            return gradient[0], None, None

    class Layer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            moved: Tensor = Ticking.apply(x, 2.0, 3.0)
            return moved

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.once, self.twice = Layer(), Layer()

        def forward(self, x: Tensor) -> Tensor:
            x = Ticking.apply(self.twice(self.once(x)), 100.0, 100.0)
            moved: Tensor = self.twice(x)
            return moved

    module, clock = Model(), PhaseClock(SteppedDevice(lambda: now[0]))
    with LayerTimes(dict(module.named_modules()), clock) as times:
        for _ in range(2):
            clock.begin()
            module(torch.ones(2, requires_grad=True)).sum().backward()
            clock.end()
            assert times.seconds == {
                "layer_forward:once": 2.0,
                "layer_forward:twice": 4.0,
                "layer_backward:once": 3.0,
                "layer_backward:twice": 6.0,
            }
