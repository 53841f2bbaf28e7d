"""In place under every strategy, on threads as ranks: the phases and layers of the plan's own case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers.divided import model_case
from tests.helpers.ranks import results, run_ranks
from tests.helpers.stepped import SteppedDevice
from tests.helpers.tensor_ranks import taking_turns, thread_teams
from tests.training.in_place_ranks import (
    ABOUT,
    RANKS,
    SPEC,
    STRATEGIES,
    TWICE,
    Small,
    case_of,
    kept_steps,
)
from tests.training.launching import needs_mpiexec, said
from torch import Tensor, nn

from calib.microbench.cases import InPlaceCase
from calib.microbench.timing.repeat import Repetitions
from calib.training.clock import PhaseClock
from calib.training.in_place import iterations as in_place
from calib.training.in_place import overlap
from calib.training.in_place.iterations import measure_in_place, modules_of, phases_of
from calib.training.in_place.layers import LayerTimes
from calib.training.layer_program import layer_program
from calib.training.step import TrainingStep

ALWAYS, FLAT = {"forward", "backward", "update"}, {"pack", "unpack"}
PHASES = {
    ("serial", 1): ALWAYS,
    ("data", 2): ALWAYS | FLAT,
    ("filter", 2): ALWAYS | {"copies", "layerwise"},
    ("channel", 2): ALWAYS | {"copies", "layerwise"},
    ("tensor", 2): ALWAYS | {"layerwise"},
    ("spatial", 2): ALWAYS | FLAT | {"copies", "halo", "layerwise"},
    ("data+filter", 4): ALWAYS | FLAT | {"copies", "layerwise"},
    ("data+spatial", 4): ALWAYS | FLAT | {"copies", "halo", "layerwise"},
}
LAYERS = {"conv1", "pool", "conv2", "fc1", "fc2", "loss"}  # but the ReLU that is used twice


def hooks(names: set[str]) -> set[str]:
    return {f"layer_{way}:{name}" for way in ("forward", "backward") for name in names}


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[TrainingStep, list[Tensor]]]:
    """The steps that are made, with a copy of the weights that each began with."""
    for module in (in_place, overlap):
        for name in ("TrainingStep", "entry"):
            monkeypatch.setattr(module, name, getattr(module, name))  # put back at the end
    # how many iterations settle in a time depends on the machine
    monkeypatch.setattr(in_place, "SETTLE_S", 0.0)
    return kept_steps()


def measured(case: InPlaceCase) -> list[Repetitions]:
    with taking_turns(case.ranks):
        return results(
            run_ranks(case.ranks, lambda c: measure_in_place(c, case, 1, 0.0, 0.5, thread_teams))
        )


@pytest.mark.parametrize(("strategy", "p"), PHASES)
def test_phases_and_layers(
    strategy: str, p: int, steps: list[tuple[TrainingStep, list[Tensor]]]
) -> None:
    case = case_of(strategy, p)
    first, *others = measured(case)
    assert all(other.ranks == first.ranks for other in others)
    assert set(phases_of(case)) == PHASES[strategy, p]
    assert set(case.layer_names) == LAYERS | TWICE
    assert set(first.ranks) == PHASES[strategy, p] | hooks(LAYERS)
    assert {len(rows) for rows in first.ranks.values()} == {first.warmup + 6}
    assert {len(row) for rows in first.ranks.values() for row in rows} == {p}
    assert all(second >= 0 for rows in first.ranks.values() for row in rows for second in row)
    assert bool(first.memory) == (strategy in ("serial", "data"))

    # nothing is trained: sums that were never made lead nowhere
    assert len(steps) == p
    for step, begun in steps:
        for parameter, before in zip(step.parameters, begun, strict=True):
            assert torch.equal(parameter, before)
            kept = step.optimizer.state[parameter]["momentum_buffer"]
            assert kept.abs().max() > 0, "there was a gradient"


def test_of_fully_sharded_training_there_is_how_its_ranks_meet(
    steps: list[tuple[TrainingStep, list[Tensor]]],
) -> None:
    """Twice for the weights of each unit but the root, once for its gradients; layers are data's."""
    case = case_of("fully_sharded", 2)
    assert case.meetings == (("layerwise", "allgather", 1), ("layerwise", "reduce_scatter", 1))
    assert phases_of(case) == ["layerwise"]
    for found in measured(case):
        assert set(found.ranks) == {"layerwise"} and not found.memory
        assert min(min(row) for row in found.ranks["layerwise"]) > 0


