"""Peak bytes of live tensors in a run, and the share of its time that timing costs."""

from __future__ import annotations

import gc

import torch

from calib.microbench.memory import CudaBytes, LiveBytes, storages
from calib.training.clock import seconds_of_a_switch
from calib.training.step import TrainingStep

SWITCHES, TRIES = 500, 5


def peak_live_bytes(step: TrainingStep, device: torch.device) -> int:
    """The most bytes in tensors at once in one more iteration, untimed; collective as it is.

    Of this rank: weights, gradients, optimizer, batch, activations, and the buffers of its exchange.
    What a library holds inside itself (the buckets of DistributedDataParallel) is not seen on a CPU.
    """
    watch = CudaBytes(device) if device.type == "cuda" else LiveBytes(live_tensors(device))
    with watch:
        step.iterate()
    return watch.peak


def live_tensors(device: torch.device) -> list[torch.Tensor]:
    """Every tensor on the device that this process can reach, and the gradients; one of a storage."""
    gc.collect()
    # type() and not isinstance: a lazy module among the objects must not be woken
    found = [item for item in gc.get_objects() if issubclass(type(item), torch.Tensor)]
    found = [item for item in found if item.device.type == device.type]
    gradients = [item.grad for item in found if item.is_leaf and item.grad is not None]
    each = {next(iter(storages([item]))): item for item in [*found, *gradients]}
    return list(each.values())


def clock_share(step: TrainingStep, switches: int, seconds: float) -> float:
    """What so many switches of the phase take of an iteration of `seconds`, on this rank.

    The fastest of a few tries: others at work on this core are not the clock's cost.
    """
    each = min(seconds_of_a_switch(step.clock, SWITCHES) for _ in range(TRIES))
    return switches * each / seconds if seconds > 0 else 0.0
