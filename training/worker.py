"""One rank's iteration: its part of the model, its samples, its exchange.

A strategy (training/strategies/) makes a Worker from a Task. The step (training/step.py) runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from calib.foundation.division import Division
from calib.foundation.execution import USUAL, execution_of
from calib.microbench.item_types import casting, laid_out, weight_type
from calib.microbench.timing.watchdog import beat
from calib.oracle.layout.partitions import Range
from calib.training.clock import PhaseClock
from calib.training.layer_program import LayerProgram, layer_program
from calib.training.models import ModelEntry
from calib.training.teams import Teams

# what a rank has of a parameter's gradient, among the ranks that share its samples:
#   own      this rank alone has these weights (a shard of filters, a stage)
#   same     all have the whole gradient (a layer that is whole on every rank)
#   partial  each has the part of its piece of the image, or its tokens; the whole is their sum
Gradient = Literal["own", "same", "partial"]


@dataclass(frozen=True)
class WorkerOptions:
    """How a run trains, beside its division.

    `execution`: item types, memory format and launches, by name (foundation/execution.py).
    `synchronized_batch_norm`: statistics over all samples and parts, not those of the rank.
    `ddp`: data parallelism by DistributedDataParallel even where Division.overlap is off.
    """

    optimizer: str = "momentum"
    execution: str = USUAL
    synchronized_batch_norm: bool = False
    ddp: bool = False


@dataclass
class Task:
    """What a strategy gets on each rank: the whole model, with the same weights everywhere.

    `module` is in train mode, in the run's item type, on the rank's device.
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
        if self._program is None:  # Python 3.11's cached_property would deadlock ranks as threads
            self._program = layer_program(self.module, self.about, self.division.local_batch)
        return self._program


@dataclass(frozen=True)
class Held:
    """A parameter of this rank: its `name` in the whole model, and which part of it this is.

    `ranges` are [from, to) along the first dimensions, the last of them in each of `blocks` equal
    blocks; the other dimensions are whole.
    """

    name: str
    parameter: nn.Parameter
    ranges: tuple[Range, ...] = ()
    gradient: Gradient = "same"
    blocks: int = 1

    def cut(self, whole: Tensor) -> Tensor:
        """This rank's part of a tensor of the whole parameter's shape: a view, but of several blocks."""
        last = len(self.ranges) - 1
        if self.blocks > 1:
            shape = whole.shape
            whole = whole.reshape(*shape[:last], self.blocks, -1, *shape[last + 1 :])
            whole = whole.transpose(last, last + 1)
        for dimension, (first, stop) in enumerate(self.ranges):
            whole = whole.narrow(dimension, first, stop - first)
        if self.blocks > 1:
            whole = whole.transpose(last, last + 1).flatten(last, last + 1)
        return whole


class Exchange(Protocol):
    """What happens to the gradients between the backward and the update."""

    def pack(self, gradients: Sequence[Tensor]) -> None:
        """Copy the gradients into the buffers that are sent."""

    def exchange(self) -> None:
        """Communicate."""

    def unpack(self, gradients: Sequence[Tensor]) -> None:
        """Copy the results to where the optimizer reads."""


def whole_parameters(module: nn.Module) -> list[Held]:
    """Every parameter of a module that is whole on this rank."""
    return [Held(name, p) for name, p in module.named_parameters() if p.requires_grad]


class Worker:
    """One rank's work. Strategies give it a module, or override `take` and `compute`.

    `region`, by layer: what this rank has of the layer's output, [from, to) along the dimensions after
    the batch; layers without an entry are whole. `samples` are [from, to) of the global batch.
    `compute` makes the gradients of the mean loss over this rank's samples, in `held` order, and
    `exchange` turns them into those of the mean over the global batch. Ranks with the same `masks`
    number draw the same dropout masks.

    As a graph (Execution.cuda_graph) the module is captured here, so its weights must have their final
    place, and what wraps it comes after.
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
        execution = execution_of(task.options.execution)
        first_weight = next(task.module.parameters())
        self._cast = partial(casting, execution, first_weight.device.type)
        self._graphed = execution.cuda_graph
        if self._graphed:
            shape = (task.division.local_batch, *task.about.input_shape)
            kind = torch.int64 if task.about.rows else weight_type(execution)
            read = first_weight.new_zeros(shape, dtype=kind, requires_grad=False)
            with self._cast():
                task.teams.world.device.graphed(module, laid_out(read, execution))

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters of this rank."""
        return [held.parameter for held in self.held]

    def take(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """What this rank reads of its samples; called before anything is timed."""
        return inputs, targets

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss over this rank's samples, from what `take` returned."""
        with self._cast():
            loss: Tensor = self._loss(self.module(inputs), targets)
        return loss

    def compute(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        """Forward and backward; the loss, or None where this rank has none (all stages but the last).

        One micro-batch after the other (Division.accumulation): autograd adds their gradients up, of
        losses divided by their number. Called with the clock in "forward", returns with it in
        "backward".
        """
        n = self.division.accumulation
        losses = []
        for number, (x, t) in enumerate(zip(inputs.chunk(n), targets.chunk(n), strict=True), 1):
            if number > 1:
                self.clock.switch("forward")
            with self.adding() if number < n else nullcontext():
                loss = self.forward(x, t)
                if n > 1:
                    loss = loss / n
                beat()
                self.clock.switch("backward")
                torch.autograd.backward(loss)
            if self._graphed and number == 1 < n:
                self._keep_gradients()
            losses.append(loss.detach())
        return losses[0] if n == 1 else torch.stack(losses).sum()

    def adding(self) -> AbstractContextManager[object]:
        """Entered around a micro-batch whose gradients are only added up, not exchanged."""
        return nullcontext()

    def _keep_gradients(self) -> None:
        """Copy the gradients out of a graph's buffers, where its next replay writes.

        A graph's backward returns static tensors, detached (Graphed.backward in torch/cuda/graphs.py).
        Nobody else refers to the detached ones, so AccumulateGrad takes them over instead of copying
        (case 1.1 in torch/csrc/autograd/functions/accumulate_grad.h): .grad is the graph's own memory.
        The next micro-batch's replay would overwrite it, and then be added to itself (case 2.3). With
        a .grad of its own, AccumulateGrad adds into that. Without accumulation sharing does no harm:
        the optimizer has read .grad, and dropped it, before the next replay.
        """
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad = parameter.grad.clone()

    def make_optimizer(
        self, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    ) -> torch.optim.Optimizer:
        """The optimizer of this rank's parameters; torch's wants one even where a rank has none."""
        return make(self.parameters or [nn.Parameter(torch.empty(0))])

    def finish(self) -> None:
        """What follows the update (a sharded optimizer gathers the weights)."""

    def average_gradients(self) -> None:
        """For checks, after the exchange: averages in every gradient, where a rank has but pieces."""

    def close(self) -> None:
        """Release process groups and graphs; called before the teams are closed."""
        if self._graphed:  # a graph is the module's forward, which refers to the module
            vars(self.module).pop("forward", None)
