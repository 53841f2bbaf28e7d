"""filter, channel and data+filter on ranks that are threads, against the same module run serially.

The serial side is the plain module with hooks on its children: nothing of it is made by training/.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.tensor_ranks import on_ranks
from torch import Tensor, nn

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.oracle.layout.traffic import messages
from calib.oracle.trace.tracing import trace
from calib.training.clock import PhaseClock
from calib.training.models import ModelEntry
from calib.training.models.resnet import ResNet
from calib.training.strategies import make_worker
from calib.training.teams import Teams
from calib.training.worker import Task, WorkerOptions

EXACT = 1e-10
Named = dict[str, Tensor]


class Branches(nn.Module):
    """Two convolutions that read the image, two that read their concatenation, one of them in groups."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 5, 3, padding=1)
        self.two = nn.Conv2d(3, 4, 1, bias=False)
        self.grouped = nn.Conv2d(9, 6, 3, padding=1, groups=3)
        self.wide = nn.Conv2d(9, 6, (3, 1), padding=(1, 0))
        self.head = nn.Linear(6 * 16, 8)

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat([self.one(x), torch.relu(self.two(x))], 1)
        y: Tensor = self.head(torch.flatten(self.grouped(both) + self.wide(both), 1))
        return y


def plain() -> nn.Module:
    """Convolutions of 64 filters, which 3 do not divide, and two fully connected layers."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 10, 3, stride=2, bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(10, 6),
        nn.ReLU(),
        nn.Linear(6, 8),
    )


def sequences() -> nn.Module:
    """Fully connected layers of several rows a sample."""
    return nn.Sequential(
        nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4, bias=False), nn.Flatten(), nn.Linear(12, 8)
    )


def volumes() -> nn.Module:
    """Of three dimensions; autocast pools in float32, which the next layer reads."""
    return nn.Sequential(
        nn.Conv3d(3, 4, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool3d(2),
        nn.Conv3d(4, 6, (1, 2, 2)),
        nn.Flatten(),
        nn.Linear(12, 8),
    )


def residual() -> nn.Module:
    """Two bottlenecks: one shortcut is a convolution, the other the input."""
    return ResNet(classes=8, width=4, stage_blocks=(2,))


SHAPES: dict[Callable[[], nn.Module], tuple[int, ...]] = {
    plain: (3, 8, 8),
    Branches: (3, 4, 4),
    residual: (3, 16, 16),
    sequences: (3, 5),
    volumes: (3, 4, 4, 4),
}


def entry_of(build: Callable[[], nn.Module], shape: tuple[int, ...] = ()) -> ModelEntry:
    return ModelEntry("drawn", build, shape or SHAPES[build], "mse", 8, 4)


def data(about: ModelEntry, batch: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn((batch, *about.input_shape), generator=generator, dtype=dtype)
    return inputs, torch.randn((batch, about.outputs), generator=generator, dtype=dtype)


def built(about: ModelEntry, dtype: torch.dtype = torch.float64) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return about.build().to(dtype).train()


@dataclass
class Seen:
    """What a run showed: tensors of the first step, weights after all."""

    outputs: Named = field(default_factory=dict)
    output_gradients: Named = field(default_factory=dict)
    gradients: Named = field(default_factory=dict)
    weights: Named = field(default_factory=dict)
    held: Any = ()
    samples: tuple[int, int] = (0, 0)
    sent: list[tuple[str, int, int, str, str]] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)

    def look(self, layer: str, y: Tensor) -> None:
        if layer not in self.outputs and y.requires_grad:
            self.outputs[layer] = y.detach().clone()
            y.register_hook(lambda g: self.output_gradients.update({layer: g.detach().clone()}))


def serial(module: nn.Module, inputs: Tensor, targets: Tensor, steps: int = 1) -> Seen:
    """SGD with momentum on the plain module."""
    seen = Seen()
    for name, child in module.named_modules():
        if not list(child.children()) and not isinstance(child, nn.Identity):
            child.register_forward_hook(lambda m, x, y, name=name: seen.look(name, y))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        F.mse_loss(module(inputs), targets).backward()
        if not seen.gradients:
            seen.gradients = {
                name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None
            }
        optimizer.step()
    seen.weights = {name: p.detach() for name, p in module.named_parameters()}
    return seen


class NotedClock(PhaseClock):
    """Knows its phase."""

    now = "forward"

    def switch(self, phase: str) -> str:
        self.now = phase
        return super().switch(phase)


class Recorder:
    """A communicator whose calls are noted: operation, whole buffer's bytes, ranks, team, phase."""

    def __init__(self, communicator: Any, team: str, seen: Seen, clock: NotedClock) -> None:
        self._of, self._team, self._seen, self._clock = communicator, team, seen, clock
        self.rank, self.size = communicator.rank, communicator.size

    def __getattr__(self, name: str) -> Any:
        def call(*buffers: Any) -> None:
            whole = buffers[-1 if name == "allreduce" else 1]
            assert all(b.is_contiguous() and b.dim() == 1 for b in buffers if isinstance(b, Tensor))
            operation = name.removesuffix("v")
            what = (operation, whole.nbytes, self.size, self._team, self._clock.now)
            self._seen.sent.append(what)
            getattr(self._of, name)(*buffers)

        return call


