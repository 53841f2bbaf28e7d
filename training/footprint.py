"""Peak bytes of live tensors in a training iteration."""

from __future__ import annotations

import gc

import torch
from torch._subclasses.fake_tensor import FakeTensor

from calib.microbench.memory import storages
from calib.training.step import TrainingStep


def peak_live_bytes(step: TrainingStep) -> int:
    """The most bytes in tensors at once on this rank, in one more, untimed iteration; collective.

    Weights, gradients, optimizer, batch, activations, and the buffers of the exchange. What a library
    holds internally (the buckets of DistributedDataParallel) is not seen on a CPU.
    """
    watch = step.device.watch(live_tensors(step.device.tensors))
    with watch:
        step.iterate()
    return watch.peak


def live_tensors(device: torch.device) -> list[torch.Tensor]:
    """Every tensor on the device that this process can reach, gradients too; one of each storage."""
    gc.collect()
    # type() and not isinstance: a lazy module among the objects must not be woken
    found = [item for item in gc.get_objects() if _has_memory(type(item))]
    found = [item for item in found if item.device.type == device.type]
    gradients = [item.grad for item in found if item.is_leaf and item.grad is not None]
    return list({next(iter(storages([item]))): item for item in [*found, *gradients]}.values())


def _has_memory(kind: type) -> bool:
    """Whether objects of this type are tensors, but not those without data that a trace leaves."""
    return issubclass(kind, torch.Tensor) and not issubclass(kind, FakeTensor)
