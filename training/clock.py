"""Seconds of each of RUN_PHASES of an iteration, on one rank.

An iteration is in one phase at any moment, so its phases add up to its time. Whoever begins other work
says so (`with clock.of("halo"):`), and what went on before goes on behind it; autograd functions do
that in the backward too, which a CPU runs on its caller's thread and a GPU's engine one node after the
other. A switch costs well under a microsecond on a CPU; `switches` counts them, so that a run can say
what its clock took.
"""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter
from types import TracebackType
from typing import Any

import torch

from calib.training.readings import GpuReadings
from calib.training.run.lines import RUN_PHASES


class PhaseStretch:
    """`with` it, the clock is in its phase; may be entered while it is entered."""

    __slots__ = ("_before", "_clock", "_phase")

    def __init__(self, clock: PhaseClock, phase: str) -> None:
        self._clock, self._phase = clock, phase
        self._before: list[str] = []

    def __enter__(self) -> None:
        self._before.append(self._clock.switch(self._phase))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._clock.switch(self._before.pop())


class PhaseClock:
    """Of a CPU: perf_counter. `begin`, then any number of `switch` or `of`, then `end`."""

    def __init__(self) -> None:
        self.switches = 0
        self.started_s = perf_counter()
        self._seconds = dict.fromkeys(RUN_PHASES, 0.0)
        self._phase = RUN_PHASES[0]
        self._since = self.started_s
        self._stretches = {phase: PhaseStretch(self, phase) for phase in RUN_PHASES}

    def begin(self, phase: str = "forward") -> None:
        """An iteration begins, in this phase. `started_s` is perf_counter's reading now."""
        self._seconds = dict.fromkeys(RUN_PHASES, 0.0)
        self._phase = phase
        self.started_s = self._since = perf_counter()

    def switch(self, phase: str) -> str:
        """What follows is of `phase`; returns the phase that it was."""
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
        """What went on since the last switch is nobody's (a barrier that is not timed)."""
        self._since = perf_counter()

    def end(self) -> dict[str, float]:
        """Seconds of every phase since `begin`."""
        self.switch(self._phase)
        return self._seconds


class CudaClock(PhaseClock):
    """Of a GPU: events on the current stream, read when the iteration has ended.

    A communication library waits on streams of its own and the current stream on those, so that a
    phase holds what the current stream did or waited for.
    """

    def __init__(self) -> None:
        super().__init__()
        self._readings = GpuReadings()
        self._marks: list[tuple[str, Any]] = []  # the phase that begins, and when

    def begin(self, phase: str = "forward") -> None:
        """As PhaseClock; waits for what was queued before."""
        torch.cuda.synchronize()
        super().begin(phase)
        self._marks = []
        self._mark(phase)

    def switch(self, phase: str) -> str:
        """As PhaseClock; nothing is waited for."""
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
        """As PhaseClock; waits for everything queued."""
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
    """The clock of what runs on `device`."""
    return CudaClock() if torch.device(device).type == "cuda" else PhaseClock()


def seconds_of_a_switch(clock: PhaseClock, n: int = 2000) -> float:
    """What one switch takes the host, by n of them in a row. The clock is then to `begin` again."""
    start = perf_counter()
    for _ in range(n):
        clock.switch("forward")
    took = perf_counter() - start
    clock.begin()
    return took / n
