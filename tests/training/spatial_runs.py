"""Spatial training on threads, and the same serially by plain autograd: what the tests compare."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from tests.helpers.tensor_ranks import on_ranks
from torch import Tensor, nn

from calib.foundation.division import Division
from calib.training.clock import PhaseClock
from calib.training.models import ModelEntry
from calib.training.strategies import make_worker
from calib.training.teams import Teams
from calib.training.worker import Task, WorkerOptions

Ranges = tuple[tuple[int, int], ...]
ONE_AT_A_TIME = threading.Lock()  # seeds are of the process, not of a thread
F64 = WorkerOptions(dtype="float64")
LR, MOMENTUM = 0.05, 0.9


def model_entry(build: Callable[[], nn.Module], shape: tuple[int, ...]) -> ModelEntry:
    """One that is trained to 3 numbers by the mean squared error."""
    return ModelEntry("net", build, shape, "mse", 3, 4)


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    """In float64, with weights and running statistics of a fixed seed."""
    with ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        module = build().double().train()
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_()
            elif name.endswith("running_var"):
                buffer.uniform_(0.5, 2.0)
    return module


def data(batch: int, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    sizes = (batch, *shape), (batch, 3)
    inputs, targets = (
        torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes
    )
    return inputs, targets


@dataclass
class Found:
    """Of one run: outputs of layers and dL/d of them, the input's gradient, weights after steps."""

    outputs: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    weights: list[dict[str, Tensor]] = field(default_factory=list)
    weight_gradients: dict[str, Tensor] = field(default_factory=dict)
    region: dict[str, Ranges] = field(default_factory=dict)
    samples: tuple[int, int] = (0, 0)
    loss: float = 0.0


def watch(found: Found) -> Callable[[str, Tensor], None]:
    def observe(layer: str, output: Tensor) -> None:
        found.outputs[layer] = output.detach().clone()
        if output.requires_grad:
            output.register_hook(lambda g: found.gradients.__setitem__(layer, g.detach().clone()))

    return observe


def frozen_norms(module: nn.Module) -> None:
    """Batch norms by their running statistics: then parts and the whole are the same."""
    for child in module.modules():
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            child.eval()


def train(
    about: ModelEntry,
    division: Division,
    teams: Teams,
    batch: tuple[Tensor, Tensor],
    steps: int = 1,
    frozen: bool = True,
    options: WorkerOptions = F64,
    of_input: bool = True,
) -> Found:
    """What one rank sees in some steps of momentum; `of_input`: dL/dx of the first layer too."""
    module = seeded(about.build)
    task = Task(about, module, nn.MSELoss(), division, teams, PhaseClock(), options)
    worker = make_worker(task)
    if frozen:
        frozen_norms(worker.module)
    found = Found(region=dict(worker.region), samples=worker.samples)
    program: Any = worker.module
    if hasattr(program, "observer"):
        program.observer = watch(found)
    optimizer = torch.optim.SGD(worker.parameters, lr=LR, momentum=MOMENTUM)
    first, stop = worker.samples
    x, y = (t[first:stop].clone() for t in batch)
    for _ in range(steps):
        inputs, targets = worker.take(x, y)
        inputs.grad = None
        inputs.requires_grad_(of_input)
        loss = worker.compute(inputs, targets)
        assert loss is not None
        found.loss = loss.item()
        if of_input:
            assert inputs.grad is not None
            found.gradients["input"] = inputs.grad
        if worker.exchange is not None:
            gradients = [p.grad for p in worker.parameters if p.grad is not None]
            worker.exchange.pack(gradients)
            worker.exchange.exchange()
            worker.exchange.unpack(gradients)
        if not found.weights:
            found.weight_gradients = {
                h.name: h.parameter.grad.clone()
                for h in worker.held
                if h.parameter.grad is not None
            }
        optimizer.step()
        optimizer.zero_grad()
        found.weights.append({h.name: h.parameter.detach().clone() for h in worker.held})
    return found


def again(found: Found, name: str) -> str:
    """As the oracle calls the second use of a module in a forward: name#2."""
    return f"{name}#2" if name in found.outputs else name


def serial(about: ModelEntry, batch: tuple[Tensor, Tensor], steps: int = 1) -> Found:
    """The same of the whole batch by the module itself, layers by their modules' names."""
    module, found = seeded(about.build), Found()
    frozen_norms(module)
    for name, child in module.named_modules():
        if name and not list(child.children()):
            child.register_forward_hook(
                lambda _, __, output, name=name: watch(found)(again(found, name), output)
            )
    optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=MOMENTUM)
    for step in range(steps):
        x = batch[0].clone().requires_grad_()
        found.outputs.clear()
        nn.functional.mse_loss(module(x), batch[1]).backward()
        assert x.grad is not None
        found.gradients["input"] = x.grad
        if step == 0:
            found.weight_gradients = {
                name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None
            }
        optimizer.step()
        optimizer.zero_grad()
        found.weights.append({name: p.detach().clone() for name, p in module.named_parameters()})
    return found


def ranks_of(
    about: ModelEntry, division: Division, batch: tuple[Tensor, Tensor], **settings: Any
) -> list[Found]:
    torch.manual_seed(0)
    return on_ranks(division, lambda teams: train(about, division, teams, batch, **settings))


def close(found: Tensor, expected: Tensor, what: str) -> None:
    """Relative to the largest value, 1e-10: the sums are ordered otherwise."""
    assert found.shape == expected.shape, what
    scale = max(float(expected.abs().max()) if expected.numel() else 0.0, 1e-30)
    assert float((found - expected).abs().max() if found.numel() else 0.0) <= 1e-10 * scale, what


def compare(ranks: list[Found], whole: Found, replicas: int = 1) -> None:
    """Outputs, their gradients and weights of every rank against those of the serial run.

    A replica's loss is the mean of its own samples, so its dL/dy is `replicas` times as large.
    """
    for rank in ranks:
        first, stop = rank.samples
        compared = set()
        for name in {*rank.outputs, "input"} & {*whole.outputs, "input"}:
            where = (slice(first, stop), *(slice(a, b) for a, b in rank.region.get(name, ())))
            if name in rank.outputs:
                close(rank.outputs[name], whole.outputs[name][where], f"y of {name}")
            if name in whole.gradients:
                expected = whole.gradients[name][where] * replicas
                close(rank.gradients[name], expected, f"dL/dy of {name}")
                compared.add(name)
        assert {*rank.region} - {"input"} <= {*rank.outputs}
        assert "input" in compared and len(compared) > 2
        assert rank.weight_gradients.keys() == whole.weight_gradients.keys()
        for name, gradient in whole.weight_gradients.items():
            close(rank.weight_gradients[name], gradient, f"dL/dw of {name}")
        for found, expected_weights in zip(rank.weights, whole.weights, strict=True):
            for name, weight in expected_weights.items():
                close(found[name], weight, name)
