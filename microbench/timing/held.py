"""Timing calls on a GPU: queued behind a spin kernel, timed by events of the stream.

The spin holds the stream until all calls are queued (as nvbandwidth does), so that the events around
them time the device and not the host that launches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from calib.foundation.errors import MeasurementError
from calib.microbench.timing.repeat import TimedBlock, Timings
from calib.microbench.timing.stretches import Attempts, CallStretch, TimedCalls
from calib.microbench.timing.watchdog import beat

# the spin is this many times as long as queueing took; clocks and the host both vary
SPIN_MARGIN = 4.0
FIRST_SPIN_S = 2e-3
SHORTEST_SPIN_S = 50e-6
LONGEST_SPIN_S = 0.5
MAX_TRIES = 8  # the spin doubles at least from one to the next


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

    def lap(
        self,
        calls: Mapping[str, Callable[[], object]],
        number: int,
        spin_s: float,
        lead: Callable[[], None],
    ) -> Lap:
        """Time each call `number` times in a row, behind a spin of so many seconds and `lead`."""


def held_block(what: TimedCalls, watch: LapTimer) -> TimedBlock:
    """The timed loop on this rank's device.

    A repetition that the spin did not hold on some rank is made again by all of them, behind a
    longer spin. Raises MeasurementError where MAX_TRIES do not do.
    """
    spin_s = FIRST_SPIN_S

    def repetition(attempts: Attempts) -> list[Lap]:
        laps: list[Lap] = []

        def lap(stretch: CallStretch) -> None:
            laps.append(watch.lap(stretch.calls, what.calls, spin_s, what.lead))

        for stretch in what.stretches:
            attempts.run(stretch.prepare)
            attempts.run(watch.ready)
            what.start()
            attempts.run(partial(lap, stretch))
        return laps

    def block(n: int) -> Timings:
        nonlocal spin_s
        rows: dict[int, list[Lap]] = {}
        todo = list(range(n))
        for _ in range(MAX_TRIES):
            attempts = Attempts(what.label)
            rows.update({index: repetition(attempts) for index in todo})
            attempts.agree(what.control)
            laps = [lap for index in todo for lap in rows[index]]
            wanted = max(next_spin_s(spin_s, lap.queue_s, lap.held) for lap in laps)
            missed = [i for i in todo if not all(lap.held for lap in rows[i])]
            everyone = what.control.allgather_object([missed, wanted])
            beat()
            # one length for all: the ranks' calls are to run at the same time
            spin_s = max(wanted for _, wanted in everyone)
            todo = sorted({index for missed, _ in everyone for index in missed})
            if not todo:
                return _timings([rows[index] for index in range(n)])
        raise MeasurementError(
            f"{what.label}: the calls cannot be queued ahead of the device (one waits for it), so "
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
