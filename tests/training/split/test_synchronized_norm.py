"""Synchronised batch normalisation against torch's own on the joint batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.tensor_ranks import on_ranks
from torch import Tensor, nn

from calib.foundation.division import Division
from calib.training.clock import PhaseClock
from calib.training.layer_program import layer_program
from calib.training.models import ModelEntry, built
from calib.training.split.synchronized_norm import SynchronizedNorm, synchronize
from calib.training.step import TrainingStep, synthetic_batch
from calib.training.teams import Teams
from calib.training.worker import WorkerOptions

KINDS: dict[int, Any] = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
SIZES = {2: (), 3: (4,), 4: (3, 2), 5: (2, 3, 2)}
CHANNELS = 3
EXACT: Any = {"rtol": 1e-10, "atol": 1e-10}


def normed(dimensions: int, **options: Any) -> nn.Sequential:
    """A batch norm with weights of its own, inside a module; the same on every rank."""
    norm = KINDS[dimensions](CHANNELS, dtype=torch.float64, **options)
    if norm.affine:
        with torch.no_grad():
            norm.weight.copy_(torch.tensor([0.5, -1.5, 2.0]))
            norm.bias.copy_(torch.tensor([3.0, 0.0, -1.0]))
    return nn.Sequential(norm)


def after(module: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Outputs and input gradients of forwards and backwards, then the state and its gradients."""
    found: dict[str, Tensor] = {}
    for number, (x, dy) in enumerate(batches):
        given = x.clone().requires_grad_()
        y = module(given)
        y.backward(dy)
        assert given.grad is not None
        found |= {f"y{number}": y.detach(), f"dx{number}": given.grad}
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        found[f"d {name}"] = parameter.grad
    return found | {name: value.clone() for name, value in module.state_dict().items()}


@pytest.mark.parametrize(
    ("momentum", "tracked"), [(0.1, True), (0.7, True), (None, True), (0.1, False)]
)
@settings(max_examples=8)
@given(
    dimensions=st.sampled_from(sorted(KINDS)),
    parts=st.lists(st.integers(1, 4), min_size=2, max_size=3),
    cut=st.sampled_from(["samples", "image"]),
    affine=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_equals_serial_on_the_joint_batch(
    dimensions: int,
    parts: list[int],
    cut: str,
    affine: bool,
    momentum: float | None,
    tracked: bool,
    seed: int,
) -> None:
    """Also of parts of unequal length, of the samples or of the image; running statistics too."""
    along = 0 if cut == "samples" or dimensions == 2 else 2
    shape = [3, CHANNELS, *SIZES[dimensions]]
    shape[along] = sum(parts)
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(4)]
    batches = [(5 + 2 * drawn[0], drawn[1]), (drawn[2] - 1, drawn[3])]
    options = {"affine": affine, "momentum": momentum, "track_running_stats": tracked}
    serial = after(normed(dimensions, **options), batches)
    pieces = [[t.split(parts, along) for t in pair] for pair in batches]

    def program(teams: Teams) -> dict[str, Tensor]:
        module = normed(dimensions, **options)
        synchronize(module, teams.world, PhaseClock())
        rank = teams.world.rank
        return after(module, [(x[rank], dy[rank]) for x, dy in pieces])

    ranks = on_ranks(Division("data", len(parts), len(parts)), program)
    for name, expected in serial.items():
        everyone = [found[name] for found in ranks]
        if name[:2] in ("y0", "y1", "dx"):
            torch.testing.assert_close(torch.cat(everyone, along), expected, **EXACT)
        elif name.startswith("d "):  # each rank has the part of its own samples
            torch.testing.assert_close(torch.stack(everyone).sum(0), expected, **EXACT)
        else:
            for one in everyone:
                torch.testing.assert_close(one, expected, **EXACT)


def test_a_mean_far_from_zero_costs_no_digits() -> None:
    """float32, mean 1000, deviation 1: a sum of squares would have a relative error of 0.1 and more."""
    generator = torch.Generator().manual_seed(1)
    x = 1000 + torch.randn((64, 2, 8, 8), generator=generator)
    expected = nn.functional.batch_norm(x.double(), None, None, training=True)

    def program(teams: Teams) -> Tensor:
        module = nn.Sequential(nn.BatchNorm2d(2))
        synchronize(module, teams.world, PhaseClock())
        found: Tensor = module(x.chunk(2)[teams.world.rank]).detach()
        return found

    y = torch.cat(on_ranks(Division("data", 2, 2), program))
    # rounding of a mean of 1000 is 6e-5 at most
    torch.testing.assert_close(y, expected.float(), rtol=0, atol=1e-4)


def test_bfloat16_is_summed_in_float32() -> None:
    """Of 4096 values 1 + k / 128: sums in bfloat16 would stop to grow at 256."""
    x = (1 + torch.arange(4096).view(64, 1, 8, 8) % 16 / 128).bfloat16()
    expected = nn.functional.batch_norm(x.float(), None, None, training=True)

    def program(teams: Teams) -> tuple[Tensor, Tensor, Tensor]:
        module = nn.Sequential(nn.BatchNorm2d(1))
        synchronize(module, teams.world, PhaseClock())
        given = x.chunk(2)[teams.world.rank].clone().requires_grad_()
        y = module(given)
        y.sum().backward()
        assert given.grad is not None and module[0].weight.grad is not None
        return y.detach(), given.grad, module[0].weight.grad

    for rank, (y, dx, dweight) in enumerate(on_ranks(Division("data", 2, 2), program)):
        assert y.dtype == dx.dtype == torch.bfloat16 and dweight.dtype == torch.float32
        torch.testing.assert_close(y.float(), expected.chunk(2)[rank], rtol=2**-8, atol=1e-4)


