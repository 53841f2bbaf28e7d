"""Calls that are timed one after another, and the loop that times them on a host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

from calib.foundation.errors import MeasurementError
from calib.microbench.communicator import Control
from calib.microbench.timing.repeat import RepeatedCalls, Timings
from calib.microbench.timing.watchdog import beat

Made = TypeVar("Made")


def nothing() -> None:
    """No preparation."""


@dataclass(frozen=True)
class CallStretch:
    """Calls by the names of their rows, and what is done untimed before the first of them."""

    calls: Mapping[str, Callable[[], Any]]
    prepare: Callable[[], None] = nothing


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


def host_block(
    communicator: Control,
    label: str,
    stretches: Sequence[CallStretch],
    before: Callable[[], None] = nothing,
) -> RepeatedCalls:
    """The timed loop on a CPU; all ranks start each stretch together. `label` is for errors.

    `before` (evicting caches) runs ahead of each stretch. What a call returns is freed after the
    clock was read: training keeps it for longer.
    """

    def block(n: int) -> Timings:
        seconds: dict[str, list[float]] = {name: [] for each in stretches for name in each.calls}
        starts: list[float] = []
        attempts = Attempts(label)

        def time(stretch: CallStretch) -> None:
            for name, call in stretch.calls.items():
                start = perf_counter()
                kept = call()
                seconds[name].append(perf_counter() - start)
                del kept

        for _ in range(n):
            for number, stretch in enumerate(stretches):
                attempts.run(stretch.prepare)
                before()
                communicator.barrier()
                if number == 0:
                    starts.append(perf_counter())
                attempts.run(partial(time, stretch))
            beat()
        attempts.agree(communicator)
        return Timings(seconds, starts)

    return block
