"""One training iteration, timed phase by phase; training and the in-place calibration run it."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from microbench.tensors import make_optimizer, update
from microbench.watchdog import beat
from training.models import build, entry
from training.models.auxiliary import AuxiliaryLoss
from training.run import RUN_PHASES
from training.strategies import make_exchange

if TYPE_CHECKING:
    from microbench.communicators import Communicator


def synthetic_batch(model: str, batch: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs [batch, *input_shape] and targets of the model's data set's shape, from a seed.

    Held in memory: the paper excludes I/O. Classification targets are class indices, regression
    targets are normal.
    """
    info = entry(model)
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn((batch, *info.input_shape), generator=generator)
    if info.loss == "cross_entropy":
        return inputs, torch.randint(info.outputs, (batch,), generator=generator)
    return inputs, torch.randn((batch, info.outputs), generator=generator)


def loss_function(model: str) -> nn.Module:
    """The loss of a registered model, a mean over the batch; of both outputs where it has two."""
    info = entry(model)
    if info.auxiliary_weight:
        function = F.cross_entropy if info.loss == "cross_entropy" else F.mse_loss
        return AuxiliaryLoss(function, info.auxiliary_weight)
    return nn.CrossEntropyLoss() if info.loss == "cross_entropy" else nn.MSELoss()


class TrainingStep:
    """A model, its batch, optimizer and exchange on one rank.

    `batch` is per PE; every rank has its own data (seed + 1 + rank) and the same weights (seed).
    `started_s` is perf_counter's reading when the last iteration began. Raises InputError for an
    unknown model, strategy or optimizer.
    """

    def __init__(
        self,
        model: str,
        strategy: str,
        batch: int,
        seed: int,
        communicator: Communicator,
        optimizer: str = "momentum",
    ) -> None:
        self.module = build(model, seed)
        self.module.train()
        self.parameters = list(self.module.parameters())
        self.loss = loss_function(model)
        # dropout masks: of each rank its own, and the same in every run of this seed
        torch.manual_seed(seed + 1 + communicator.rank)
        self.optimizer = make_optimizer(self.parameters, optimizer)
        self.inputs, self.targets = synthetic_batch(model, batch, seed + 1 + communicator.rank)
        self.exchange = make_exchange(strategy, self.parameters, communicator)
        self.started_s = perf_counter()
        self._communicator = communicator

    def forward(self) -> torch.Tensor:
        """The loss of this rank's batch."""
        loss: torch.Tensor = self.loss(self.module(self.inputs), self.targets)
        return loss

    def iterate(self, apart: bool = False) -> tuple[dict[str, float], float]:
        """One iteration; seconds of each phase on this rank, and the loss.

        `apart` puts a barrier before the forward and before the exchange, so that no phase holds
        waiting for a late rank (for the in-place calibration; training runs without).
        """
        seconds = dict.fromkeys(RUN_PHASES, 0.0)
        if apart:
            self._communicator.barrier()
        start = self.started_s = perf_counter()
        loss = self.forward()
        now = perf_counter()
        seconds["forward"] = now - start
        beat()
        torch.autograd.backward(loss)
        start, now = now, perf_counter()
        seconds["backward"] = now - start
        beat()
        if self.exchange is not None:
            gradients = [p.grad for p in self.parameters if p.grad is not None]
            self.exchange.pack(gradients)
            start, now = now, perf_counter()
            seconds["pack"] = now - start
            if apart:
                self._communicator.barrier()
                now = perf_counter()
            self.exchange.exchange()
            start, now = now, perf_counter()
            seconds["exchange"] = now - start
            self.exchange.unpack(gradients)
            start, now = now, perf_counter()
            seconds["unpack"] = now - start
            del gradients
        update(self.optimizer)
        seconds["update"] = perf_counter() - now
        return seconds, loss.item()
