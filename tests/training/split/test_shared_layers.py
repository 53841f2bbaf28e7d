"""filter, channel and data+filter on ranks that are threads, against the same module run serially."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.tensor_ranks import Noted, on_ranks
from tests.training.serial_runs import (
    F64,
    Found,
    compare,
    data,
    is_near,
    model_entry,
    ranks_of,
    serial,
    train,
)
from torch import Tensor, nn

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.oracle.layout.traffic import messages
from calib.oracle.trace.tracing import trace
from calib.training.clock import PhaseClock
from calib.training.models import ModelEntry
from calib.training.models.resnet import ResNet
from calib.training.teams import Teams
from calib.training.worker import WorkerOptions

Sent = tuple[str, int, int, str, str]  # operation, whole buffer's bytes, ranks, team, phase


class NotedClock(PhaseClock):
    """Knows its phase."""

    now = "forward"

    def switch(self, phase: str) -> str:
        self.now = phase
        return super().switch(phase)


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
    return model_entry(build, shape or SHAPES[build], outputs=8)


SETTINGS: Any = {"frozen": False, "of_input": False}


def check(about: ModelEntry, division: Division, steps: int = 1) -> list[Found]:
    """Outputs, their gradients and weight gradients of every layer, and the weights after each step."""
    batch = data(about, division.batch)
    ranks = ranks_of(about, division, batch, steps=steps, **SETTINGS)
    alone = serial(about, batch, steps, **SETTINGS)
    compare(ranks, alone, division.replicas)
    layers = {
        name
        for name, module in about.build().named_modules()
        if not list(module.children()) and not isinstance(module, nn.Identity)
    }
    for found in ranks:
        first, stop = found.samples
        assert stop - first == division.batch // division.replicas
        assert layers <= set(found.outputs) or division.parts == 1
    whole_once(ranks, alone, division)
    return ranks


def whole_once(ranks: list[Found], alone: Found, division: Division) -> None:
    """Within a group the parts of a weight are disjoint and make up all of it."""
    for name, whole in alone.weights[0].items():
        count = torch.zeros_like(whole)
        kinds = set()
        for found in ranks[: division.parts]:
            (held,) = [h for h in found.held if h.name == name]
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

    def shapes(strategy: str, name: str) -> list[tuple[int, ...]]:
        ranks = ranks_of(about, Division(strategy, 3, 2), data(about, 2), **SETTINGS)
        return [tuple(found.weights[0][name].shape) for found in ranks]

    about = entry_of(plain)
    assert shapes("filter", "0.weight") == [(22, 3, 3, 3), (21, 3, 3, 3), (21, 3, 3, 3)]
    assert shapes("filter", "0.bias") == [(22,), (21,), (21,)]
    assert shapes("channel", "3.weight") == [(10, 22, 3, 3), (10, 21, 3, 3), (10, 21, 3, 3)]
    assert shapes("channel", "0.weight") == [(64, 3, 3, 3)] * 3
    assert shapes("channel", "8.bias") == [(8,)] * 3


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
    batch, name = data(about, 4), "stages.0.1.bn2.weight"
    whole = serial(about, batch, **SETTINGS).weight_gradients[name]
    for synchronized in (True, False):
        options = replace(F64, synchronized_batch_norm=synchronized)
        (first, *_) = ranks_of(about, division, batch, options=options, **SETTINGS)
        assert is_near(first.weight_gradients[name], whole) == synchronized


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
        (Division("filter", 2, 6), residual, "bfloat16-mixed"),
        (Division("filter", 2, 6), volumes, "bfloat16-mixed"),
        (Division("channel", 2, 6), volumes, "bfloat16-mixed"),
        (Division("filter", 3, 6), Branches, "float32"),
        (Division("filter", 3, 6), plain, "bfloat16-mixed"),
        (Division("channel", 2, 6), residual, "float32"),
        (Division("channel", 3, 6), Branches, "bfloat16-mixed"),
        (Division("data+filter", 4, 6, inner=2), plain, "bfloat16-mixed"),
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
    batch = data(about, division.batch, torch.float32)

    def program(teams: Teams) -> tuple[list[Sent], dict[str, float]]:
        clock, sent = NotedClock(), list[Sent]()

        def noted(team: str, of: Any) -> Any:
            def note(operation: str, whole: Tensor, buffers: list[Tensor]) -> None:
                assert all(b.is_contiguous() and b.dim() == 1 for b in buffers)
                sent.append((operation, whole.nbytes, of.size, team, clock.now))

            return of and Noted(of, note)

        heard = {name: noted(name, getattr(teams, name)) for name in ("group", "across")}
        options = WorkerOptions(execution=dtype)
        teams = replace(teams, **heard)
        train(about, division, teams, batch, options=options, clock=clock, **SETTINGS)
        return sent, clock.end()

    ranks = on_ranks(division, program)
    spec = trace(about.build(), about.input_shape, about.name, about.loss)
    expected = [
        (
            m.operation,
            m.nbytes,
            m.group_size,
            "group" if m.stride == 1 and m.why != "gradients" else "across",
            "layerwise" if " of " in m.why and "shard" not in m.why else "exchange",
        )
        for m in messages(spec.run_as(dtype), division)
    ]
    assert expected
    assert ranks[0][0] == expected  # the first of a group has the largest parts
    inside = [sent for sent in expected if sent[3] == "group"]
    for sent, phases in ranks:
        assert [one for one in sent if one[3] == "group"] == inside
        assert (phases["layerwise"] > 0.0) == bool(inside) == (phases["pack"] > 0.0)


@pytest.mark.parametrize("strategy", ["filter", "channel"])
def test_autocast_is_that_of_serial_training(strategy: str) -> None:
    """bfloat16 has 8 bits, and sums of parts are rounded once more; weights stay float32."""
    about, options = entry_of(plain), WorkerOptions(execution="bfloat16-mixed")
    batch = data(about, 4, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        alone = serial(about, batch, **SETTINGS).weight_gradients
    for found in ranks_of(about, Division(strategy, 2, 4), batch, options=options, **SETTINGS):
        for held in found.held:
            mine, whole = found.weight_gradients[held.name], alone[held.name]
            assert mine.dtype == torch.float32
            assert float((mine - held.cut(whole)).norm() / whole.norm()) < 0.1, held.name


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
        about = entry_of(Branches)
        ranks_of(about, Division(strategy, p, 10, inner=inner), data(about, 10), **SETTINGS)


@pytest.mark.parametrize("strategy", ["filter", "channel"])
def test_one_rank_is_serial_training(strategy: str) -> None:
    check(entry_of(plain), Division(strategy, 1, 3), steps=2)