def rank(
    teams: Teams,
    about: ModelEntry,
    module: nn.Module,
    division: Division,
    batch: tuple[Tensor, Tensor],
    steps: int = 1,
    options: WorkerOptions | None = None,
) -> Seen:
    """One rank's steps of the strategy."""
    seen, clock = Seen(), NotedClock()
    heard: dict[str, Any] = {
        name: of and Recorder(of, name, seen, clock)
        for name, of in (("group", teams.group), ("across", teams.across))
    }
    teams = replace(teams, **heard)
    task = Task(
        about,
        copy.deepcopy(module),
        nn.MSELoss(),
        division,
        teams,
        clock,
        options or WorkerOptions(),
    )
    worker = make_worker(task)
    if hasattr(worker.module, "observer"):
        worker.module.observer = seen.look
    first, stop = seen.samples = worker.samples
    inputs, targets = worker.take(*(whole[first:stop] for whole in batch))
    optimizer = worker.make_optimizer(lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9))
    for _ in range(steps):
        clock.begin("forward")
        worker.compute(inputs, targets)
        assert clock.now == "backward"
        gradients = [p.grad for p in worker.parameters if p.grad is not None]
        assert len(gradients) == len(worker.held)
        if worker.exchange is not None:
            worker.exchange.pack(gradients)
            clock.switch("exchange")
            worker.exchange.exchange()
            worker.exchange.unpack(gradients)
        if not seen.gradients:
            of = zip(worker.held, gradients, strict=True)
            seen.gradients = {held.name: gradient.clone() for held, gradient in of}
        optimizer.step()
        optimizer.zero_grad()
        seen.phases = clock.end()
    seen.weights = {held.name: held.parameter.detach() for held in worker.held}
    seen.held = worker.held
    return seen


