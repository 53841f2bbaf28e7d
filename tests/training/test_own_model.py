"""A user's own module and training function, trained serially and data-parallel."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from calib.training.own.model import OwnModel, own_entry, own_layers
from calib.training.own.options import is_own, own_name
from tests.helpers.tensor_ranks import on_ranks
from torch import nn

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.training.models import built
from calib.training.step import TrainingStep, loss_function, synthetic_batch

MODULE = '''
import numpy as np
import torch
from torch import nn

torch.randn(5)  # drawn when it is imported


class Net(nn.Module):
    """Its forward depends on values: no tracer follows it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 3)

    def forward(self, x):
        y = self.layer(x.flatten(1))
        return y * 2 if float(y.detach().sum()) > 0 else y


def plain():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 3))


def frozen():
    return plain().requires_grad_(False)


def by_numpy():
    net = plain()
    with torch.no_grad():
        net[1].bias[:] = torch.from_numpy(np.random.rand(3))
    return net


net = plain()


def step(module, inputs, targets, loss):
    return loss(module(inputs), targets) + 0.5 * loss(module(-inputs), targets)


def two(module, inputs):
    return module(inputs).sum()


def breaks(module, inputs, targets, loss):
    raise KeyError("no such thing")


def backs(module, inputs, targets, loss):
    found = loss(module(inputs), targets)
    found.backward()
    return found.detach()


def many(module, inputs, targets, loss):
    return module(inputs)
'''
SHAPE = (3, 2, 2)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "own_net_of_test.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("own_net_of_test", None)


def own(name: str, function: str = "", loss: Any = "cross_entropy") -> OwnModel:
    words = f"own_net_of_test:{function}" if function else ""
    return own_entry(f"own_net_of_test:{name}", SHAPE, loss, 3, 4, words)


def gradients(about: OwnModel, division: Division) -> list[dict[str, torch.Tensor]]:
    """After one step's compute and exchange, on each rank, by the name in the user's module."""

    def program(teams: Any) -> dict[str, torch.Tensor]:
        step = TrainingStep(about, division, 3, teams)
        step.clock.begin("forward")
        step.worker.compute(step.inputs, step.targets)
        step.exchange_gradients()
        return {h.name.removeprefix("module."): h.parameter.grad for h in step.worker.held}

    return on_ranks(division, program)


def by_hand(about: OwnModel, replicas: int, each: int) -> dict[str, torch.Tensor]:
    """The same of the joint batch, with the user's function written out."""
    module: Any = built(about, 3)
    module = module.module if about.function else module
    batches = [synthetic_batch(about, each, 4 + r) for r in range(replicas)]
    inputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
    function = nn.functional.cross_entropy
    loss = function(module(inputs), targets)
    if about.function:
        loss = loss + 0.5 * function(module(-inputs), targets)
    loss.backward()
    return {name: p.grad for name, p in module.named_parameters()}


@pytest.mark.parametrize("function", ["", "step"])
@pytest.mark.parametrize("p", [1, 2])
def test_a_module_is_trained_by_a_function(here: Path, function: str, p: int) -> None:
    about = own("plain", function)
    division = Division("serial" if p == 1 else "data", p, 4 * p)
    wanted = by_hand(about, p, 4)
    for found in gradients(about, division):
        assert set(found) == set(wanted)
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, wanted[name])


def test_a_module_that_cannot_be_traced_trains_all_the_same(here: Path) -> None:
    about = own("Net")
    assert about.name == "own_net_of_test.Net" and is_own(about.words)
    with pytest.raises(InputError, match="filter needs a module whose layers are known") as error:
        own_layers(about, "filter")
    assert "\n" not in str(error.value)
    assert len(gradients(about, Division("data", 2, 8))) == 2


@pytest.mark.parametrize("name", ["vgg16", "vgg16-mini", "resnet50"])
def test_no_module_has_the_name_of_a_registered_model(name: str) -> None:
    """A report would hold it against the prediction of that model."""
    assert own_name(name) == name
    assert own_name(f"{name}:build") == f"{name}.build"
    assert own_name(f"mine.{name}:build") != own_name(f"{name}:build")


def test_a_seed_gives_every_rank_the_same_weights(here: Path) -> None:
    about = own("plain", "step")
    one, two, other = built(about, 5), built(about, 5), built(about, 6)
    pairs = list(zip(one.parameters(), two.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) and not torch.equal(a, c) for a, b, c in pairs)


def test_layers_of_one_that_can_be_traced(here: Path) -> None:
    names = [layer.name for layer in own_layers(own("plain")).layers]
    assert names == ["0", "1", "loss"]
    with pytest.raises(InputError, match="a training function works with serial and data only"):
        own_layers(own("plain", "step"), "filter")


@pytest.mark.parametrize(
    ("name", "function", "words"),
    [
        ("net", "", "one module, not built anew"),
        ("by_numpy", "", "other weights each time"),
        ("frozen", "", "no weights to train: requires_grad is False for all"),
        ("nothing", "", "the Python module own_net_of_test has no 'nothing'"),
        ("plain", "two", r"called as step\(module, inputs, targets, loss\): too many positional"),
        ("plain", "net2", "has no 'net2'"),
    ],
)
def test_what_cannot_be_an_own_model(here: Path, name: str, function: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        own(name, function)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            "breaks",
            r"failed, at own_net_of_test.py, line \d+ `raise KeyError.*KeyError: .no such thing",
        ),
        ("backs", "without a gradient: the backward is not to be called in it"),
        ("many", r"one number, not a tensor \(4, 3\)"),
    ],
)
def test_a_function_that_gives_no_loss(here: Path, function: str, words: str) -> None:
    about = own("plain", function)
    inputs, targets = synthetic_batch(about, 4, 0)
    with pytest.raises(InputError, match=words) as error:
        loss_function(about)(built(about, 0)(inputs), targets)
    assert "\n" not in str(error.value)


def test_numbers_that_cannot_be(here: Path) -> None:
    with pytest.raises(InputError, match="unknown loss 'hinge'; known: cross_entropy, mse"):
        own("plain", loss="hinge")
    with pytest.raises(InputError, match="at least 1"):
        own_entry("own_net_of_test:plain", (), "mse", 3)
