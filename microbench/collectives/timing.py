"""Timed loops of a collective, started together from a barrier or a window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import cast

from calib.microbench.collectives.operations import Exercise
from calib.microbench.communicator import Control, DeviceCommunicator
from calib.microbench.timing.clock import Clock, next_window, wait_until
from calib.microbench.timing.repeat import Timings
from calib.microbench.timing.stretches import nothing
from calib.microbench.timing.watchdog import beat

TimedBlock = Callable[[int], Timings]


@dataclass(frozen=True)
class Start:
    """How the ranks that take part begin a repetition together.

    `control` is of these ranks alone. With a `clock`, they leave at an instant that rank 0 sets
    `lead_s` ahead; else at a barrier.
    """

    control: Control
    clock: Clock | None = None
    lead_s: float = 0.0

    def together(self) -> Callable[[], None]:
        """A function that returns on all ranks at once."""
        control, clock, lead_s = self.control, self.clock, self.lead_s
        if clock is None:
            return control.barrier

        def window() -> None:
            wait_until(clock, next_window(control, clock, lead_s))

        return window


def host_block(
    name: str, exercise: Exercise, start: Start, calls: int, before: Callable[[], None] = nothing
) -> TimedBlock:
    """Times of one operation on a CPU; `before` (evicting caches) runs ahead of each repetition."""
    together, reset, call = start.together(), exercise.reset, exercise.call
    many, divisor = range(calls), calls * exercise.halves

    def block(n: int) -> Timings:
        times: list[float] = []
        starts: list[float] = []
        for _ in range(n):
            reset()
            before()
            together()
            if calls == 1:
                begin = perf_counter()
                call()
                end = perf_counter()
            else:
                begin = perf_counter()
                for _ in many:
                    call()
                end = perf_counter()
            starts.append(begin)
            times.append((end - begin) / divisor)
            beat()
        return Timings({name: times if exercise.timed else [None] * n}, starts)

    return block


def device_block(
    name: str, exercise: Exercise, start: Start, calls: int, before: Callable[[], None] = nothing
) -> TimedBlock:
    """Times of one operation on a GPU: events on the stream, and the host's own time beside them."""
    together, reset, call = start.together(), exercise.reset, exercise.call
    synchronize, divisor = exercise.comm.synchronize, calls * exercise.halves
    stopwatch = cast("DeviceCommunicator", exercise.comm).stopwatch()

    def block(n: int) -> Timings:
        times: list[float] = []
        hosts: list[float] = []
        starts: list[float] = []
        for _ in range(n):
            reset()
            before()
            synchronize()
            together()
            begin = perf_counter()
            stopwatch.start()
            for _ in range(calls):
                call()
            stopwatch.stop()
            hosts.append((perf_counter() - begin) / divisor)
            starts.append(begin)
            times.append(stopwatch.seconds() / divisor)
            beat()
        untimed = [None] * n
        return Timings(
            {name: times if exercise.timed else untimed},
            starts,
            {name: hosts if exercise.timed else untimed},
        )

    return block


def idle_block(name: str) -> TimedBlock:
    """A rank that is in no group."""

    def block(n: int) -> Timings:
        return Timings({name: [None] * n}, [None] * n, {})

    return block
