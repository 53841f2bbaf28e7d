"""A user's own module and training function, trained serially and data-parallel."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers.tensor_ranks import on_ranks
from torch import nn

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.foundation.own import Own, is_own, own_name
from calib.training.checks.gradients import gradient_difference
from calib.training.checks.own import described, own_layers, require_as_traced, traced
from calib.training.models import ModelEntry, built, entry
from calib.training.run.lines import GRADIENT_TOLERANCE
from calib.training.step import TrainingStep, loss_function, synthetic_batch
from calib.training.worker import WorkerOptions

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


def tokens():
    return nn.Sequential(nn.Embedding(20, 4), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 9))


class Text(nn.Module):
    """Attention with dropout, positions, and tables of two sizes that look the input up."""

    def __init__(self):
        super().__init__()
        self.token, self.kind = nn.Embedding(20, 4), nn.Embedding(15, 4)
        self.place = nn.Embedding(7, 4)
        self.block = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5, batch_first=True)

    def forward(self, x):
        y = self.token(x) + self.kind(x) + self.place(torch.arange(x.shape[1]))
        return self.block(y) @ self.token.weight.T


def pixels():
    return nn.Sequential(nn.Conv2d(3, 5, 1))


class Returns(nn.Module):
    how = staticmethod(lambda y: y)

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 3)

    def forward(self, x):
        return self.how(self.layer(x.flatten(1)))


class Pair(Returns):
    how = staticmethod(lambda y: (y, y))


class Classes(Returns):
    how = staticmethod(lambda y: y.argmax(1))


class Detached(Returns):
    how = staticmethod(torch.Tensor.detach)


class Sum(Returns):
    how = staticmethod(lambda y: y.sum(0))


class Number(Returns):
    how = staticmethod(lambda y: y.sum(1))


class Decays(Returns):
    def forward(self, x):
        with torch.no_grad():
            self.layer.weight.mul_(0.5)
        return super().forward(x)


class DecaysBehindVersions(Returns):
    def forward(self, x):
        self.layer.weight.data.mul_(0.5)
        return super().forward(x)


class TwoInputs(Returns):
    def forward(self, x, mask):
        return super().forward(x)


class Breaks(Returns):
    def forward(self, x):
        return super().forward(x[:, :2])


def lazy():
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(3))


def counting():
    """Running statistics are buffers, which a forward may change."""
    return nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 3))


'''
SHAPE = (3, 2, 2)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "own_net_of_test.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("own_net_of_test", None)


def told(
    name: str, function: str = "", shape: tuple[int, ...] = SHAPE, loss: Any = "cross_entropy"
) -> Own:
    words = f"own_net_of_test:{function}" if function else ""
    outputs = 3 if function else None
    return described.__wrapped__(f"own_net_of_test:{name}", shape, loss, outputs, words)


def own(name: str, function: str = "", shape: tuple[int, ...] = SHAPE) -> ModelEntry:
    of = told(name, function, shape)
    return entry(own_name(of.built_by), of)


def gradients(about: ModelEntry, division: Division) -> list[dict[str, torch.Tensor]]:
    """After one step's compute and exchange, on each rank, by the name in the user's module."""

    def program(teams: Any) -> dict[str, torch.Tensor]:
        step = TrainingStep(about, division, 3, teams)
        step.clock.begin("forward")
        step.worker.compute(step.inputs, step.targets)
        step.exchange_gradients()
        return {h.name.removeprefix("module."): h.parameter.grad for h in step.worker.held}

    return on_ranks(division, program)


def by_hand(about: ModelEntry, replicas: int, each: int) -> dict[str, torch.Tensor]:
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
    about, of = own("Net"), told("Net")
    assert about.name == "own_net_of_test.Net" and is_own(of.built_by)
    with pytest.raises(InputError, match="filter needs a module whose layers are known") as error:
        own_layers("net", of, "filter")
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
    names = [layer.name for layer in own_layers("net", told("plain")).layers]
    assert names == ["0", "1", "loss"]
    with pytest.raises(
        InputError, match="a training function works with serial, data and fully_sharded only"
    ):
        own_layers("net", told("plain", "step"), "filter")


@pytest.mark.parametrize(
    ("name", "function", "words"),
    [
        ("net", "", "one module, not built anew"),
        ("by_numpy", "", "other weights each time"),
        ("frozen", "", "no weights to train: requires_grad is False for all"),
        ("nothing", "", "the Python module own_net_of_test has no 'nothing'"),
        ("plain", "two", r"called as step\(module, inputs, targets, loss\): too many positional"),
        ("plain", "net2", "has no 'net2'"),
        ("lazy", "", "no shape for 1.weight before its first forward: give its lazy modules"),
        ("Pair", "", "returns a tuple: return one tensor, or let a training function"),
        ("Classes", "", r"returns integers \(torch.int64\)"),
        ("Detached", "", "a tensor without a gradient: a no_grad or detach is in it"),
        ("Sum", "", r"returns \(3,\) for 2 samples: the first dimension is the batch"),
        ("Decays", "", "changes its own weights, which only the optimizer may"),
        ("DecaysBehindVersions", "", "changes its own weights, which only the optimizer may"),
        ("Decays", "step", "changes its own weights, which only the optimizer may"),
        ("TwoInputs", "", "reads x, mask: calib gives a model one tensor"),
        (
            "Breaks",
            "",
            r"failed, at own_net_of_test.py, line \d+ `return self.how.* cannot be mult",
        ),
    ],
)
def test_what_cannot_be_an_own_model(here: Path, name: str, function: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        told(name, function)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            "breaks",
            r"failed, at own_net_of_test.py, line \d+ `raise KeyError.*KeyError: .no such thing",
        ),
        ("backs", "without a gradient: the backward is not to be called in it"),
        ("many", r"one number, not a tensor \(2, 3\)"),
    ],
)
def test_a_function_that_gives_no_loss(here: Path, function: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        told("plain", function)
    assert "\n" not in str(error.value)


def test_numbers_that_cannot_be(here: Path) -> None:
    with pytest.raises(InputError, match="unknown loss 'hinge'; known: cross_entropy, mse"):
        told("plain", loss="hinge")
    with pytest.raises(InputError, match="at least 1"):
        told("plain", shape=())
    with pytest.raises(InputError, match="own_net_of_test:plain has 3 outputs, not 4"):
        described("own_net_of_test:plain", SHAPE, "mse", 4)
    with pytest.raises(InputError, match="needs the number of outputs"):
        described("own_net_of_test:plain", SHAPE, "mse", function="own_net_of_test:step")


def test_what_a_forward_reads_and_gives(here: Path) -> None:
    """Rows of the smallest table that looks the input up; classes last behind a matrix product."""
    words = "own_net_of_test"
    assert told("plain") == Own(f"{words}:plain", SHAPE, "cross_entropy", 3)
    assert told("counting").outputs == 3
    wanted = Own(f"{words}:tokens", (7,), "cross_entropy", 9, (7,), True, 20)
    assert told("tokens", shape=(7,)) == wanted
    assert traced(f"{words}:tokens", (7,), "net", "cross_entropy").own == wanted
    text = told("Text", shape=(5,))
    assert text == Own(f"{words}:Text", (5,), "cross_entropy", 20, (5,), True, 15)
    assert told("tokens", shape=(7,), loss="mse").places == (9,)  # as the output's shape
    assert told("Number", loss="mse") == Own(f"{words}:Number", SHAPE, "mse", 0)
    assert traced(f"{words}:Number", SHAPE, "net", "mse").own == told("Number", loss="mse")
    with pytest.raises(InputError, match="one number of each sample, which is no class"):
        traced(f"{words}:Number", SHAPE, "net", "cross_entropy")
    image = told("pixels")
    assert (image.outputs, image.places, image.classes_last) == (5, (2, 2), False)
    assert traced(f"{words}:pixels", SHAPE, "net", "cross_entropy").own == image


def test_data_of_any_shape(here: Path) -> None:
    inputs, targets = synthetic_batch(own("Text", shape=(5,)), 64, 0)
    assert (inputs.shape, inputs.dtype) == ((64, 5), torch.int64)
    assert (int(inputs.min()), int(inputs.max())) == (0, 14)
    assert (targets.shape, int(targets.min()), int(targets.max())) == ((64, 5), 0, 19)
    number = told("Number", loss="mse")
    inputs, targets = synthetic_batch(entry("number", number), 64, 0)
    assert (len(inputs), targets.shape, targets.dtype) == (64, (64,), torch.float32)
    inputs, targets = synthetic_batch(own("pixels"), 64, 0)
    assert (inputs.shape, inputs.dtype) == ((64, *SHAPE), torch.float32)
    assert (targets.shape, int(targets.max())) == ((64, 2, 2), 4)


def test_the_loss_of_tokens_is_the_mean_over_all_of_them(here: Path) -> None:
    """A function of the user's may flatten them itself."""
    about = own("tokens", shape=(7,))
    inputs, targets = synthetic_batch(about, 3, 0)
    output = built(about, 0)(inputs)
    logs = output.log_softmax(-1)
    each = [-logs[n, t, targets[n, t]] for n in range(3) for t in range(7)]
    loss = loss_function(about)
    torch.testing.assert_close(loss(output, targets), torch.stack(each).mean())
    flat = loss(output.reshape(-1, 9), targets.reshape(-1))
    torch.testing.assert_close(flat, loss(output, targets))


