"""The check before a run: right exchanges pass, broken ones have no time. Ranks are threads."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.norms import Tensors
from tests.helpers.ranks import run_ranks
from tests.helpers.tensor_ranks import TensorRanks, on_ranks, taking_turns, thread_teams
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal, spectral_norm

from calib.foundation.division import Division
from calib.foundation.errors import MeasurementError
from calib.training.checks.chance import WithoutChance
from calib.training.checks.gradients import gradient_difference
from calib.training.checks.own import described
from calib.training.checks.serial import PiecewiseNorm, define_norms
from calib.training.gradients import flat
from calib.training.layer_program import layer_program
from calib.training.models import ModelEntry, entry
from calib.training.models.resnet import ResNet
from calib.training.models.vgg import VGG16
from calib.training.run.lines import GRADIENT_TOLERANCE
from calib.training.split import halo
from calib.training.worker import Worker, WorkerOptions

SEED = 3
DIVISIONS = {
    "data": Division("data", 2, 4),
    "sharded": Division("data", 3, 3, sharded_optimizer=True),
    "fully sharded": Division("fully_sharded", 3, 3),
    "spatial": Division("spatial", 2, 2, grid=(2,)),
    "grid": Division("spatial", 4, 2, grid=(2, 2)),
    "filter": Division("filter", 3, 2),
    "channel": Division("channel", 2, 2),
    "data+filter": Division("data+filter", 4, 4, inner=2),
    "data+spatial": Division("data+spatial", 4, 4, inner=2),
}


class Functional(nn.Module):
    """Dropout and its switch as a function, which no module could tell."""

    def __init__(self) -> None:
        super().__init__()
        self.body = VGG16(size=32, classes=10, hidden=16, divisor=16)
        self.last = nn.Linear(10, 10)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(F.dropout(self.body(x), 0.5, self.training))
        return y


def entry_of(name: str, build: Callable[[], nn.Module], size: int = 32) -> ModelEntry:
    """A model whose weights are the same in every thread, whose generators are one and the same."""
    torch.manual_seed(SEED)
    made = build()
    return ModelEntry(name, lambda: copy.deepcopy(made), (3, size, size), "cross_entropy", 10, 2)


VGG = entry_of("vgg", lambda: VGG16(size=32, classes=10, hidden=16, divisor=16))
RESNET = entry_of("resnet", lambda: ResNet(classes=10, width=2, stage_blocks=(1, 1, 1, 1)), size=64)
FUNCTIONAL = entry_of("functional", Functional)


@pytest.fixture(autouse=True)
def traced_before(one_thread: None) -> None:
    """No rank traces: ranks that are threads must not."""
    for about in (VGG, RESNET, FUNCTIONAL):
        layer_program(about.build(), about, 1)
        layer_program(about.build().double(), about, 1)


def differences(about: ModelEntry, division: Division, **options: Any) -> list[float]:
    """What every rank is told."""
    return on_ranks(
        division,
        lambda teams: gradient_difference(about, division, SEED, teams, WorkerOptions(**options)),
    )


@pytest.mark.parametrize("name", DIVISIONS)
def test_right_gradients_are_those_of_the_joint_batch(name: str) -> None:
    """To rounding in float64, though the run is in float32; the same number on every rank."""
    found = differences(VGG, DIVISIONS[name])
    assert len(set(found)) == 1 and 0 <= found[0] < 1e-12


@pytest.mark.parametrize("synchronized", [False, True], ids=["local", "synchronized"])
@pytest.mark.parametrize("name", ["data", "grid", "data+spatial"])
def test_batch_norms_are_compared_as_they_are_defined(name: str, synchronized: bool) -> None:
    found = differences(RESNET, DIVISIONS[name], synchronized_batch_norm=synchronized)
    assert found[0] < 1e-8  # parts of 1 x 1 images, 2 samples: nothing is left but rounding


def test_dropout_of_functions_and_of_modules_is_off() -> None:
    """Ranks draw other masks than the serial run: no mistake of anyone's."""
    assert differences(FUNCTIONAL, DIVISIONS["data"])[0] < 1e-12
    assert differences(FUNCTIONAL, DIVISIONS["filter"])[0] < 1e-12


def test_without_dropout_all_else_goes_on() -> None:
    x = torch.arange(-3.0, 3.0)
    with WithoutChance():
        assert torch.equal(F.dropout(input=x, p=0.9), x)
        assert torch.equal(nn.Dropout(0.9)(x), x)
        assert torch.equal(nn.Dropout2d(0.9)(x.view(1, 1, 2, 3)), x.view(1, 1, 2, 3))
        assert torch.equal(F.relu(x), x.clamp(min=0))
        assert torch.equal(torch.ops.aten.dropout.default(x, 0.9, True), x)


