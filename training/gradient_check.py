"""Right before fast: the exchanged gradients equal the serial ones on the joint batch.

The check runs in float64, so that what it finds is a mistake and not rounding (in float32 the sums
of two halves and of the whole differ by up to 9e-6 of the largest gradient, as near as no matter to
the limit). Dropout is switched off for it (its masks differ by definition). A model with batch
normalisation takes its statistics on each PE's part of the batch (ParaDL section 4.5.2), so its
serial reference does the same: the joint batch in p parts, their gradients averaged.
"""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from foundation.errors import MeasurementError
from training.run import GRADIENT_TOLERANCE
from training.step import loss_function, synthetic_batch
from training.strategies import make_exchange

if TYPE_CHECKING:
    from microbench.communicators import World

# the serial reference needs p times the batch on one rank
MAX_RANKS = 8


def without_dropout(module: nn.Module) -> nn.Module:
    """A float64 copy in training mode, with every dropout switched off."""
    twin = copy.deepcopy(module).double().train()
    for part in twin.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.eval()
    return twin


def has_batch_norm(module: nn.Module) -> bool:
    """Whether statistics over the batch are part of the model."""
    return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in module.modules())


def double_batch(model: str, batch: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The synthetic batch in float64; class indices stay whole numbers."""
    inputs, targets = synthetic_batch(model, batch, seed)
    return inputs.double(), targets.double() if targets.is_floating_point() else targets


def gradients_of(
    module: nn.Module, model: str, inputs: torch.Tensor, targets: torch.Tensor, parts: int = 1
) -> list[torch.Tensor]:
    """Gradients of the mean loss over the batch, taken in `parts` equal parts."""
    loss = loss_function(model)
    module.zero_grad(set_to_none=True)
    for x, t in zip(inputs.chunk(parts), targets.chunk(parts), strict=True):
        (loss(module(x), t) / parts).backward()
    return [p.grad for p in module.parameters() if p.grad is not None]


def gradient_difference(
    module: nn.Module,
    model: str,
    strategy: str,
    batch: int,
    seed: int,
    communicator: World,
) -> float:
    """Largest |exchanged - serial| / max |serial| over the tensors, the same on every rank.

    Raises MeasurementError above GRADIENT_TOLERANCE: a wrong result has no time.
    """
    twin = without_dropout(module)
    inputs, targets = double_batch(model, batch, seed + 1 + communicator.rank)
    mine = gradients_of(twin, model, inputs, targets)
    exchange = make_exchange(strategy, list(twin.parameters()), communicator)
    if exchange is not None:
        exchange.pack(mine)
        exchange.exchange()
        exchange.unpack(mine)
    difference = 0.0
    if communicator.rank == 0:
        batches = [double_batch(model, batch, seed + 1 + r) for r in range(communicator.size)]
        joint = torch.cat([x for x, _ in batches]), torch.cat([t for _, t in batches])
        parts = communicator.size if has_batch_norm(module) else 1
        serial = gradients_of(without_dropout(module), model, *joint, parts=parts)
        scales = [max(float(s.abs().max()), torch.finfo(s.dtype).tiny) for s in serial]
        differences = [
            float((m - s).abs().max()) / scale
            for m, s, scale in zip(mine, serial, scales, strict=True)
        ]
        # max() forgets a NaN that is not the first
        difference = math.inf if any(map(math.isnan, differences)) else max(differences)
    difference = float(communicator.share(difference))
    if not difference <= GRADIENT_TOLERANCE:
        raise MeasurementError(
            f"{model} under {strategy} on {communicator.size} ranks: gradients differ from the "
            f"serial ones by {difference:.1e} (limit {GRADIENT_TOLERANCE:.0e}); nothing was timed"
        )
    return difference
