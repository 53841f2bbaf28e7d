"""How the ranks of a collective begin together, and what of a loop's times is a rank's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from calib.microbench.collectives.operations import Exercise
from calib.microbench.control import Control
from calib.microbench.timing.clock import Clock, next_window, wait_until
from calib.microbench.timing.repeat import SecondsByName, TimedBlock, Timings
from calib.microbench.timing.stretches import CallStretch, TimedCalls, host_block


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


def exercise_block(
    label: str, exercise: Exercise, start: Start, calls: int = 1, cold: bool = False
) -> TimedBlock:
    """Seconds of one call, or None on a rank that takes part without timing.

    A timing holds `calls` calls, or as many in a CUDA graph.

    On a GPU that queues the calls, all GPUs first meet in an allreduce of one item: what follows is
    free of the lateness of hosts and launches.
    """
    name, communicator = exercise.case.operation, exercise.comm
    what = TimedCalls(
        start.control,
        label,
        [CallStretch({name: exercise.call}, exercise.reset)],
        calls,
        cold,
        start.together(),
        communicator.meet,
    )
    loop = (communicator.device.timed if communicator.queues else host_block)(what)

    def of_one(seconds: SecondsByName) -> SecondsByName:
        return {
            name: [
                each / (exercise.halves * exercise.in_graph)
                if exercise.timed and each is not None
                else None
                for each in rows
            ]
            for name, rows in seconds.items()
        }

    def block(n: int) -> Timings:
        timings = loop(n)
        seconds, host, waited = map(of_one, (timings.seconds, timings.host_seconds, timings.waited))
        return Timings(seconds, timings.starts, host, waited)

    return block


def idle_block(name: str) -> TimedBlock:
    """A rank that is in no group."""

    def block(n: int) -> Timings:
        return Timings({name: [None] * n}, [None] * n, {})

    return block
