"""Timing on a CUDA device: event stopwatch, cold caches, precision, kernels.

Calls are queued behind a spin kernel that holds the stream until all of them are queued (as
nvbandwidth does), so that the events around them time the device and not the host that launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

# the spin is this many times as long as queueing took; clocks and the host both vary
SPIN_MARGIN = 4.0
FIRST_SPIN_S = 2e-3
SHORTEST_SPIN_S = 50e-6
LONGEST_SPIN_S = 0.5
CALIBRATION_CYCLES = 2_000_000

_cuda: Any = torch.cuda  # events and the spin kernel have no annotations


def next_spin_s(spin_s: float, queue_s: float, held: bool) -> float:
    """Seconds of the next spin, from the last one and the host's time to queue the calls.

    SPIN_MARGIN times the queueing; after a spin that did not hold until all was queued, at least
    twice the last. Never under SHORTEST_SPIN_S nor over LONGEST_SPIN_S.
    """
    wanted = SPIN_MARGIN * queue_s
    if not held:
        wanted = max(wanted, 2.0 * spin_s)
    return min(max(wanted, SHORTEST_SPIN_S), LONGEST_SPIN_S)


def spin_cycles(spin_s: float, seconds_per_cycle: float) -> int:
    """Cycles that spin for at least so many seconds."""
    return max(1, int(-(-spin_s // seconds_per_cycle)))


@dataclass(frozen=True)
class Lap:
    """One go of the stopwatch: per call the device's and the host's seconds.

    `held`: the stream was still held when the last call had been queued; else the device may have
    waited for the host, and the seconds are not the device's alone. `queue_s`: the host's time to
    queue everything. `start`: its reading of perf_counter before the first call.
    """

    seconds: dict[str, float]
    host_seconds: dict[str, float]
    held: bool
    queue_s: float
    start: float


class HeldStopwatch:
    """Times calls that queue work on the current stream of the current device."""

    def __init__(self, cold: bool) -> None:
        """`cold`: `ready` writes a buffer of twice the L2 cache, which evicts what it held."""
        self._scratch: torch.Tensor | None = None
        if cold:
            properties = torch.cuda.get_device_properties(torch.cuda.current_device())
            size = 2 * int(properties.L2_cache_size)
            self._scratch = torch.empty(size, dtype=torch.int8, device="cuda")
        self._events: list[Any] = []
        self._seconds_per_cycle = seconds_per_cycle()

    def ready(self) -> None:
        """Evict the cache if the case is a cold one, and wait until the device is idle."""
        if self._scratch is not None:
            self._scratch.zero_()
        torch.cuda.synchronize()

    def lap(self, calls: Mapping[str, Callable[[], None]], spin_s: float) -> Lap:
        """Time calls one after another behind a spin; returns when the device is done."""
        while len(self._events) <= len(calls):
            self._events.append(_cuda.Event(enable_timing=True))
        host: dict[str, float] = {}
        first = self._events[0]
        _cuda._sleep(spin_cycles(spin_s, self._seconds_per_cycle))
        first.record()
        begin = perf_counter()
        for (name, call), event in zip(calls.items(), self._events[1:], strict=False):
            start = perf_counter()
            call()
            host[name] = perf_counter() - start
            event.record()
        held = not first.query()
        queue_s = perf_counter() - begin
        torch.cuda.synchronize()
        pairs = zip(calls, self._events, self._events[1:], strict=False)
        seconds = {name: before.elapsed_time(after) / 1e3 for name, before, after in pairs}
        return Lap(seconds, host, held, queue_s, begin)


def seconds_per_cycle() -> float:
    """Of the spin kernel's clock on the current device, by timing a long spin; clocks may vary."""
    begin, end = (_cuda.Event(enable_timing=True) for _ in range(2))
    _cuda._sleep(CALIBRATION_CYCLES)  # loads the kernel, wakes the clocks
    begin.record()
    _cuda._sleep(CALIBRATION_CYCLES)
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / CALIBRATION_CYCLES


@contextmanager
def arithmetic(tf32: bool) -> Iterator[None]:
    """cuDNN tries its kernels out and takes the fastest; TF32 is allowed or not. Restored after."""
    cudnn: Any = torch.backends.cudnn
    matmul, conv = torch.backends.cuda.matmul, cudnn.conv
    before = cudnn.benchmark, matmul.fp32_precision, conv.fp32_precision
    precision = "tf32" if tf32 else "ieee"
    try:
        cudnn.benchmark = True
        matmul.fp32_precision = conv.fp32_precision = precision
        yield
    finally:
        cudnn.benchmark, matmul.fp32_precision, conv.fp32_precision = before


def cuda_problem() -> str:
    """Why torch cannot use a CUDA device in this process, or nothing."""
    if torch.cuda.is_available():
        return ""
    return "torch sees no CUDA device; see nvidia-smi, CUDA_VISIBLE_DEVICES and constraints/gpu.txt"


def kernel_names(call: Callable[[], None]) -> list[str]:
    """Names of the kernels that a call runs, in order and without repeats. The call is not timed.

    Empty where the profiler may not trace the device (CUPTI needs a permission on some systems).
    """
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    events = [event for event in profiler.events() or () if event.device_type.name == "CUDA"]
    ordered = sorted(events, key=lambda event: event.time_range.start)
    return list(dict.fromkeys(event.name for event in ordered))
