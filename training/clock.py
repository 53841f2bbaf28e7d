"""Seconds of each of RUN_PHASES of an iteration on one rank, by the clock of its device.

An iteration is in exactly one phase at any moment, so its phases add up to its time. Code that begins
other work says so (`with clock.of("halo"):`), and the phase before continues afterwards; autograd
functions do so in the backward too, which a CPU runs on its caller's thread, and a GPU's engine node
after node. A switch costs well under a microsecond on a CPU; `switches` counts them, so that a run can
report what its clock cost.

On a GPU a reading is an event of the current stream. A communication library works on streams of its
own, for which the current one waits, so a phase holds what the current stream did or waited for.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from time import perf_counter
from typing import Any

from calib.microbench.device import CPU, Device
from calib.training.run.lines import RUN_PHASES

DROPPED = ""
GRADIENTS = "pack:gradients"  # a part of the phase, beside copies of shards and halos


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
    """`begin`, any number of `switch` or `of`, then `end`.

    A phase may have parts of its own names, "pack:gradients", whose seconds are also the phase's: after
    `end` they are in `parts`.
    """

    def __init__(self, device: Device = CPU) -> None:
        self.switches = 0
        self.started_s = perf_counter()
        self.parts: dict[str, float] = {}
        self._device, self._now = device, device.now
        self._phase = RUN_PHASES[0]
        self._marks: list[tuple[str, Any]] = []  # the phase that begins, and when
        self._stretches = {phase: PhaseStretch(self, phase) for phase in RUN_PHASES}

    def begin(self, phase: str = "forward") -> None:
        """Begin an iteration in `phase`, when all that is queued is done.

        `started_s` is then perf_counter's reading.
        """
        self._device.synchronize()
        self._phase = phase
        self.started_s = perf_counter()
        self._marks = [(phase, self._now())]

    def switch(self, phase: str) -> str:
        """Begin `phase`; returns the phase before it. Waits for nothing."""
        before, self._phase = self._phase, phase
        self._marks.append((phase, self._now()))
        self.switches += 1
        return before

    def of(self, phase: str) -> PhaseStretch:
        """A context in which the clock is in `phase`."""
        return self._stretches[phase]

    def restart(self) -> None:
        """Drop the time since the last switch (an untimed barrier)."""
        self._marks[-1] = DROPPED, self._marks[-1][1]
        self._device.synchronize()
        self._marks.append((self._phase, self._now()))

    def end(self) -> dict[str, float]:
        """Seconds of every phase since `begin`, when all that is queued is done."""
        self.switch(self._phase)
        between, parts = self._device.seconds, defaultdict[str, float](float)
        for (phase, start), (_, stop) in pairwise(self._marks):
            parts[phase] += between(start, stop)
        parts.pop(DROPPED, None)
        self._marks, self.parts = [], dict(parts)
        seconds = dict.fromkeys(RUN_PHASES, 0.0)
        for name, spent in parts.items():
            seconds[name.partition(":")[0]] += spent
        return seconds


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
