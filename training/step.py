"""One training iteration, timed phase by phase; training and the in-place calibration run it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import nn

from calib.foundation.division import Division
from calib.foundation.execution import execution_of
from calib.microbench.item_types import converted, laid_out, weight_type
from calib.microbench.layers.losses import Loss, random_targets
from calib.microbench.tensors import make_optimizer, update
from calib.microbench.timing.watchdog import beat
from calib.training.clock import GRADIENTS, PhaseClock
from calib.training.models import ModelEntry, built
from calib.training.models.own import OwnLoss
from calib.training.strategies import make_worker
from calib.training.teams import Teams
from calib.training.worker import Task, WorkerOptions


def synthetic_batch(about: ModelEntry, batch: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs [batch, *input_shape] and targets of the model's data set's shape, from a seed.

    Held in memory, because the paper excludes I/O. Inputs are normal, or integers below the rows of
    the model's tables; classification targets are class indices, regression targets are normal.
    """
    generator = torch.Generator().manual_seed(seed)
    size = (batch, *about.input_shape)
    if about.rows:
        inputs = torch.randint(about.rows, size, generator=generator)
    else:
        inputs = torch.randn(size, generator=generator)
    return inputs, random_targets(about.loss_layer, batch, generator)


def in_type(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Numbers in another item type; integers (rows, classes) as they are."""
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def loss_function(about: ModelEntry) -> nn.Module:
    """The loss of a model, a mean over the batch; by the user's function where there is one."""
    loss = Loss(about.loss_layer)
    return OwnLoss(loss, about.function) if about.function else loss


class TrainingStep:
    """A model, its batch, optimizer and exchange on one rank.

    Every rank has the same weights (`seed`) and every replica its own data (seed + 1 + replica): B/p1
    samples. Ranks that share samples draw the same dropout masks. `worker` is what this rank does, and
    `clock` times it: the packing of gradients is the part GRADIENTS of "pack". Raises InputError for an
    unknown optimizer or item type, and where the strategy cannot divide the model so.
    """

    def __init__(
        self,
        about: ModelEntry,
        division: Division,
        seed: int,
        teams: Teams,
        options: WorkerOptions | None = None,
    ) -> None:
        options = options or WorkerOptions()
        execution, device = execution_of(options.execution), teams.world.device
        dtype = weight_type(execution)
        module = converted(built(about, seed), execution, device.tensors).train()
        weights = dict(module.named_parameters())
        for name in about.untrained:  # no gradient, no state of the optimizer, no exchange
            weights[name].requires_grad_(False)
        self.about, self.division, self.options, self.device = about, division, options, device
        self.clock = PhaseClock(device)
        self.loss = loss_function(about)
        task = Task(about, module, self.loss, division, teams, self.clock, options)
        self.worker = make_worker(task)
        replica = teams.place.replica
        # dropout masks: the same within a group, different for every stage
        torch.manual_seed(seed + 1 + self.worker.masks)
        self.optimizer = self.worker.make_optimizer(
            lambda parameters: make_optimizer(parameters, options.optimizer)
        )
        each = division.batch // division.replicas
        inputs, targets = synthetic_batch(about, each, seed + 1 + replica)
        inputs, targets = (in_type(x.to(device.tensors), dtype) for x in (inputs, targets))
        self.inputs, self.targets = self.worker.take(laid_out(inputs, execution), targets)
        self._barrier = teams.world.barrier

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that this rank has."""
        return self.worker.parameters

    def forward(self) -> torch.Tensor:
        """The loss of this rank's batch."""
        return self.worker.forward(self.inputs, self.targets)

    def exchange_gradients(self, apart: bool = False) -> None:
        """Pack, exchange and unpack, where the strategy exchanges gradients after the backward."""
        exchange, clock = self.worker.exchange, self.clock
        if exchange is None:
            return
        clock.switch(GRADIENTS)
        for parameter in self.parameters:  # some layers may be unused
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        exchange.pack(gradients)
        clock.switch("exchange")
        if apart:
            self._barrier()
            clock.restart()
        exchange.exchange()
        clock.switch("unpack")
        exchange.unpack(gradients)

    def iterate(self, apart: bool = False) -> tuple[dict[str, float], float | None]:
        """One iteration; seconds of each phase on this rank, and the loss where this rank has it.

        `apart` puts a barrier before the forward and before the exchange, so that no phase contains
        waiting for a late rank (for the in-place calibration; training runs without).
        """
        if apart:
            self._barrier()
        self.clock.begin("forward")
        loss = self.worker.compute(self.inputs, self.targets)
        beat()
        self.exchange_gradients(apart)
        self.clock.switch("update")
        update(self.optimizer)
        self.worker.finish()
        seconds = self.clock.end()
        return seconds, None if loss is None else loss.item()

    def waited_share(self, waited_s: float, seconds: Mapping[str, float]) -> float:
        """Share of an iteration, of its phases' `seconds`, that waiting for a core took.

        NaN on a GPU, which does not wait for its host's core.
        """
        return waited_s / sum(seconds.values()) if self.device.kind == "cpu" else math.nan

    def hold_weights(self) -> None:
        """From now on updates change nothing, so that a calibration's timed iterations are all alike."""
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0

    def close(self) -> None:
        """Release process groups; called before the teams are closed."""
        self.worker.close()