class Recorded:
    """A team of one that counts allreduces, and in which phase the clock was."""

    size, rank = 1, 0

    def __init__(self, clock: PhaseClock) -> None:
        self.clock, self.calls = clock, []

    def allreduce(self, buffer: Tensor) -> None:
        assert buffer.dim() == 1 and buffer.is_contiguous()
        phase = self.clock.switch("forward")
        self.clock.switch(phase)
        self.calls.append((phase, buffer.numel()))


def test_what_is_sent_and_when() -> None:
    """Sums and a count, then squares; in the backward two sums, where a gradient is wanted."""
    clock = PhaseClock()
    team: Any = Recorded(clock)
    module = normed(4)
    synchronize(module, team, clock)
    x = torch.randn(2, CHANNELS, 3, 3, dtype=torch.float64)
    module(x).sum().backward()
    assert team.calls == [("layerwise", CHANNELS + 1), ("layerwise", CHANNELS)]
    team.calls.clear()
    clock.switch("backward")
    module(x.requires_grad_()).sum().backward()
    assert team.calls[2:] == [("layerwise", 2 * CHANNELS)]
    assert clock.switch("forward") == "backward", "and goes on as before"
    team.calls.clear()
    expected = nn.functional.batch_norm(
        x, module[0].running_mean, module[0].running_var, module[0].weight, module[0].bias
    )
    torch.testing.assert_close(module.eval()(x), expected, **EXACT)
    assert team.calls == [], "running statistics are everybody's own"


def test_names_and_objects_stay() -> None:
    """Also of a batch norm with two names."""
    module, shared = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1)), nn.BatchNorm2d(1)
    module.twice = nn.ModuleList([shared, nn.Sequential(shared)])
    before = dict(module.named_parameters(remove_duplicate=False))
    buffers = dict(module.named_buffers(remove_duplicate=False))
    kinds = {name: type(m) for name, m in module.named_modules(remove_duplicate=False)}
    synchronize(module, Recorded(PhaseClock()), PhaseClock())
    parameters = dict(module.named_parameters(remove_duplicate=False))
    assert list(parameters) == list(before)
    assert all(parameters[name] is before[name] for name in before)
    assert set(buffers) == set(dict(module.named_buffers(remove_duplicate=False)))
    assert module.twice[0] is module.twice[1][0]
    for name, found in module.named_modules(remove_duplicate=False):
        was = kinds[name]
        assert type(found) is (SynchronizedNorm if was is nn.BatchNorm2d else was)


class Normed(nn.Module):
    """A small model with a batch norm in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4 * 4 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.norm(self.conv(x)).relu().flatten(1))
        return scores


NORMED = ModelEntry("normed", Normed, (3, 6, 6), "cross_entropy", 5, 2)


def test_in_a_layer_program() -> None:
    """Its graph computes with the same parameters as the module."""
    whole = built(NORMED, 0).double()
    program = layer_program(whole, NORMED, 1)
    clock = PhaseClock()
    team: Any = Recorded(clock)
    synchronize(program, team, clock)
    norms = [m for m in program.modules() if isinstance(m, nn.BatchNorm2d | SynchronizedNorm)]
    assert [type(norm) for norm in norms] == [SynchronizedNorm]
    of_program = {id(parameter) for parameter in program.parameters()}
    assert of_program == {id(parameter) for parameter in whole.parameters()}
    x = torch.randn(2, *NORMED.input_shape, dtype=torch.float64)
    torch.testing.assert_close(program(x), whole(x), **EXACT)
    assert len(team.calls) == 2


@pytest.mark.parametrize("p", [2, 3])
@pytest.mark.parametrize("synchronized", [True, False])
def test_data_parallel_training_is_serial_training(p: int, synchronized: bool) -> None:
    """Weights after three steps, and running statistics; not so where each rank has its own."""
    steps, each, seed = 3, 2, 4

    def program(teams: Teams) -> dict[str, Tensor]:
        options = WorkerOptions(execution="float64", synchronized_batch_norm=synchronized)
        step = TrainingStep(NORMED, Division("data", p, p * each), seed, teams, options)
        for _ in range(steps):
            step.iterate()
        return step.worker.module.state_dict()

    ranks = on_ranks(Division("data", p, p * each), program)
    batches = [synthetic_batch(NORMED, each, seed + 1 + replica) for replica in range(p)]
    x, t = (torch.cat(parts) for parts in zip(*batches, strict=True))
    module = built(NORMED, seed).double().train()
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x.double()), t).backward()
        optimizer.step()
    for name, expected in module.state_dict().items():
        same = [torch.allclose(found[name], expected, rtol=1e-10, atol=1e-10) for found in ranks]
        if synchronized:
            assert all(same), name
        elif name not in ("conv.bias", "norm.num_batches_tracked"):  # a norm takes biases away
            assert not all(same), name
