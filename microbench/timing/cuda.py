"""Timing on a CUDA device: event stopwatch, cold caches, precision, kernels.

Calls are queued behind a spin kernel that holds the stream until all of them are queued (as
nvbandwidth does), so that the events around them time the device and not the host that launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Protocol

import torch

from calib.foundation.errors import MeasurementError
from calib.microbench.communicator import Control
from calib.microbench.communicators.devices import agree
from calib.microbench.timing.repeat import RepeatedCalls, Timings
from calib.microbench.timing.stretches import Attempts, CallStretch
from calib.microbench.timing.watchdog import beat

# the spin is this many times as long as queueing took; clocks and the host both vary
SPIN_MARGIN = 4.0
FIRST_SPIN_S = 2e-3
SHORTEST_SPIN_S = 50e-6
LONGEST_SPIN_S = 0.5
CALIBRATION_CYCLES = 2_000_000
MAX_TRIES = 8  # the spin doubles at least from one to the next

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


class LapTimer(Protocol):
    """What held_block needs of a stopwatch."""

    def ready(self) -> None:
        """Evict the caches if wanted; return when the device is idle."""

    def lap(self, calls: Mapping[str, Callable[[], None]], spin_s: float) -> Lap:
        """Time calls behind a spin of so many seconds."""


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


def held_block(
    communicator: Control, label: str, stretches: Sequence[CallStretch], watch: LapTimer
) -> RepeatedCalls:
    """The timed loop of stretches of calls on this rank's device; `label` is for errors.

    A repetition that the spin did not hold on some rank is made again by all of them, behind a
    longer spin. Raises MeasurementError where MAX_TRIES do not do.
    """
    spin_s = FIRST_SPIN_S

    def repetition(attempts: Attempts) -> list[Lap]:
        laps: list[Lap] = []

        def lap(stretch: CallStretch) -> None:
            laps.append(watch.lap(stretch.calls, spin_s))

        for stretch in stretches:
            attempts.run(stretch.prepare)
            attempts.run(watch.ready)
            communicator.barrier()
            attempts.run(partial(lap, stretch))
        return laps

    def block(n: int) -> Timings:
        nonlocal spin_s
        rows: dict[int, list[Lap]] = {}
        todo = list(range(n))
        for _ in range(MAX_TRIES):
            attempts = Attempts(label)
            rows.update({index: repetition(attempts) for index in todo})
            attempts.agree(communicator)
            laps = [lap for index in todo for lap in rows[index]]
            wanted = max(next_spin_s(spin_s, lap.queue_s, lap.held) for lap in laps)
            missed = [i for i in todo if not all(lap.held for lap in rows[i])]
            everyone = communicator.allgather_object([missed, wanted])
            beat()
            # one length for all: the ranks' calls are to run at the same time
            spin_s = max(wanted for _, wanted in everyone)
            todo = sorted({index for missed, _ in everyone for index in missed})
            if not todo:
                return _timings([rows[index] for index in range(n)])
        raise MeasurementError(
            f"{label}: the calls cannot be queued ahead of the device (one waits for it), so "
            "the device's own time is not known; try mode graph"
        )

    return block


def _timings(rows: Sequence[Sequence[Lap]]) -> Timings:
    """The laps of all repetitions by operation."""
    names = [name for lap in rows[0] for name in lap.seconds]

    def of(values: Callable[[Lap], dict[str, float]]) -> dict[str, list[float]]:
        merged = [{k: v for lap in laps for k, v in values(lap).items()} for laps in rows]
        return {name: [row[name] for row in merged] for name in names}

    return Timings(
        of(lambda lap: lap.seconds),
        [laps[0].start for laps in rows],
        of(lambda lap: lap.host_seconds),
    )


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


@contextmanager
def on_gpu(control: Control, index: int, tf32: bool) -> Iterator[torch.device]:
    """This rank's GPU, current in the block, under `arithmetic`. Collective.

    Raises MachineError on all ranks where one has no CUDA device.
    """
    agree(control, cuda_problem())
    # modulo: a launcher may show each rank its own GPU alone
    device = torch.device("cuda", index % torch.cuda.device_count())
    with torch.cuda.device(device), arithmetic(tf32):
        yield device


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
