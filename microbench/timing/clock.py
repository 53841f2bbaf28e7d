"""A clock that all ranks share: rank 0's, with a bound on each rank's error.

A rank asks rank 0 for the time: sent at t1, answered T, back at t4 (Cristian, Distributed Computing
3, 1989). However uneven the two ways are, rank 0's clock showed T between t1 and t4, so the offset
at their middle is T - (t1 + t4) / 2, to within half the round trip. Of many exchanges the one with
the shortest round trip is kept (NTP's minimum filter), and a straight line through the kept ones
of several rounds gives offset and drift (Jones and Koenig, Concurrency and Computation 25, 2013;
Hunold and Carpen-Amarie, MPI Benchmarking Revisited, 2015).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from time import perf_counter

import numpy as np

from calib.foundation.arrays import Floats
from calib.microbench.control import Control
from calib.microbench.records.manifest import ClockRecord

ROUNDS = 8
SPREAD_S = 0.5  # the first rounds are spread over this long; each refresh adds one
EXCHANGES = 50
ROUNDS_KEPT = 32  # older ones go: no quartz keeps its rate while a machine warms up
MAX_DRIFT = 1e-3  # no clock differs in rate from another by more; Linux steers within 5e-4

Now = Callable[[], float]


@dataclass(frozen=True)
class Reading:
    """At `local_s` of this rank's clock rank 0's was ahead by `offset_s`, give or take `half_s`."""

    local_s: float
    offset_s: float
    half_s: float


@dataclass(frozen=True)
class Clock:
    """Rank 0's clock as a straight line over this rank's: common = local + offset + drift.

    `offset_s` holds at `reference_s` of this rank's clock; `drift` is in seconds per second. Who reads
    rank 0's clock has no readings: it is the common one. `residual_s` is what the line leaves at worst.
    """

    readings: tuple[Reading, ...] = ()
    reference_s: float = 0.0
    offset_s: float = 0.0
    drift: float = 0.0
    residual_s: float = 0.0

    @classmethod
    def through(cls, readings: Sequence[Reading]) -> Clock:
        """The line of least squares, each reading weighed by 1 / half_s^2.

        Raises ValueError for less than two readings at different times: they show no drift.
        """
        if len({reading.local_s for reading in readings}) < 2:
            raise ValueError("a clock needs readings at two times or more")
        weights = _weights(readings)
        times = np.array([reading.local_s for reading in readings])
        offsets = np.array([reading.offset_s for reading in readings])
        # sums are taken from the first reading on, for the clocks may be hours apart
        first_s, first_offset = times[0], offsets[0]
        times, offsets = times - first_s, offsets - first_offset
        reference, offset = np.average(times, weights=weights), np.average(offsets, weights=weights)
        away = times - reference
        drift = (weights * away * offsets).sum() / (weights * away**2).sum()
        residuals = offsets - offset - drift * away
        return cls(
            readings=tuple(readings),
            reference_s=float(first_s + reference),
            offset_s=float(first_offset + offset),
            drift=float(drift),
            residual_s=float(np.abs(residuals).max()),
        )

    def to_common(self, local_s: float) -> float:
        """Rank 0's clock when this rank's shows `local_s`."""
        return local_s + self.offset_s + self.drift * (local_s - self.reference_s)

    def from_common(self, common_s: float) -> float:
        """This rank's clock when rank 0's shows `common_s`."""
        ahead = common_s - self.reference_s - self.offset_s
        return self.reference_s + ahead / (1.0 + self.drift)

    def error_s(self, at_local_s: float) -> float:
        """What `to_common(at_local_s)` is wrong by at most; 0 for rank 0's clock.

        The line at that time is sum c_i offset_i with coefficients c_i of the fit, so readings that
        are each within half_i put it within sum |c_i| half_i, however the network's delays were
        distributed: half the round trip in the middle of the readings, and more the further away,
        for the drift. That is strict for clocks of constant rate; for the rest, what the line
        leaves is added.
        """
        if not self.readings:
            return 0.0
        weights = _weights(self.readings)
        away = np.array([reading.local_s for reading in self.readings]) - self.reference_s
        halves = np.array([reading.half_s for reading in self.readings])
        slope = (at_local_s - self.reference_s) * away / (weights * away**2).sum()
        coefficients = weights * (1 / weights.sum() + slope)
        return float((np.abs(coefficients) * halves).sum()) + self.residual_s

    def record(self) -> ClockRecord:
        """For the manifest: the offset at the last reading, the error at worst between them."""
        if not self.readings:
            return ClockRecord(offset_s=0.0, drift=0.0, error_s=0.0)
        last = self.readings[-1].local_s
        return ClockRecord(
            offset_s=self.to_common(last) - last,
            drift=self.drift,
            error_s=max(self.error_s(reading.local_s) for reading in self.readings),
        )


def _weights(readings: Sequence[Reading]) -> Floats:
    """The weight of each reading in the fit."""
    return 1.0 / np.maximum([reading.half_s for reading in readings], 1e-12) ** 2


def ask(
    link: Control, exchanges: int, askers: Sequence[int], now: Now = perf_counter
) -> Reading | None:
    """One round: each of the ranks `askers` asks rank 0 `exchanges` times; None on the others.

    They take turns, so a round takes exchanges x askers round trips.
    """
    message = np.zeros(1, dtype=np.float64)
    if link.rank == 0:
        for other in askers:
            for _ in range(exchanges):
                link.receive(message, other)
                message[0] = now()
                link.send(message, other)
        return None
    if link.rank not in askers:
        return None
    shortest, best = math.inf, Reading(0.0, 0.0, math.inf)
    resolution = time.get_clock_info("perf_counter").resolution
    for _ in range(exchanges):
        sent = now()
        link.send(message, 0)
        link.receive(message, 0)
        back = now()
        if back - sent < shortest:
            shortest = back - sent
            middle = sent + shortest / 2
            half = shortest / 2 * (1 + MAX_DRIFT) + resolution
            best = Reading(middle, float(message[0]) - middle, half)
    return best


class Synchroniser:
    """Keeps the clock of this rank; every rank makes one and refreshes it at the same points.

    `now` reads this rank's clock and `sleep` waits between the first rounds, both in seconds. Ranks that
    give the same name `of_clock` read one and the same clock: the first of them asks for all, so that
    a thousand ranks on 16 hosts take the turns of 16. Without it every rank has its own.
    """

    def __init__(
        self,
        link: Control,
        rounds: int = ROUNDS,
        spread_s: float = SPREAD_S,
        exchanges: int = EXCHANGES,
        now: Now = perf_counter,
        sleep: Callable[[float], None] = time.sleep,
        of_clock: str = "",
    ) -> None:
        if rounds < 2:
            raise ValueError("one round shows no drift")
        names = link.allgather_object(of_clock or link.rank)
        self._first = names.index(names[link.rank])
        firsts = {name: rank for rank, name in reversed(list(enumerate(names)))}
        self._askers = sorted(rank for rank in firsts.values() if rank)
        self._is_told = len(firsts) < link.size
        self._link, self._exchanges, self._now = link, exchanges, now
        self._readings: list[Reading] = []
        for number in range(rounds if self._askers else 0):
            if number:
                sleep(spread_s / (rounds - 1))
            self._ask()
        self.clock = self._fitted()

    def refresh(self) -> None:
        """Add a round and fit again: over a longer time the drift is known better. Collective."""
        self._ask()
        self.clock = self._fitted()

    def records(self) -> list[ClockRecord]:
        """The clock of every rank, on every rank. Collective."""
        everyone = self._link.allgather_object(self.clock.record().model_dump())
        return [ClockRecord(**record) for record in everyone]

    def _ask(self) -> None:
        reading = ask(self._link, self._exchanges, self._askers, self._now)
        if self._is_told:
            found = self._link.allgather_object(None if reading is None else astuple(reading))
            told = found[self._first]
            reading = None if told is None else Reading(*told)
        if reading is not None:
            self._readings = [*self._readings, reading][-ROUNDS_KEPT:]

    def _fitted(self) -> Clock:
        return Clock.through(self._readings) if self._readings else Clock()


def wait_until(clock: Clock, common_s: float, now: Now = perf_counter) -> float:
    """Spin until the common clock shows `common_s`; returns how late this rank came, 0 if on time.

    A sleep would wake some 50 microseconds late.
    """
    target = clock.from_common(common_s)
    late = now() - target
    if late >= 0:
        return late
    while now() < target:
        pass
    return 0.0


def next_window(control: Control, clock: Clock, lead_s: float, now: Now = perf_counter) -> float:
    """An instant of the common clock that the first rank of `control` sets `lead_s` ahead.

    Collective. The lead must be longer than telling all ranks takes, and cover the clocks' error.
    """
    return float(control.broadcast_object(clock.to_common(now()) + lead_s))