@pytest.mark.parametrize(("name", "shape"), [("tokens", (7,)), ("Text", (5,)), ("pixels", SHAPE)])
@pytest.mark.parametrize(
    "division",
    [Division("serial", 1, 4), Division("data", 2, 8), Division("data", 2, 8, accumulation=2)],
    ids=lambda division: division.slug,
)
def test_any_module_trains_on_such_data(
    here: Path, name: str, shape: tuple[int, ...], division: Division
) -> None:
    about = own(name, shape=shape)

    def program(teams: Any) -> float:
        return gradient_difference(about, division, 3, teams, WorkerOptions())

    assert max(on_ranks(division, program)) < GRADIENT_TOLERANCE


@pytest.mark.parametrize("strategy", ["filter", "channel"])
def test_tokens_train_by_strategies_that_divide_layers(here: Path, strategy: str) -> None:
    about, division = own("tokens", shape=(7,)), Division(strategy, 2, 8)

    def program(teams: Any) -> float:
        return gradient_difference(about, division, 3, teams, WorkerOptions())

    assert max(on_ranks(division, program)) < GRADIENT_TOLERANCE


def test_a_record_is_held_against_the_code(here: Path) -> None:
    words = "own_net_of_test"
    model = traced(f"{words}:counting", SHAPE, "net", "cross_entropy")
    require_as_traced(model)
    other = traced(f"{words}:plain", SHAPE, "net", "cross_entropy")
    changed = other.model_copy(update={"built_by": f"{words}:counting"})
    with pytest.raises(
        InputError, match=r"counting has changed since net was traced, first in .*'0'"
    ):
        require_as_traced(changed)
    gone = model.model_copy(update={"built_by": f"{words}:no_more"})
    with pytest.raises(InputError, match=r"net cannot be built any more: .* has no 'no_more'"):
        require_as_traced(gone)
    hidden = traced(f"{words}:plain", SHAPE, "net", "cross_entropy")
    with pytest.raises(InputError, match="breaks failed"):
        require_as_traced(hidden, f"{words}:breaks")