def on_all(
    about: ModelEntry,
    division: Division,
    steps: int = 1,
    options: WorkerOptions | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[list[Seen], Seen]:
    """What each rank saw, and the serial run."""
    module, batch = built(about, dtype), data(about, division.batch, dtype)
    found = on_ranks(
        division, lambda teams: rank(teams, about, module, division, batch, steps, options)
    )
    return found, serial(module, *batch, steps)


def near(found: Tensor, expected: Tensor) -> bool:
    scale = float(expected.abs().max()) or 1.0
    return found.shape == expected.shape and float((found - expected).abs().max()) <= EXACT * scale


def check(about: ModelEntry, division: Division, steps: int = 1) -> list[Seen]:
    """Outputs, their gradients and weight gradients of every layer, and the weights in the end."""
    ranks, alone = on_all(about, division, steps)
    for seen in ranks:
        first, stop = seen.samples
        assert stop - first == division.batch // division.replicas
        assert set(alone.outputs) <= set(seen.outputs) or division.parts == 1
        for layer in set(alone.outputs) & set(seen.outputs):
            assert near(seen.outputs[layer], alone.outputs[layer][first:stop]), layer
            # of the mean over fewer samples
            expected = alone.output_gradients[layer][first:stop] * division.replicas
            assert near(seen.output_gradients[layer], expected), layer
        assert {held.name for held in seen.held} == set(alone.weights)
        for held in seen.held:
            assert near(seen.gradients[held.name], held.cut(alone.gradients[held.name])), held.name
            assert near(seen.weights[held.name], held.cut(alone.weights[held.name])), held.name
    whole_once(ranks, alone, division)
    return ranks


def whole_once(ranks: list[Seen], alone: Seen, division: Division) -> None:
    """Within a group the parts of a weight are disjoint and make up all of it."""
    for name, whole in alone.weights.items():
        count = torch.zeros_like(whole)
        kinds = set()
        for seen in ranks[: division.parts]:
            (held,) = [h for h in seen.held if h.name == name]
            held.cut(count).add_(1.0)
            kinds.add(held.gradient)
        assert kinds in ({"own"}, {"same"})
        assert torch.all(count == (1.0 if kinds == {"own"} else division.parts))


# Branches has a layer of 3 channels
CASES = [
    (build, strategy, p)
    for build in SHAPES
    for strategy in ("filter", "channel")
    for p in ((2, 3, 4) if build is plain else (2, 3) if build is Branches else (2,))
]


@pytest.mark.parametrize(("build", "strategy", "p"), CASES)
def test_equal_to_serial(build: Callable[[], nn.Module], strategy: str, p: int) -> None:
    """Three momentum steps; widths of 64, 10, 9, 8, 5 leave unequal parts."""
    ranks = check(entry_of(build), Division(strategy, p, 4), steps=3)
    assert any(held.gradient == "own" for held in ranks[0].held)


def test_filters_that_do_not_divide() -> None:
    """64 filters over 3 ranks are 22, 21 and 21."""
    division = Division("filter", 3, 2)
    ranks, _ = on_all(entry_of(plain), division)
    assert [seen.weights["0.weight"].shape[0] for seen in ranks] == [22, 21, 21]
    assert [seen.weights["0.bias"].shape for seen in ranks] == [(22,), (21,), (21,)]
    ranks, _ = on_all(entry_of(plain), Division("channel", 3, 2))
    assert [tuple(seen.weights["3.weight"].shape[:2]) for seen in ranks] == [
        (10, 22),
        (10, 21),
        (10, 21),
    ]
    assert {tuple(seen.weights["0.weight"].shape) for seen in ranks} == {(64, 3, 3, 3)}
    assert {tuple(seen.weights["8.bias"].shape) for seen in ranks} == {(8,)}


@pytest.mark.parametrize(("p1", "p2"), [(2, 2), (1, 2), (2, 1), (3, 2)])
def test_data_filter_is_serial_training(p1: int, p2: int) -> None:
    """Four momentum steps on a global batch of 6."""
    division = Division("data+filter", p1 * p2, 6, inner=p2)
    ranks = check(entry_of(plain), division, steps=4)
    assert [seen.samples[0] for seen in ranks] == [
        6 // p1 * (rank // p2) for rank in range(p1 * p2)
    ]


def test_batch_norms_of_a_group_are_its_own_or_those_of_all_samples() -> None:
    """Synchronised over the groups, training is the serial one; otherwise it is not."""
    about, division = entry_of(residual), Division("data+filter", 4, 4, inner=2)
    (first, *_), alone = on_all(
        about, division, options=WorkerOptions(synchronized_batch_norm=True)
    )
    (other, *_), _ = on_all(about, division)
    name = "stages.0.1.bn2.weight"
    assert near(first.gradients[name], alone.gradients[name])
    assert not near(other.gradients[name], alone.gradients[name])


@st.composite
def layers(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...], int]:
    """A model with one drawn layer in its middle, its input shape, and p."""
    p = draw(st.integers(2, 4))
    wide = st.integers(p, 9)
    channels, filters, bias = draw(wide), draw(wide), draw(st.booleans())
    dims = draw(st.sampled_from([0, 2, 3]))
    if dims == 0:
        model = nn.Sequential(
            nn.Linear(5, channels),
            nn.ReLU(),
            nn.Linear(channels, filters, bias),
            nn.ReLU(),
            nn.Linear(filters, 8),
        )
        return model, (5,), p
    kind = {2: nn.Conv2d, 3: nn.Conv3d}[dims]
    each = st.tuples(*[st.integers(1, 3)] * dims)
    kernel, stride, size = draw(each), draw(each), tuple(n + 2 for n in draw(each))
    padding = tuple(draw(st.integers(0, k // 2)) for k in kernel)
    out = [
        (n + 2 * a - k) // s + 1 for n, a, k, s in zip(size, padding, kernel, stride, strict=True)
    ]
    items = filters * math.prod(out)
    model = nn.Sequential(
        kind(3, channels, 1),
        nn.ReLU(),
        kind(channels, filters, kernel, stride, padding, bias=bias),
        nn.Flatten(),
        nn.Linear(items, 8),
    )
    return model, (3, *size), p


@settings(max_examples=20, deadline=None, derandomize=True)
@given(drawn=layers(), strategy=st.sampled_from(["filter", "channel"]), batch=st.integers(1, 3))
def test_any_layer(
    drawn: tuple[nn.Module, tuple[int, ...], int], strategy: str, batch: int
) -> None:
    model, shape, p = drawn
    check(entry_of(lambda: model, shape), Division(strategy, p, batch))


@pytest.mark.parametrize(
    ("division", "build", "dtype"),
    [
        (Division("filter", 2, 6), residual, "bfloat16"),
        (Division("filter", 2, 6), volumes, "bfloat16"),
        (Division("channel", 2, 6), volumes, "bfloat16"),
        (Division("filter", 3, 6), Branches, "float32"),
        (Division("filter", 3, 6), plain, "bfloat16"),
        (Division("channel", 2, 6), residual, "float32"),
        (Division("channel", 3, 6), Branches, "bfloat16"),
        (Division("data+filter", 4, 6, inner=2), plain, "bfloat16"),
        (Division("data+filter", 6, 6, inner=2), Branches, "float32"),
        (Division("data+filter", 2, 6, inner=1), plain, "float32"),
    ],
    ids=lambda value: getattr(value, "strategy", None),
)
def test_what_is_sent_is_what_is_predicted(
    division: Division, build: Callable[[], nn.Module], dtype: str
) -> None:
    """Operation, bytes and ranks, one by one in their order; autocast sends activations of 2 bytes."""
    about = entry_of(build)
    ranks, _ = on_all(about, division, options=WorkerOptions(dtype=dtype), dtype=torch.float32)
    spec = trace(about.build(), about.input_shape, about.name, about.loss)
    expected = [
        (
            m.operation,
            m.nbytes,
            m.group_size,
            "group" if m.stride == 1 and m.why != "gradients" else "across",
            "layerwise" if " of " in m.why and "shard" not in m.why else "exchange",
        )
        for m in messages(spec, division, {"float32": 4, "bfloat16": 2}[dtype])
    ]
    assert expected
    assert ranks[0].sent == expected  # the first of a group has the largest parts
    inside = [sent for sent in expected if sent[3] == "group"]
    for seen in ranks:
        assert [sent for sent in seen.sent if sent[3] == "group"] == inside
        assert (seen.phases["layerwise"] > 0.0) == bool(inside) == (seen.phases["pack"] > 0.0)


@pytest.mark.parametrize("strategy", ["filter", "channel"])
def test_autocast_is_that_of_serial_training(strategy: str) -> None:
    """bfloat16 has 8 bits, and sums of parts are rounded once more; weights stay float32."""
    about, options = entry_of(plain), WorkerOptions(dtype="bfloat16")
    module = built(about, torch.float32)
    batch = data(about, 4, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.mse_loss(module(batch[0]), batch[1])
    loss.backward()
    alone = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    ranks, _ = on_all(about, Division(strategy, 2, 4), 1, options, torch.float32)
    for seen in ranks:
        for held in seen.held:
            found, whole = seen.gradients[held.name], alone[held.name]
            assert found.dtype == torch.float32
            assert float((found - held.cut(whole)).norm() / whole.norm()) < 0.1, held.name


@pytest.mark.parametrize(
    ("strategy", "p", "inner", "reason"),
    [
        ("filter", 5, 1, "two has only 4 filters, so p is at most 4"),
        ("channel", 4, 1, "two has only 3 channels, so p is at most 3"),
        ("data+filter", 5, 5, "two has only 4 filters, so p2 is at most 4"),
    ],
)
def test_more_ranks_than_the_narrowest_layer_has(
    strategy: str, p: int, inner: int, reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        on_all(entry_of(Branches), Division(strategy, p, 10, inner=inner))


@pytest.mark.parametrize("strategy", ["filter", "channel"])
def test_one_rank_is_serial_training(strategy: str) -> None:
    (seen,) = check(entry_of(plain), Division(strategy, 1, 3), steps=2)
    assert seen.sent == []
