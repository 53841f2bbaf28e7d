"""Seconds of each of RUN_PHASES of an iteration on one rank; readings of host and GPU clocks.

An iteration is in exactly one phase at any moment, so its phases add up to its time. Code that begins
other work says so (`with clock.of("halo"):`), and the phase before continues afterwards; autograd
functions do so in the backward too, which a CPU runs on its caller's thread, and a GPU's engine node
after node. A switch costs well under a microsecond on a CPU; `switches` counts them, so that a run can
report what its clock cost.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from time import perf_counter
from typing import Any

import torch

from calib.training.run.lines import RUN_PHASES


class HostReadings:
    """perf_counter."""

    now: Callable[[], Any] = staticmethod(perf_counter)

    def seconds(self, start: float, stop: float) -> float:
        """Between two readings."""
        return stop - start

    def settle(self, last: float) -> None:
        """Wait until a reading may be used: no time."""


class GpuReadings:
    """Events on the current stream; nothing waits for the GPU before `settle`."""

    def now(self) -> Any:
        """An event that the stream passes."""
        make: Any = torch.cuda.Event  # torch has no types for it
        event = make(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Any, stop: Any) -> float:
        """Between two events that have been passed."""
        return float(start.elapsed_time(stop)) * 1e-3

    def settle(self, last: Any) -> None:
        """Wait until the stream has passed an event."""
        last.synchronize()


def readings_of(device: torch.device) -> HostReadings | GpuReadings:
    """The readings for work on `device`."""
    return GpuReadings() if device.type == "cuda" else HostReadings()


class PhaseStretch:
    """A context in which the clock is in a phase; it may be nested in itself."""

    __slots__ = ("_before", "_clock", "_phase")

    def __init__(self, clock: PhaseClock, phase: str) -> None:
        self._clock, self._phase = clock, phase
        self._before: list[str] = []

    def __enter__(self) -> None:
        self._before.append(self._clock.switch(self._phase))

    def __exit__(self, *error: object) -> None:
        self._clock.switch(self._before.pop())


class PhaseClock:
    """The clock of a CPU (perf_counter): `begin`, any number of `switch` or `of`, then `end`."""

    def __init__(self) -> None:
        self.switches = 0
        self.started_s = perf_counter()
        self._seconds = dict.fromkeys(RUN_PHASES, 0.0)
        self._phase = RUN_PHASES[0]
        self._since = self.started_s
        self._stretches = {phase: PhaseStretch(self, phase) for phase in RUN_PHASES}

    def begin(self, phase: str = "forward") -> None:
        """Begin an iteration in `phase`. `started_s` is then perf_counter's reading."""
        self._seconds = dict.fromkeys(RUN_PHASES, 0.0)
        self._phase = phase
        self.started_s = self._since = perf_counter()

    def switch(self, phase: str) -> str:
        """Begin `phase`; returns the phase before it."""
        now, before = perf_counter(), self._phase
        self._seconds[before] += now - self._since
        self._phase, self._since = phase, now
        self.switches += 1
        return before

    def of(self, phase: str) -> PhaseStretch:
        """A context in which the clock is in `phase`."""
        return self._stretches[phase]

    def spent(self, phase: str) -> float:
        """Seconds in `phase` since `begin`, up to now."""
        since = perf_counter() - self._since if phase == self._phase else 0.0
        return self._seconds[phase] + since

    def restart(self) -> None:
        """Drop the time since the last switch (an untimed barrier)."""
        self._since = perf_counter()

    def end(self) -> dict[str, float]:
        """Seconds of every phase since `begin`."""
        self.switch(self._phase)
        return self._seconds


class CudaClock(PhaseClock):
    """The clock of a GPU: events on the current stream, read when the iteration has ended.

    A communication library works on streams of its own and the current stream waits for those, so a
    phase holds what the current stream did or waited for.
    """

    def __init__(self) -> None:
        super().__init__()
        self._readings = GpuReadings()
        self._marks: list[tuple[str, Any]] = []  # the phase that begins, and when

    def begin(self, phase: str = "forward") -> None:
        """As PhaseClock; waits for all that is queued."""
        torch.cuda.synchronize()
        super().begin(phase)
        self._marks = []
        self._mark(phase)

    def switch(self, phase: str) -> str:
        """As PhaseClock; does not wait."""
        before, self._phase = self._phase, phase
        self._mark(phase)
        self.switches += 1
        return before

    def restart(self) -> None:
        """As PhaseClock."""
        self._marks[-1] = "", self._marks[-1][1]
        torch.cuda.synchronize()
        self._mark(self._phase)

    def end(self) -> dict[str, float]:
        """As PhaseClock; waits for all that is queued."""
        self._mark("")
        torch.cuda.synchronize()
        for (phase, start), (_, stop) in pairwise(self._marks):
            if phase:
                self._seconds[phase] += self._readings.seconds(start, stop)
        self._marks = []
        return self._seconds

    def _mark(self, phase: str) -> None:
        self._marks.append((phase, self._readings.now()))


def make_clock(device: torch.device | str) -> PhaseClock:
    """The clock for work on `device`."""
    return CudaClock() if torch.device(device).type == "cuda" else PhaseClock()


def seconds_of_a_switch(clock: PhaseClock, n: int = 2000) -> float:
    """Host seconds of one switch, from n of them in a row. `begin` the clock again afterwards."""
    start = perf_counter()
    for _ in range(n):
        clock.switch("forward")
    took = perf_counter() - start
    clock.begin()
    return took / n


def clock_share(clock: PhaseClock, switches: int, seconds: float) -> float:
    """The share of an iteration of `seconds` that so many switches take, on this rank.

    The fastest of a few tries: other load on this core is not the clock's cost.
    """
    each = min(seconds_of_a_switch(clock, n=500) for _ in range(5))
    return switches * each / seconds if seconds > 0 else 0.0
