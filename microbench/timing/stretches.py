"""Calls that are timed one after another, and the loop that times them on a host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

from calib.foundation.errors import MeasurementError
from calib.microbench.control import Control
from calib.microbench.machine.waits import Waited, Waits, waits_here
from calib.microbench.timing.caches import evict
from calib.microbench.timing.repeat import TimedBlock, Timings
from calib.microbench.timing.watchdog import beat

Made = TypeVar("Made")


def nothing() -> None:
    """No preparation."""


@dataclass(frozen=True)
class CallStretch:
    """Calls by the names of their rows, and what is done untimed before the first of them.

    `in_a_row` has those that differ where a timing holds several calls, one after another.
    """

    calls: Mapping[str, Callable[[], Any]]
    prepare: Callable[[], None] = nothing
    in_a_row: Mapping[str, Callable[[], Any]] = field(default_factory=dict)

    @property
    def repeatable(self) -> CallStretch:
        """The same with calls that may be made in a row."""
        return CallStretch({**self.calls, **self.in_a_row}, self.prepare)


class Attempts:
    """Calls into torch on ranks that must stay together: a rank that failed only keeps step.

    What torch raises becomes one line, and `agree` raises it on every rank.
    """

    def __init__(self, label: str) -> None:
        self._label, self.failure = label, ""

    def run(self, call: Callable[[], None]) -> None:
        """Call, unless a call has failed already."""
        if self.failure:
            return
        try:
            call()
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            self.failure = f"{self._label}: torch says: {lines[0]}"

    def agree(self, communicator: Control) -> None:
        """Collective. Raises MeasurementError where a call of any rank has failed."""
        failures = [text for text in communicator.allgather_object(self.failure) if text]
        if failures:
            raise MeasurementError(failures[0])


def first_time(
    communicator: Control, label: str, begin: Callable[[], tuple[Made, float]]
) -> tuple[Made, float]:
    """What `begin` makes, and its seconds on the slowest rank. Collective.

    Raises MeasurementError on every rank where it fails on any.
    """
    attempts = Attempts(label)
    made: list[tuple[Made, float]] = []
    attempts.run(lambda: made.append(begin()))
    attempts.agree(communicator)
    ((work, seconds),) = made
    return work, max(communicator.allgather_object(seconds))


@dataclass(frozen=True)
class TimedCalls:
    """What a rank times again and again: stretches of calls, one after another.

    The ranks of `control` start each stretch together: at its barrier, or by `together`. One timing
    holds `calls` calls. `cold` evicts the caches before each stretch. `lead` is queued ahead of a
    stretch on a GPU, so that the ranks' devices meet there too. `label` is for errors.
    """

    control: Control
    label: str
    stretches: Sequence[CallStretch]
    calls: int = 1
    cold: bool = False
    together: Callable[[], None] | None = None
    lead: Callable[[], None] = nothing

    @property
    def start(self) -> Callable[[], None]:
        """Returns on all ranks at once."""
        return self.together or self.control.barrier


def host_block(what: TimedCalls) -> TimedBlock:
    """The timed loop on a CPU.

    What a call returns is freed after the clock was read: training keeps it for longer. What a rank
    waited for a core meanwhile is read outside the timed stretch, too.
    """
    before = evict if what.cold else nothing
    start_together, number = what.start, what.calls
    more = range(number - 1)

    def block(n: int) -> Timings:
        seconds: dict[str, list[float]] = {
            name: [] for each in what.stretches for name in each.calls
        }
        waited: dict[str, list[float]] = {name: [] for name in seconds}
        starts: list[float] = []
        attempts = Attempts(what.label)

        def time(stretch: CallStretch, waits: Waits, so_far: Waited) -> None:
            for name, call in stretch.calls.items():
                start = perf_counter()
                kept = call()
                if more:
                    for _ in more:
                        call()
                seconds[name].append((perf_counter() - start) / number)
                of_call, so_far = waits.since(so_far)
                waited[name].append(of_call / number)
                del kept

        with waits_here() as waits:
            for _ in range(n):
                for place, stretch in enumerate(what.stretches):
                    attempts.run(stretch.prepare)
                    before()
                    start_together()
                    # a rank that is kept from its core while it waits for others loses nothing
                    so_far = waits.so_far()
                    if place == 0:
                        starts.append(perf_counter())
                    attempts.run(partial(time, stretch, waits, so_far))
                beat()
        attempts.agree(what.control)
        return Timings(seconds, starts, waited=waited)

    return block
