"""Training on ranks that are threads, and the same serially by plain autograd: what tests compare."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
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
from calib.training.worker import Held, Task, WorkerOptions

Ranges = tuple[tuple[int, int], ...]
Batch = tuple[Tensor, Tensor]
ONE_AT_A_TIME = threading.Lock()  # seeds are of the process, not of a thread
F64 = WorkerOptions(execution="float64")
LR, MOMENTUM = 0.05, 0.9
EXACT = 1e-10


def model_entry(
    build: Callable[[], nn.Module], shape: tuple[int, ...], outputs: int = 3
) -> ModelEntry:
    """One that is trained by the mean squared error."""
    return ModelEntry("net", build, shape, "mse", outputs, 4)


def seeded(build: Callable[[], nn.Module], dtype: torch.dtype = torch.float64) -> nn.Module:
    """With weights and running statistics of a fixed seed."""
    with ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        module = copy.deepcopy(build()).to(dtype).train()
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_()
            elif name.endswith("running_var"):
                buffer.uniform_(0.5, 2.0)
    return module


def data(about: ModelEntry, batch: int, dtype: torch.dtype = torch.float64) -> Batch:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn((batch, *about.input_shape), generator=generator, dtype=dtype)
    return inputs, torch.randn((batch, about.outputs), generator=generator, dtype=dtype)


@dataclass
class Found:
    """Of one run: outputs of layers and dL/d of them, the input's gradient, weights after steps."""

    outputs: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    weights: list[dict[str, Tensor]] = field(default_factory=list)
    weight_gradients: dict[str, Tensor] = field(default_factory=dict)
    region: dict[str, Ranges] = field(default_factory=dict)
    samples: tuple[int, int] = (0, 0)
    held: Sequence[Held] = ()
    loss: float = 0.0

    def see(self, layer: str, output: Tensor) -> None:
        """An Observer of a LayerProgram."""
        self.outputs[layer] = output.detach().clone()
        if output.requires_grad:
            hooked: Any = output
            hooked.register_hook(lambda g: self.gradients.__setitem__(layer, g.detach().clone()))


def frozen_norms(module: nn.Module) -> None:
    """Batch norms by their running statistics: then parts and the whole are the same."""
    for child in module.modules():
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            child.eval()


def train(
    about: ModelEntry,
    division: Division,
    teams: Teams,
    batch: Batch,
    steps: int = 1,
    frozen: bool = True,
    options: WorkerOptions = F64,
    of_input: bool = True,
    clock: PhaseClock | None = None,
) -> Found:
    """What one rank sees in some steps of momentum; `of_input`: dL/dx of the first layer too."""
    module, clock = seeded(about.build, batch[0].dtype), clock or PhaseClock()
    worker = make_worker(Task(about, module, nn.MSELoss(), division, teams, clock, options))
    if frozen:
        frozen_norms(worker.module)
    found = Found(region=dict(worker.region), samples=worker.samples, held=worker.held)
    program: Any = worker.module
    if hasattr(program, "observer"):
        program.observer = found.see
    optimizer = torch.optim.SGD(worker.parameters, lr=LR, momentum=MOMENTUM)
    first, stop = worker.samples
    x, y = (t[first:stop].clone() for t in batch)
    for _ in range(steps):
        inputs, targets = worker.take(x, y)
        inputs.grad = None
        inputs.requires_grad_(of_input)
        clock.begin("forward")
        loss = worker.compute(inputs, targets)
        assert loss is not None and clock.switch("backward") == "backward"
        found.loss = loss.item()
        if of_input:
            assert inputs.grad is not None
            found.gradients["input"] = inputs.grad
        gradients = [p.grad for p in worker.parameters if p.grad is not None]
        assert len(gradients) == len(worker.held)
        if worker.exchange is not None:
            worker.exchange.pack(gradients)
            clock.switch("exchange")
            worker.exchange.exchange()
            worker.exchange.unpack(gradients)
        if not found.weights:
            of = zip(worker.held, gradients, strict=True)
            found.weight_gradients = {held.name: gradient.clone() for held, gradient in of}
        optimizer.step()
        optimizer.zero_grad()
        found.weights.append({h.name: h.parameter.detach().clone() for h in worker.held})
    return found


def serial(
    about: ModelEntry, batch: Batch, steps: int = 1, frozen: bool = True, of_input: bool = True
) -> Found:
    """The same of the whole batch by the module itself, layers by their modules' names.

    The second use of a module in a forward is name#2, as in the oracle.
    """
    module, found = seeded(about.build, batch[0].dtype), Found()
    if frozen:
        frozen_norms(module)

    def see(name: str, output: Tensor) -> None:
        found.see(f"{name}#2" if name in found.outputs else name, output)

    for name, child in module.named_modules():
        if name and not list(child.children()):
            child.register_forward_hook(lambda _, __, output, name=name: see(name, output))
    optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=MOMENTUM)
    for _ in range(steps):
        x = batch[0].clone().requires_grad_(of_input)
        found.outputs.clear()
        nn.functional.mse_loss(module(x), batch[1]).backward()
        if x.grad is not None:
            found.gradients["input"] = x.grad
        if not found.weights:
            found.weight_gradients = {
                name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None
            }
        optimizer.step()
        optimizer.zero_grad()
        found.weights.append({name: p.detach().clone() for name, p in module.named_parameters()})
    return found


def ranks_of(about: ModelEntry, division: Division, batch: Batch, **settings: Any) -> list[Found]:
    torch.manual_seed(0)
    return on_ranks(division, lambda teams: train(about, division, teams, batch, **settings))


def is_near(found: Tensor, expected: Tensor) -> bool:
    """Relative to the largest value: the sums are ordered otherwise."""
    scale = max(float(expected.abs().max()) if expected.numel() else 0.0, 1e-30)
    off = float((found - expected).abs().max() if found.numel() else 0.0)
    return found.shape == expected.shape and off <= EXACT * scale


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
                assert is_near(rank.outputs[name], whole.outputs[name][where]), f"y of {name}"
            if name in whole.gradients:
                expected = whole.gradients[name][where] * replicas
                assert is_near(rank.gradients[name], expected), f"dL/dy of {name}"
                compared.add(name)
        assert {*rank.region} - {"input"} <= {*rank.outputs}
        assert ("input" in compared) == ("input" in whole.gradients)
        assert not rank.outputs or len(compared) > 2
        assert {held.name for held in rank.held} == {*whole.weight_gradients}
        for held in rank.held:
            expected = held.cut(whole.weight_gradients[held.name])
            assert is_near(rank.weight_gradients[held.name], expected), f"dL/dw of {held.name}"
            for found, weights in zip(rank.weights, whole.weights, strict=True):
                assert is_near(found[held.name], held.cut(weights[held.name])), held.name
