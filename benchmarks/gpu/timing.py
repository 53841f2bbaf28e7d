"""How finely events time, what a spin that holds the stream changes, and seconds of calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple, TypeVar, cast

import torch

from benchmarks.gpu.steps import Found, Row, Setting
from calib.foundation.statistics import median
from calib.foundation.words import seconds_words
from calib.microbench.communicators.mpi import MpiCommunicator
from calib.microbench.control import Control
from calib.microbench.devices import take_device
from calib.microbench.devices.cuda import RESOLUTION_EVENTS, CudaDevice, HeldStopwatch
from calib.microbench.machine.telemetry import marks
from calib.microbench.timing.held import FIRST_SPIN_S
from calib.microbench.timing.stretches import CallStretch, TimedCalls, nothing

COUNTS = (1, 3, 20)  # calls between two events
REPETITIONS = 50
LOOKS = 5
Made = TypeVar("Made")


class PerCall(NamedTuple):
    """Medians of one call among several in a row: seconds of the device, and of the host."""

    device_s: float
    host_s: float


def own_device(control: Control) -> CudaDevice:
    """This process's GPU. Raises MachineError without one."""
    return cast(CudaDevice, take_device("cuda", control))


def watched(device: CudaDevice, measure: Callable[[], Made]) -> tuple[Made, list[str]]:
    """What is measured, and how a session would mark it: throttled, power_capped, shared_gpu."""
    ours = [os.getpid()]
    before = device.telemetry(ours)
    found = measure()
    return found, marks(before, device.telemetry(ours))


def held(control: Control, device: CudaDevice, call: Callable[[], object], number: int) -> PerCall:
    """As calib times calls: queued behind a spin until all are."""
    what = TimedCalls(control, "a call", [CallStretch({"call": call})], calls=number)
    timings = device.timed(what)(REPETITIONS)
    times, host = (
        [seconds for seconds in of["call"] if seconds is not None]
        for of in (timings.seconds, timings.host_seconds)
    )
    return PerCall(median(times), median(host))


def unheld(device: CudaDevice, call: Callable[[], object], number: int) -> PerCall:
    """With nothing that holds the stream: where the host is slower, it is the host that is timed."""
    watch = HeldStopwatch(device, cold=False)
    laps = []
    for _ in range(REPETITIONS):
        watch.ready()
        laps.append(watch.lap({"call": call}, number, 0.0, nothing))
    times, host = (
        [of["call"] for of in every]
        for every in zip(*((lap.seconds, lap.host_seconds) for lap in laps), strict=True)
    )
    return PerCall(median(times), median(host))


def events(setting: Setting) -> Iterator[Found]:
    """The resolution as calib finds it, several times, and what an event costs."""
    device = own_device(MpiCommunicator())
    timers = [type(device)(device.index).events for _ in range(LOOKS)]
    found = [timer.resolution_s for timer in timers]
    note = ", ".join(map(seconds_words, found))
    yield Row("resolution", min(found), "s", f"{LOOKS} times: {note}")
    yield Row("shortest timing of which that is 1%", device.events.shortest_timing_s, "s")
    read = [device.now() for _ in range(RESOLUTION_EVENTS)]
    steps = [device.seconds(*pair) for pair in pairwise(read)]
    yield Row("from one event to the next, median", median(steps), "s")
    yield Row("from one event to the next, least", min(steps), "s")
    yield Row("from one event to the next, most", max(steps), "s")
    clocks = [1.0 / type(device)(device.index).seconds_per_cycle for _ in range(LOOKS)]
    spread = f"{min(clocks) / 1e6:.0f} to {max(clocks) / 1e6:.0f} MHz in {LOOKS} spins"
    yield Row("clock of the spin kernel", median(clocks), "Hz", spread)


def spin(setting: Setting) -> Iterator[Found]:
    """A kernel of one item, N times in a row between two events."""
    control = MpiCommunicator()
    device = own_device(control)
    one = torch.ones(1, device=device.tensors)

    def call() -> None:
        one.add_(1.0)

    call()
    watch = HeldStopwatch(device, cold=False)
    for number in COUNTS:
        watch.ready()
        lap = watch.lap({"call": call}, number, FIRST_SPIN_S, nothing)
        said = (
            f"a spin of {seconds_words(FIRST_SPIN_S)} held them" if lap.held else "it did not hold"
        )
        behind, free = held(control, device, call, number), unheld(device, call, number)
        yield Row(f"kernel of one item, N = {number}, held", behind.device_s, "s", said)
        yield Row(f"kernel of one item, N = {number}, not held", free.device_s, "s")
        yield Row(f"kernel of one item, N = {number}, host", free.host_s, "s", "to queue a call")