def test_groups_of_one_kind_exchange_as_that_does() -> None:
    """One group of filter has nobody to sum its gradients with; one group of spatial has."""
    assert not FLAT & set(phases_of(model_case("m", 4, strategy="data+filter", inner=4)))
    assert set(phases_of(model_case("m", 4, strategy="data+spatial", inner=4))) >= FLAT


@needs_mpiexec
@pytest.mark.mpi
@pytest.mark.waits
def test_on_ranks_with_messages_of_one_item() -> None:
    """As on threads; and stages, each of which times the layers that it has; and real exchanges."""
    lines = said(RANKS, Path(__file__).with_name("in_place_ranks.py"))
    found: dict[str, Any] = json.loads(lines.splitlines()[-1])
    exchanged = found.pop("overlap")
    whole = [exchanged.pop("warmup") + 6, RANKS]
    operations = ("blocking", "overlapped", "backward", "exchange")
    assert exchanged == {
        "rows": dict.fromkeys(operations, whole),
        "moved": [0.0, 0.0],
        "same": True,
        "some": True,
    }
    assert tuple(found) == STRATEGIES
    for strategy, about in found.items():
        case = case_of(strategy, RANKS)
        phases, layers = PHASES.get((strategy, RANKS), {"forward", "backward"}), LAYERS
        if strategy == "pipeline":  # where a stage has one use of it, the ReLU is timed as well
            at = dict(zip(case.layer_names, case.layer_ranks, strict=True))
            layers = LAYERS if at["relu"] == at["relu#2"] else LAYERS | TWICE
        ranks = 1 if strategy == "pipeline" else RANKS
        repetitions = about["warmup"] + 6
        expected = {phase: [repetitions, RANKS] for phase in phases}
        assert about["rows"] == expected | {name: [repetitions, ranks] for name in hooks(layers)}
        assert about["memory"] == (strategy == "data")
        assert [rank["moved"] for rank in about["ranks"]] == [0.0] * RANKS
        assert all(rank["momentum"] for rank in about["ranks"])
        # a sum that is not made leaves the term as it is; the first stage takes the last one's gradient
        assert [rank["filled"] for rank in about["ranks"]] == [
            strategy not in ("data", "tensor")
        ] * RANKS


# which modules are layers, and what their clock counts


def test_a_module_of_several_layers_is_left_out() -> None:
    """Its hooks would count every use for each of them."""
    names = [layer.name for layer in SPEC.layers]
    assert set(names) >= TWICE
    module = Small()
    once = {"conv1", "conv2", "pool", "fc1", "fc2"}
    leaves = {name for name, part in module.named_modules() if not list(part.children())}
    assert leaves == once | {"relu"}
    clock = PhaseClock()
    with LayerTimes(modules_of(module, names), clock) as times:
        clock.begin()
        module(torch.randn(2, 3, 8, 8))
        clock.end()
        assert {name.partition(":")[2] for name in times.seconds} == once
    program = layer_program(module, ABOUT, 2)
    found = modules_of(program, names)
    assert set(found) == once
    assert all(found[name] is getattr(module, name) for name in once)


class Ticking(torch.autograd.Function):
    """Moves a clock: 2 s of its own and 50 s of a halo forward, 3 s and 70 s backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, now: list[float], clock: PhaseClock) -> Tensor:
        ctx.now, ctx.clock = now, clock
        now[0] += 2.0
        with clock.of("halo"):
            now[0] += 50.0
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> Any:
        with ctx.clock.of("halo"):
            ctx.now[0] += 70.0
        ctx.now[0] += 3.0
        return gradient[0], None, None


class Layer(nn.Module):
    """A layer that meets others, with a module in it that is no layer."""

    def __init__(self, now: list[float], clock: PhaseClock) -> None:
        super().__init__()
        self.inner = nn.Identity()
        self.now, self.clock = now, clock

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(Ticking.apply(x, self.now, self.clock))
        return y


def test_layers_by_a_clock_that_stands_still() -> None:
    now = [0.0]
    clock = PhaseClock(SteppedDevice(lambda: now[0]))
    layer = Layer(now, clock)
    with LayerTimes({"layer": layer}, clock) as times:
        for _ in range(2):
            clock.begin("forward")
            now[0] += 11.0
            y = layer(torch.ones(2, requires_grad=True)).sum()
            clock.switch("backward")
            now[0] += 13.0
            y.backward()
            now[0] += 1.0
            seconds = clock.end()
            assert times.seconds == {"layer_forward:layer": 2.0, "layer_backward:layer": 3.0}
            assert (seconds["forward"], seconds["backward"]) == (13.0, 17.0)
            assert (seconds["halo"], seconds["update"]) == (120.0, 0.0)
