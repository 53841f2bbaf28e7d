"""Mistakes that a reviewer found, each with the model that showed it. Ranks are threads."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.helpers.tensor_ranks import on_ranks
from torch import Tensor, nn

from calib.foundation.division import Division
from calib.foundation.errors import InputError, MeasurementError
from calib.microbench.devices.cuda import CudaDevice
from calib.training.checks.gradients import gradient_difference
from calib.training.clock import PhaseClock
from calib.training.layer_program import layer_program
from calib.training.models import ModelEntry, entry
from calib.training.stages import cut
from calib.training.step import TrainingStep
from calib.training.teams import Teams
from calib.training.worker import WorkerOptions

EXACT = WorkerOptions(execution="float64")


def model(build: Callable[[], nn.Module], shape: tuple[int, ...], outputs: int) -> ModelEntry:
    return ModelEntry("toy", build, shape, "mse", outputs, 2)


class Partly(nn.Module):
    """The first layer's weights are frozen, and one layer is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 5), nn.Linear(5, 4)
        self.unused = nn.Linear(7, 7)
        self.third = nn.Linear(4, 2)
        self.first.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.third(torch.tanh(self.second(self.first(x))))
        return y


def weights_after(division: Division, about: ModelEntry, steps: int = 3) -> list[dict[str, Tensor]]:
    def program(teams: Teams) -> dict[str, Tensor]:
        step = TrainingStep(about, division, 1, teams, EXACT)
        for _ in range(steps):
            step.iterate()
        return {name: p.detach().clone() for name, p in step.worker.module.named_parameters()}

    return on_ranks(division, program)


def test_a_sharded_optimizer_of_frozen_and_unused_weights() -> None:
    """A gradient that is missing had moved all behind it to other weights."""
    about = model(Partly, (3,), 2)
    whole = weights_after(Division("data", 2, 4), about)
    sharded = weights_after(Division("data", 2, 4, sharded_optimizer=True), about)
    for plain, mine in zip(whole, sharded, strict=True):
        for name, weight in plain.items():
            torch.testing.assert_close(mine[name], weight, rtol=1e-12, atol=1e-14, msg=name)
    torch.testing.assert_close(whole[0]["third.bias"], whole[1]["third.bias"], rtol=0, atol=0)


def in_place() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 8, 3, padding=1),
        nn.Flatten(),
        nn.Linear(8 * 36, 2),
    )


@pytest.mark.parametrize("strategy", ["filter", "channel", "spatial"])
def test_a_relu_in_place_behind_a_layer_that_is_split(strategy: str) -> None:
    division, about = Division(strategy, 2, 2), model(in_place, (3, 6, 6), 2)
    found = on_ranks(division, lambda teams: gradient_difference(about, division, 1, teams, EXACT))
    assert max(found) < 1e-12


def test_a_stage_that_begins_in_place() -> None:
    about = model(in_place, (3, 6, 6), 2)
    module = in_place().double()
    whole = copy.deepcopy(module)
    inputs = torch.randn(
        2, 3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )
    whole(inputs).sum().backward()
    first, second = (cut(layer_program(module, about, 1), (1,), number) for number in range(2))
    (sent,) = first.program(inputs)
    received = sent.detach().requires_grad_()
    result = second.program(received)
    (result[0] if isinstance(result, tuple) else result).sum().backward()
    sent.backward(received.grad)
    for (name, expected), found in zip(whole.named_parameters(), module.parameters(), strict=True):
        assert expected.grad is not None and found.grad is not None, name
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-12, atol=1e-14)


def dropping() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Conv2d(4, 4, 3, padding=1),
        nn.Flatten(),
        nn.Linear(4 * 36, 2),
    )


def test_dropout_of_parts_is_off_in_the_check() -> None:
    division, about = Division("spatial", 2, 2), model(dropping, (3, 6, 6), 2)
    found = on_ranks(division, lambda teams: gradient_difference(about, division, 1, teams, EXACT))
    assert max(found) < 1e-12


def test_few_values_for_a_batch_norm_are_no_wrong_result() -> None:
    """Of two samples in 2 x 2 parts, rounding was 2e-4 of the gradients."""
    division, about = Division("spatial", 4, 4, grid=(2, 2)), entry("resnet50-mini")
    found = on_ranks(division, lambda teams: gradient_difference(about, division, 0, teams, EXACT))
    assert max(found) < 1e-8


def test_a_batch_norm_over_one_value_is_refused_on_all_ranks() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(12, 2))

    about, division = model(build, (3, 3, 1), 2), Division("spatial", 2, 1, grid=(2,))

    def program(teams: Teams) -> str:
        with pytest.raises(InputError, match="1 would normalise over one value") as error:
            TrainingStep(about, division, 1, teams, EXACT)
        return str(error.value)

    assert len(set(on_ranks(division, program))) == 1


def test_a_weight_that_nobody_holds_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from calib.training.checks import gradients as gradient_check

    class Forgets(TrainingStep):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.worker.held = self.worker.held[1:]

    monkeypatch.setattr(gradient_check, "TrainingStep", Forgets)
    division, about = Division("filter", 2, 2), model(in_place, (3, 6, 6), 2)

    def program(teams: Teams) -> None:
        with pytest.raises(MeasurementError, match="gradients differ"):
            gradient_difference(about, division, 1, teams, EXACT)

    on_ranks(division, program)


PROPERTIES = SimpleNamespace(uuid="a", name="GPU", L2_cache_size=1 << 20)


def test_what_a_gpu_waited_between_phases_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events of a made-up device whose time passes when it is told: 1 s forward, 10 s wait, 1 s."""
    now = [0.0]

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.at = 0.0

        def record(self, stream: None) -> None:
            self.at = now[0]

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, other: Any) -> float:
            return float(1e3 * (other.at - self.at))

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: PROPERTIES)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    clock = PhaseClock(CudaDevice(0))
    clock.begin("forward")
    now[0] = 1.0
    clock.switch("exchange")
    now[0] = 11.0
    clock.restart()
    now[0] = 12.0
    seconds = clock.end()
    assert (seconds["forward"], seconds["exchange"]) == (1.0, 1.0)
    assert sum(seconds.values()) == 2.0
