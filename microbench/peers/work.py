"""What a device does by itself in a check: a product, a sum of arrays, a convolution, a copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from calib.microbench.device import Device
from calib.microbench.records.peers import CONVOLUTION, MEMORY, PRODUCT, TO_DEVICE

MIB = 2**20
ITEM = 4  # float32


@dataclass(frozen=True)
class DeviceWork:
    """One call that a device repeats, and what it amounts to."""

    what: str
    call: Callable[[], Any]
    flops: float = 0.0
    nbytes: int = 0
    halves: int = 1  # how many messages of so many bytes a call sends, one after another


@dataclass(frozen=True)
class WorkSizes:
    """Work that takes some ms: long enough for the clock, short enough for many repetitions."""

    side: int
    array_bytes: int
    images: int


SIZES = {"cpu": WorkSizes(512, 16 * MIB, 4), "cuda": WorkSizes(2048, 64 * MIB, 16)}
CHANNELS, PIXELS, KERNEL = 64, 56, 3  # of ResNet-50's second stage


def works_of(device: Device) -> list[DeviceWork]:
    """What this rank's device is given to do, float32; operands lie there."""
    # late: it takes a second, and the driver needs none of it
    import torch

    sizes, on = SIZES[device.kind], device.tensors
    side, items = sizes.side, sizes.array_bytes // ITEM
    one, other = (torch.ones(side, side, device=on) for _ in range(2))
    product = torch.empty(side, side, device=on)
    a, b, c = (torch.ones(items, device=on) for _ in range(3))
    images = torch.ones(sizes.images, CHANNELS, PIXELS, PIXELS, device=on)
    weights = torch.ones(CHANNELS, CHANNELS, KERNEL, KERNEL, device=on)
    multiplied = sizes.images * CHANNELS**2 * PIXELS**2 * KERNEL**2
    works = [
        DeviceWork(PRODUCT, lambda: torch.mm(one, other, out=product), 2.0 * side**3),
        DeviceWork(MEMORY, lambda: torch.add(a, b, out=c), nbytes=3 * sizes.array_bytes),
        DeviceWork(
            CONVOLUTION,
            lambda: torch.nn.functional.conv2d(images, weights, padding=KERNEL // 2),
            2.0 * multiplied,
        ),
    ]
    if device.kind != "cpu":
        host = _pinned(items)
        copy = DeviceWork(
            TO_DEVICE, lambda: a.copy_(host, non_blocking=True), nbytes=sizes.array_bytes
        )
        works.append(copy)
    return works


def _pinned(items: int) -> Any:
    """Items of the host that a device can fetch by itself; pageable where the system locks no memory."""
    import torch

    try:
        return torch.ones(items, pin_memory=True)
    except RuntimeError:
        return torch.ones(items)