def test_stochastic_depth_drops_no_path() -> None:
    """As torchvision, timm and transformers write it."""
    keep = 0.75
    with WithoutChance():
        assert torch.equal(torch.empty(4, 1).bernoulli_(keep), torch.ones(4, 1))
        assert torch.equal(torch.floor(keep + torch.rand(4, 1)), torch.ones(4, 1))
        assert torch.equal(torch.randn_like(torch.ones(3)), torch.zeros(3))
    with WithoutChance(building=True):
        assert torch.equal(torch.empty(4, 1).bernoulli_(keep), torch.ones(4, 1))
        assert len(set(nn.Linear(3, 5).weight.flatten().tolist())) > 1, "weights are drawn"
    assert set(torch.empty(1000).bernoulli_(keep).tolist()) == {0.0, 1.0}, "outside it is as ever"


class Casts(nn.Module):
    """Names item types, and has a weight that its power iteration normalises anew in every forward."""

    def __init__(self) -> None:
        super().__init__()
        self.body = VGG16(size=32, classes=10, hidden=16, divisor=16)
        self.last = spectral_norm(nn.Linear(10, 10))

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x.float())
        places = torch.zeros(len(y), 10).scatter_add(1, torch.zeros_like(y, dtype=torch.long), y)
        made: Tensor = self.last(y + places)
        return made


@pytest.mark.parametrize("name", ["data", "filter"])
def test_casts_and_the_buffers_of_a_replica_are_no_difference(name: str) -> None:
    about = entry_of("casts", Casts)
    layer_program(about.build(), about, 1)
    layer_program(about.build().double(), about, 1)
    assert differences(about, DIVISIONS[name])[0] < 1e-12


class Orthogonal(nn.Module):
    """Its constructor looks at the values of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.last = orthogonal(nn.Linear(3 * 32 * 32, 10))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.last(x.flatten(1))
        return made


def test_a_build_that_a_user_gives_may_look_at_values() -> None:
    about = described(f"{__name__}:Orthogonal", (3, 32, 32), "cross_entropy")
    found = differences(entry("Orthogonal", about), DIVISIONS["data"])
    assert found[0] < 1e-12


def forgets_to_divide(self: Any, gradients: Any) -> None:
    flat.unpack(self._flat, gradients, 1)


def loses_a_tensor(self: Any, gradients: Any) -> None:
    flat.unpack(self._flat, gradients, self._divisor)
    gradients[len(gradients) // 2].zero_()


def swaps_tensors(self: Any, gradients: Any) -> None:
    flat.unpack(self._flat, gradients, self._divisor)
    shapes = [g.shape for g in gradients]
    first = next(i for i, shape in enumerate(shapes) if shapes.count(shape) > 1)
    second = shapes.index(shapes[first], first + 1)
    kept = gradients[first].clone()
    gradients[first].copy_(gradients[second])
    gradients[second].copy_(kept)


def spoils(index: int) -> Callable[[Any, Any], None]:
    def unpack(self: Any, gradients: Any) -> None:
        flat.unpack(self._flat, gradients, self._divisor)
        gradients[index].view(-1)[0] = float("nan")

    return unpack


def exchanges_nothing(self: Any) -> None:
    self._flat.mul_(self._divisor)


BROKEN: dict[str, tuple[str, Callable[..., None]]] = {
    "not divided": ("unpack", forgets_to_divide),
    "not exchanged": ("exchange", exchanges_nothing),
    "one tensor lost": ("unpack", loses_a_tensor),
    "two tensors swapped": ("unpack", swaps_tensors),
    "the first is NaN": ("unpack", spoils(0)),
    "the last is NaN": ("unpack", spoils(-1)),
}


def refused(about: ModelEntry, division: Division) -> None:
    """Every rank raises, with the model, the strategy, the limit and what came of it."""
    with taking_turns(division.p):
        outcomes = run_ranks(
            division.p,
            lambda control: gradient_difference(
                about, division, SEED, thread_teams(control, division), WorkerOptions()
            ),
        )
    for outcome in outcomes:
        assert isinstance(outcome, MeasurementError), f"passed as {outcome}"
        for word in (about.name, division.strategy, "limit 1e-05", "no time is kept"):
            assert word in str(outcome)


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("name", ["data", "data+filter"])
def test_a_broken_exchange_has_no_time(
    name: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, broken = BROKEN[fault]
    monkeypatch.setattr(flat.FlatAllreduce, method, broken)
    refused(VGG, DIVISIONS[name])


def test_a_halo_that_is_off_by_a_row_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the right number and shape, taken one further in."""
    make = halo._HaloDimension.__init__

    def off_by_one(self: Any, *arguments: Any) -> None:
        make(self, *arguments)
        owns = self._reach.owns
        self._given = [
            (abs(first - 1) if owns > rows else first, rows, rank)
            for first, rows, rank in self._given
        ]

    monkeypatch.setattr(halo._HaloDimension, "__init__", off_by_one)
    refused(VGG, DIVISIONS["spatial"])


