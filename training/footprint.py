"""Bytes of live tensors in a training iteration: their peak, and what they are for."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensor

from calib.microbench.device import Device
from calib.microbench.memory import bytes_of, peak_rss_bytes, storages
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


def account(
    held: Mapping[str, Sequence[torch.Tensor]],
    forward: Callable[[], torch.Tensor],
    backward: Callable[[torch.Tensor], None],
    receivers: Sequence[torch.Tensor],
    device: Device,
    finish: Callable[[], None] | None = None,
) -> dict[str, int]:
    """Account for the bytes of one iteration. Run it warm, so that the optimizer has its state.

    Parameters
    ----------
    held
        Tensors that are there before and after, by what they are (weights, optimizer, inputs, ...).
    forward, backward
        The iteration; the backward takes the loss.
    receivers
        Tensors that get gradients and have none yet.
    device
        Where all this is.
    finish
        What follows the backward: exchange and update.

    Returns
    -------
    dict
        Bytes by the names of `held`, and: "gradients"; "activations", live after the forward beyond
        what was there before; "parts", the sum of all these (what the naive sum predicts);
        "peak_live"; "workspace", the peak beyond the parts; "peak_rss", of the process so far. On a
        GPU also "peak_reserved" by the caching allocator and, by NVML, "device_used", all that the
        device holds, and "outside", what of it is not the allocator's.
    """
    watch = device.watch(tensor for tensors in held.values() for tensor in tensors)
    parts = {name: bytes_of(tensors) for name, tensors in held.items()}
    with watch:
        before = watch.live
        output = forward()
        parts["activations"] = watch.live - before
        if output.requires_grad:
            backward(output)
        parts["gradients"] = bytes_of(tensor.grad for tensor in receivers)
        del output
        if finish is not None:
            finish()
        peak = watch.peak
    total = sum(parts.values())
    found = {**parts, "parts": total, "peak_live": peak, "workspace": max(0, peak - total)}
    return {**found, **device.memory_bytes(), "peak_rss": peak_rss_bytes()}
