"""One rank's iteration: its part of the model, its samples, its exchange.

A strategy (training/strategies/) makes a Worker from a Task. The step (training/step.py) runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from calib.foundation.division import Division
from calib.microbench.timing.watchdog import beat
from calib.oracle.layout.partitions import Range
from calib.training.clock import PhaseClock
from calib.training.layer_program import LayerProgram, layer_program
from calib.training.models import ModelEntry
from calib.training.teams import Teams

# how the gradient of a parameter stands, within the ranks that share its samples:
#   own      this rank alone has these weights (a shard of filters, a stage)
#   same     all of them have the whole gradient (a layer that is whole on every rank)
#   partial  each has the part of its own piece of the image; the whole is their sum
Gradient = Literal["own", "same", "partial"]


@dataclass(frozen=True)
class WorkerOptions:
    """How a run trains, beside its division.

    `dtype`: float32, float64, or bfloat16 (autocast, weights and gradients in float32).
    `synchronized_batch_norm`: statistics over all samples and parts, not those of the rank.
    `ddp`: data parallelism by DistributedDataParallel also where Division.overlap is off.
    """

    optimizer: str = "momentum"
    dtype: str = "float32"
    synchronized_batch_norm: bool = False
    ddp: bool = False


@dataclass
class Task:
    """What a strategy is given, on each rank: the whole model, with the same weights everywhere.

    `module` is in train mode, of the run's item type, on the rank's device.
    """

    about: ModelEntry
    module: nn.Module
    loss: nn.Module
    division: Division
    teams: Teams
    clock: PhaseClock
    options: WorkerOptions = field(default_factory=WorkerOptions)
    _program: LayerProgram | None = field(default=None, init=False, repr=False)

    @property
    def program(self) -> LayerProgram:
        """The module as a program of its layers; it shares the parameters of `module`."""
        if self._program is None:  # cached_property of Python 3.11 lets ranks that are threads wait
            self._program = layer_program(self.module, self.about)
        return self._program


@dataclass(frozen=True)
class Held:
    """A parameter of this rank: `name` in the whole model, and which part of that it is.

    `ranges` are [from, to) along its first dimensions; a dimension without one is whole.
    """

    name: str
    parameter: nn.Parameter
    ranges: tuple[Range, ...] = ()
    gradient: Gradient = "same"

    def cut(self, whole: Tensor) -> Tensor:
        """This rank's part of a tensor of the whole parameter's shape: a view."""
        for dimension, (first, stop) in enumerate(self.ranges):
            whole = whole.narrow(dimension, first, stop - first)
        return whole


class Exchange(Protocol):
    """What happens to the gradients between the backward and the update."""

    def pack(self, gradients: Sequence[Tensor]) -> None:
        """Make the gradients ready to travel."""

    def exchange(self) -> None:
        """Let them travel."""

    def unpack(self, gradients: Sequence[Tensor]) -> None:
        """Put what arrived where the optimizer looks."""


def whole_parameters(module: nn.Module) -> list[Held]:
    """Every parameter of a module that is whole on this rank."""
    return [Held(name, p) for name, p in module.named_parameters() if p.requires_grad]


class Worker:
    """One rank's work. Strategies give it a module, or override `take` and `compute`.

    `region`, by a layer's name: [from, to) along the dimensions after the batch of what this rank has
    of that layer's output; a layer that is not in it is whole. `samples` are [from, to) of the global
    batch. Gradients are those of the mean loss over this rank's samples, in `held` order, made by
    `compute`, and `exchange` turns them into those of the mean loss over the global batch. `masks`:
    ranks of the same number draw the same dropout masks.
    """

    def __init__(
        self,
        task: Task,
        module: nn.Module,
        held: list[Held],
        exchange: Exchange | None = None,
        region: dict[str, tuple[Range, ...]] | None = None,
    ) -> None:
        self.module, self.held, self.exchange = module, held, exchange
        self.region = region or {}
        self.clock, self.division = task.clock, task.division
        self._loss = task.loss
        each = task.division.batch // task.division.replicas
        first = task.teams.place.replica * each
        self.samples: Range = (first, first + each)
        self.masks = task.teams.place.replica + task.teams.place.stage
        self._cast: Callable[[], AbstractContextManager[object]] = nullcontext
        if task.options.dtype == "bfloat16":
            kind = next(task.module.parameters()).device.type
            self._cast = lambda: torch.autocast(kind, torch.bfloat16)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters of this rank."""
        return [held.parameter for held in self.held]

    def take(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """What this rank reads of its samples, before anything is timed."""
        return inputs, targets

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss over this rank's samples, of what `take` gave."""
        with self._cast():
            loss: Tensor = self._loss(self.module(inputs), targets)
        return loss

    def compute(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        """Forward and backward; the loss, or None where this rank has none (a stage not the last).

        Called with the clock in "forward", returns with it in "backward".
        """
        loss = self.forward(inputs, targets)
        beat()
        self.clock.switch("backward")
        torch.autograd.backward(loss)
        return loss.detach()

    def make_optimizer(
        self, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    ) -> torch.optim.Optimizer:
        """The optimizer of this rank's parameters."""
        return make(self.parameters)

    def finish(self) -> None:
        """What follows the update (a sharded optimizer gathers the weights)."""

    def close(self) -> None:
        """Let go of process groups; before the teams are closed."""