def test_swapped_shards_have_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks' filters in the other order: all shapes are right."""

    def swapped(self: TensorRanks, mine: Tensor, gathered: Tensor) -> None:
        shards = self._exchange(mine.detach().reshape(-1).clone())
        with torch.no_grad():
            gathered.view(-1).copy_(torch.cat(shards[::-1]))

    monkeypatch.setattr(TensorRanks, "allgather", swapped)
    refused(VGG, Division("filter", 2, 2))


def test_a_wrong_loss_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right gradients with the loss of other samples: a run would print it."""
    compute = Worker.compute
    monkeypatch.setattr(
        Worker, "compute", lambda self, x, t: compute(self, x, t) * (1 + 2 * GRADIENT_TOLERANCE)
    )
    refused(VGG, DIVISIONS["data"])


def pieces(x: Tensor) -> list[tuple[slice, ...]]:
    """Of 4 samples in 2 chunks, and 6 x 4 pixels in parts of 3 x 4."""
    every = slice(None)
    return [(slice(a, a + 2), every, slice(b, b + 3)) for a in (0, 2) for b in (0, 3)]


@pytest.mark.parametrize("in_turn", [False, True])
def test_a_piecewise_norm_is_one_batch_norm_for_each_piece(in_turn: bool) -> None:
    """Outputs, gradients and running statistics against torch's module on each piece by itself."""
    torch.manual_seed(1)
    x = torch.randn(4, 3, 6, 4, dtype=torch.float64, requires_grad=True)
    dy = torch.randn_like(x)
    norm = nn.BatchNorm2d(3).double()
    cells = [(slice(0, 3),), (slice(3, 6),)]
    made = PiecewiseNorm(copy.deepcopy(norm), 2, cells, in_turn)
    y = made(x)
    (found,) = torch.autograd.grad(y, x, dy)
    alone = [copy.deepcopy(norm) for _ in range(2 if in_turn else 4)]
    for number, piece in enumerate(pieces(x)):
        mine = alone[number % 2 if in_turn else number]  # in turn, a cell's second chunk comes next
        part = x.detach()[piece].requires_grad_()
        expected = mine(part)
        torch.testing.assert_close(y[piece], expected, rtol=0, atol=1e-14)
        (gradient,) = torch.autograd.grad(expected, part, dy[piece])
        torch.testing.assert_close(found[piece], gradient, rtol=0, atol=1e-13)
    for number, mine in enumerate(alone):
        mean, variance = made.running[divmod(number, 2)]
        torch.testing.assert_close(mean, mine.running_mean, rtol=0, atol=1e-15)
        torch.testing.assert_close(variance, mine.running_var, rtol=0, atol=1e-15)


def test_a_defined_program_is_that_of_separate_replicas() -> None:
    """The joint batch with norms in chunks, against the plain module on each chunk by itself."""
    module = RESNET.build().double().train()
    program = layer_program(copy.deepcopy(module), RESNET, 1)
    define_norms(program, Division("data", 2, 4), synchronized=False)
    seen = Tensors()
    program.observer = seen.see
    x = torch.randn(4, 3, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    whole = program(x)
    torch.autograd.backward(whole.square().sum())
    for chunk in (slice(0, 2), slice(2, 4)):
        y = module(x[chunk])
        torch.testing.assert_close(whole[chunk], y, rtol=1e-12, atol=1e-12)
        torch.autograd.backward(y.square().sum())
    named = dict(program.graph.named_parameters())
    assert set(named) == {name for name, _ in module.named_parameters()}
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(named[name].grad, parameter.grad, rtol=1e-9, atol=1e-9)
    layers = {layer.name for layer in program.spec.layers} - {"loss"}
    assert set(seen.outputs) == layers == set(seen.gradients)
    (logits,), (back,) = seen.outputs["fc"], seen.gradients["fc"]
    assert torch.equal(logits, whole.detach()) and back is not None
    torch.testing.assert_close(back, 2 * logits)
