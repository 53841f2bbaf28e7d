"""References: small work that is always the same, whose time tells how fast the machine is now.

A neighbour on the socket or the switch takes no core from a rank, and no counter of the system shows
it. What waits for a core is not in these times: waits.py counts that.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

import numpy as np

from calib.foundation.arrays import Float32s
from calib.microbench.control import Control
from calib.microbench.device import Device
from calib.microbench.machine.waits import Waits, threads_here

if TYPE_CHECKING:
    import torch

EDGE = 64  # of matrices that lie in the first cache, and that no BLAS gives to several threads
PRODUCTS = 50
# beyond the second cache of today's cores, and little beside what a rank has
COPIED_BYTES = 8 * 2**20
MESSAGE_BYTES = 64 * 2**10
# of each thread in a short operation: the fewest that torch gives to a thread of its own; and how many
THREAD_ITEMS, SHORT_OPERATIONS = 32768, 50
# half a millisecond on a GPU of 2022, and too much for its caches
GPU_EDGE, GPU_PRODUCTS = 1024, 8
GPU_COPIED_BYTES = 64 * 2**20


def _mapped(nbytes: int) -> Float32s:
    """Zeros in memory of their own, touched: malloc's thresholds do not hear of them."""
    items = np.frombuffer(mmap.mmap(-1, nbytes), dtype=np.float32)
    items.fill(0.0)
    return items


class References(Protocol):
    """Work that is always the same, on what a rank computes on."""

    def arithmetic_s(self) -> float:
        """Seconds of so many products of matrices."""

    def memory_s(self) -> float:
        """Seconds of a copy in its memory."""

    def threads_s(self) -> float | None:
        """Seconds of a short operation in all threads of a rank; None of one."""


def references_of(device: Device) -> References:
    """Those of a rank's device."""
    return Reference() if device.kind == "cpu" else GpuReference(device)


class GpuReference:
    """The references of a GPU, by its own events. It keeps no memory of it between two goes."""

    def __init__(self, device: Device) -> None:
        self._device = device
        for warm in (self.arithmetic_s, self.memory_s):
            warm()

    def arithmetic_s(self) -> float:
        """Seconds of GPU_PRODUCTS products of matrices."""
        import torch

        left = self._random(GPU_EDGE, GPU_EDGE)
        product = left @ left

        def multiply() -> None:
            for _ in range(GPU_PRODUCTS):
                torch.matmul(left, left, out=product)

        return self._seconds(multiply)

    def memory_s(self) -> float:
        """Seconds of a copy of GPU_COPIED_BYTES."""
        source = self._random(GPU_COPIED_BYTES // 4)
        target = source.clone()
        return self._seconds(lambda: target.copy_(source))

    def threads_s(self) -> None:
        """None: a GPU's kernels have no threads of the host."""

    def _random(self, *shape: int) -> torch.Tensor:
        import torch

        return torch.rand(shape, device=self._device.tensors)

    def _seconds(self, work: Callable[[], object]) -> float:
        work()
        self._device.synchronize()
        start = self._device.now()
        work()
        return self._device.seconds(start, self._device.now())


class Reference:
    """The references of a core; its buffers stay until it is gone."""

    def __init__(self) -> None:
        values = np.random.default_rng(0).standard_normal((2, EDGE, EDGE), dtype=np.float32)
        self._left, self._right = values
        self._product = np.empty_like(self._left)
        self._source, self._target = _mapped(COPIED_BYTES), _mapped(COPIED_BYTES)
        self._waits = Waits()
        self._in_threads = _in_threads()
        for warm in (self.arithmetic_s, self.memory_s):
            warm()

    def arithmetic_s(self) -> float:
        """Seconds of PRODUCTS products of matrices; half a millisecond on a core of 2020."""
        return self._seconds(self._multiply)

    def memory_s(self) -> float:
        """Seconds of a copy of COPIED_BYTES; a millisecond."""
        return self._seconds(lambda: np.copyto(self._target, self._source))

    def threads_s(self) -> float | None:
        """Median of SHORT_OPERATIONS in all of torch's threads, after as many; None of one thread.

        How far apart the threads' cores are changes where a hypervisor moves them, for minutes: two
        threads then meet in 3 us or in 6, and a product in one thread takes as long as before.
        """
        if self._in_threads is None:
            return None
        seconds = list[float]()
        for _ in range(2 * SHORT_OPERATIONS):
            start = perf_counter()
            self._in_threads()
            seconds.append(perf_counter() - start)
        return median(seconds[SHORT_OPERATIONS:])

    def _multiply(self) -> None:
        for _ in range(PRODUCTS):
            np.dot(self._left, self._right, out=self._product)

    def _seconds(self, work: Callable[[], None]) -> float:
        """The second of two goes, without what the thread waited for a core, where that is counted.

        The first one finds other work in the caches, and it takes as long as that was large.
        """
        work()
        before = self._waits.so_far()
        start = perf_counter()
        work()
        seconds = perf_counter() - start
        waited, _ = self._waits.since(before)
        return seconds - waited if 0.0 < waited < seconds else seconds


def _in_threads() -> Callable[[], object] | None:
    """A short operation that torch divides among all threads of this rank, where it has several.

    A rank that has not loaded torch computes nothing in threads.
    """
    threads = threads_here()
    if threads < 2:
        return None
    import torch

    return torch.from_numpy(_mapped(4 * threads * THREAD_ITEMS)).relu_


def message_s(control: Control) -> float | None:
    """Seconds of MESSAGE_BYTES there and back between neighbours, of the slowest pair; None alone.

    First ranks 0 and 1, 2 and 3, ... exchange at once, then 1 and 2, 3 and 4, ...: on hosts that follow
    one another every link between two of them is used. Collective.
    """
    if control.size < 2:
        return None
    message = np.zeros(MESSAGE_BYTES // 8)
    slowest = 0.0
    for first in (0, 1):
        control.barrier()
        place = control.rank - first
        partner = control.rank + (1 if place % 2 == 0 else -1)
        if place < 0 or partner >= control.size:
            continue
        start = perf_counter()
        if place % 2 == 0:
            control.send(message, partner)
            control.receive(message, partner)
        else:
            control.receive(message, partner)
            control.send(message, partner)
        slowest = max(slowest, perf_counter() - start)
    return float(max(control.allgather_object(slowest)))
