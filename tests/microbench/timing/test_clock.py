"""The common clock, on simulated ranks whose true clocks and network are known exactly.

Simulated time goes with the messages: each rank has its own true time, a message arrives after its
delay, and who receives it cannot be earlier. So the outcome depends on the seeds alone.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.helpers.ranks import ThreadCommunicator, results, run_ranks
from tests.training.launching import needs_mpiexec, run_script

from calib.microbench.timing.clock import (
    ROUNDS,
    ROUNDS_KEPT,
    Clock,
    Reading,
    Synchroniser,
    next_window,
    wait_until,
)


@dataclass
class Network:
    """True offsets and drifts of the ranks' clocks, and how long messages take."""

    offsets: list[float]
    drifts: list[float]
    fastest_s: float = 1e-6
    up_s: float = 5e-6  # mean of the random part towards rank 0
    down_s: float = 5e-6
    seed: int = 0

    def local(self, rank: int, true_s: float) -> float:
        """What the clock of a rank shows; rank 0's shows the true time."""
        return (true_s - self.offsets[rank]) / (1.0 + self.drifts[rank])

    def true(self, rank: int, local_s: float) -> float:
        """The inverse: what the common clock shows then."""
        return local_s * (1.0 + self.drifts[rank]) + self.offsets[rank]


class SimulatedRank(ThreadCommunicator):
    """A rank on a Network; every reading of its clock takes 20 ns of true time."""

    network: Network

    def start(self, network: Network) -> SimulatedRank:
        self.network, self.true_s = network, 1000.0
        self.noise = random.Random(f"{network.seed}-{self.rank}")
        return self

    def now(self) -> float:
        self.true_s += 20e-9
        return self.network.local(self.rank, self.true_s)

    def sleep(self, seconds: float) -> None:
        self.true_s += seconds

    def send(self, buffer: np.ndarray, to: int) -> None:
        mean = self.network.up_s if to == 0 else self.network.down_s
        arrival = self.true_s + self.network.fastest_s + self.noise.expovariate(1.0) * mean
        super().send(np.append(buffer, arrival), to)

    def receive(self, buffer: np.ndarray, source: int) -> None:
        both = np.empty(2)
        super().receive(both, source)
        buffer[:] = both[:1]
        self.true_s = max(self.true_s, float(both[1]))


def synchronise(network: Network, refreshes: int = 0, **options: Any) -> list[Clock]:
    """The clock of every rank after `refreshes` refreshes, 30 s apart."""

    def program(rank: SimulatedRank) -> Clock:
        rank.start(network)
        synchroniser = Synchroniser(rank, now=rank.now, sleep=rank.sleep, **options)
        for _ in range(refreshes):
            rank.sleep(30.0)
            synchroniser.refresh()
        return synchroniser.clock

    return results(run_ranks(len(network.offsets), program, SimulatedRank))


HOURS = st.floats(-4 * 3600.0, 4 * 3600.0)
DRIFTS = st.floats(-1e-4, 1e-4)
DELAYS = st.floats(0.0, 1e-4)


@settings(max_examples=60)
@given(
    offsets=st.lists(HOURS, min_size=2, max_size=2),
    drifts=st.lists(DRIFTS, min_size=2, max_size=2),
    fastest=st.floats(0.0, 1e-4),
    up=DELAYS,
    down=DELAYS,
    seed=st.integers(0, 10**6),
    refreshes=st.integers(0, 3),
    later=st.floats(0.0, 600.0),
)
def test_the_true_time_lies_within_the_error(
    offsets: list[float],
    drifts: list[float],
    fastest: float,
    up: float,
    down: float,
    seed: int,
    refreshes: int,
    later: float,
) -> None:
    """Whatever the clocks and the delays: at all times from before the first round to long after."""
    network = Network([0.0, *offsets], [0.0, *drifts], fastest, up, down, seed)
    clocks = synchronise(network, refreshes, rounds=4, exchanges=8)
    for rank, clock in enumerate(clocks):
        for true_s in (999.0, 1000.0, 1000.25, 1000.5 + 30.0 * refreshes, 1001.0 + later):
            local = network.local(rank, true_s)
            wrong = abs(clock.to_common(local) - true_s)
            assert wrong <= clock.error_s(local) + 1e-11 * abs(true_s), (rank, true_s)  # rounding
            assert clock.from_common(clock.to_common(local)) == pytest.approx(local, abs=1e-9)
            assert clock.to_common(clock.from_common(true_s)) == pytest.approx(true_s, abs=1e-9)


def test_rank_0_is_the_common_clock_and_never_wrong() -> None:
    first, _ = synchronise(Network([0.0, 5.0], [0.0, 1e-5]), rounds=2, exchanges=2)
    assert first == Clock()
    for at in (0.0, 1e3, 1e9):
        assert first.to_common(at) == at == first.from_common(at) and first.error_s(at) == 0.0
    assert first.record().model_dump() == {"offset_s": 0.0, "drift": 0.0, "error_s": 0.0}


def test_one_rank_asks_nobody() -> None:
    (clock,) = synchronise(Network([0.0], [0.0]), refreshes=1)
    assert clock == Clock()


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), steps=st.lists(st.floats(1e-3, 100.0), min_size=2, max_size=6))
def test_the_error_grows_away_from_the_measured_span(seed: int, steps: list[float]) -> None:
    _, clock = synchronise(Network([0.0, 3.0], [0.0, 5e-5], seed=seed), rounds=3, exchanges=5)
    for sign, end in ((1.0, clock.readings[-1].local_s), (-1.0, clock.readings[0].local_s)):
        errors = [clock.error_s(end + sign * sum(steps[:n])) for n in range(len(steps) + 1)]
        assert errors == sorted(errors) and errors[0] < errors[-1]


def test_symmetric_delays_give_offset_and_drift_exactly() -> None:
    """No random delay: the middle of an exchange is exact but for the clock's own 20 ns."""
    network = Network([0.0, 7200.0], [0.0, 3e-5], up_s=0.0, down_s=0.0)
    _, clock = synchronise(network, refreshes=2)
    assert clock.drift == pytest.approx(3e-5, abs=1e-9)
    local = network.local(1, 1030.0)
    assert clock.to_common(local) == pytest.approx(1030.0, abs=50e-9)
    # half of: there and back 1 us each, and three readings of 20 ns
    assert clock.error_s(local) == pytest.approx(1.03e-6, rel=0.1)


def test_a_lopsided_network_is_wrong_by_half_the_difference_and_says_so() -> None:
    """Always 1 us up and 101 us down: nothing can see it, and the error holds it."""

    class Lopsided(SimulatedRank):
        def send(self, buffer: np.ndarray, to: int) -> None:
            arrival = self.true_s + (1e-6 if to == 0 else 101e-6)
            ThreadCommunicator.send(self, np.append(buffer, arrival), to)

    network = Network([0.0, 0.0], [0.0, 0.0])

    def program(rank: Lopsided) -> Clock:
        rank.start(network)
        return Synchroniser(rank, now=rank.now, sleep=rank.sleep).clock

    _, clock = results(run_ranks(2, program, Lopsided))
    middle = clock.reference_s
    assert abs(clock.to_common(middle) - middle) == pytest.approx(50e-6, rel=0.01)
    assert 50e-6 <= clock.error_s(middle) < 52e-6


def test_the_shortest_round_trip_is_the_one_that_counts() -> None:
    """Delays of 1 ms on average: the best of 400 exchanges is far nearer than one."""
    network = Network([0.0, 60.0], [0.0, 0.0], up_s=1e-3, down_s=1e-3)
    errors = [synchronise(network, rounds=2, exchanges=n)[1].record().error_s for n in (1, 20, 400)]
    assert errors[0] > 5 * errors[1] and errors[1] > 2 * errors[2]


def test_a_refresh_makes_the_drift_known_better() -> None:
    network = Network([0.0, 1.0], [0.0, 1e-4], seed=3)
    found = [synchronise(network, refreshes=n)[1] for n in (0, 1, 4)]
    wrong = [abs(clock.drift - 1e-4) for clock in found]
    assert wrong[2] < 1e-7, "within the 1e-5 s of an exchange over two minutes"
    # an hour after the start, each against the next
    at = network.local(1, 4600.0)
    errors = [clock.error_s(at) for clock in found]
    assert errors[0] > 10 * errors[1] and errors[1] > 2 * errors[2]
    assert len(found[2].readings) == len(found[0].readings) + 4


def test_old_rounds_go() -> None:
    """A clock whose rate changes is followed by the rounds after it did."""
    _, clock = synchronise(Network([0.0, 0.0], [0.0, 0.0]), refreshes=40, exchanges=2)
    assert len(clock.readings) == ROUNDS_KEPT
    assert clock.readings[0].local_s > 1000.0 + 30.0 * (40 - ROUNDS_KEPT)


def test_a_clock_that_bends_has_a_larger_error() -> None:
    """Readings exact to 1 us of offsets 0, 1 s^2, 4, 9 (times 1 ms): no line comes near."""
    bent = Clock.through([Reading(float(t), 1e-3 * t * t, 1e-6) for t in range(4)])
    for t in range(4):
        assert abs(bent.to_common(t) - (t + 1e-3 * t * t)) <= bent.error_s(t)
    straight = Clock.through([Reading(float(t), 1e-3 * t, 1e-6) for t in range(4)])
    assert straight.error_s(1.5) == pytest.approx(1e-6) and bent.error_s(1.5) > 0.9e-3


@given(
    points=st.lists(
        st.tuples(st.floats(0, 100), st.floats(-1, 1), st.floats(1e-7, 1e-3)),
        min_size=2,
        max_size=8,
        unique_by=lambda point: round(point[0], 1),
    )
)
def test_the_line_is_that_of_numpy(points: list[tuple[float, float, float]]) -> None:
    """numpy.polyfit with weights 1 / half (it squares them)."""
    assume(max(p[2] for p in points) < 100 * min(p[2] for p in points))
    clock = Clock.through([Reading(*point) for point in points])
    times, offsets, halves = (np.array(column) for column in zip(*points, strict=True))
    slope, at_zero = np.polyfit(times, offsets, 1, w=1.0 / halves)
    assert clock.drift == pytest.approx(slope, rel=1e-6, abs=1e-6)
    assert clock.to_common(0.0) == pytest.approx(at_zero, rel=1e-6, abs=1e-6)


def test_readings_at_one_time_show_no_drift() -> None:
    with pytest.raises(ValueError, match="two times"):
        Clock.through([Reading(1.0, 0.0, 1e-6), Reading(1.0, 0.0, 1e-6)])
    with pytest.raises(ValueError, match="no drift"):
        synchronise(Network([0.0, 0.0], [0.0, 0.0]), rounds=1)


def test_ranks_of_one_host_have_one_asker() -> None:
    """Four ranks on two hosts: only rank 2 asks, and rank 3 has its line."""
    network = Network([0.0, 0.0, 7.0, 7.0], [0.0, 0.0, 3e-5, 3e-5])
    sent: list[tuple[int, int]] = []

    class Counted(SimulatedRank):
        def send(self, buffer: np.ndarray, to: int) -> None:
            sent.append((self.rank, to))
            super().send(buffer, to)

    def program(rank: Counted) -> Clock:
        rank.start(network)
        host = "ab"[rank.rank // 2]
        synchroniser = Synchroniser(
            rank, now=rank.now, sleep=rank.sleep, of_clock=host, exchanges=5
        )
        synchroniser.refresh()
        return synchroniser.clock

    clocks = results(run_ranks(4, program, Counted))
    assert clocks[0] == clocks[1] == Clock()
    assert clocks[2] == clocks[3] and len(clocks[2].readings) == ROUNDS + 1
    assert clocks[2].drift == pytest.approx(3e-5, abs=2e-5)
    assert {pair: sent.count(pair) for pair in sent} == dict.fromkeys(
        [(2, 0), (0, 2)], 5 * (ROUNDS + 1)
    )


def test_records_of_all_ranks_are_known_to_all() -> None:
    network = Network([0.0, -3.0, 40.0], [0.0, 2e-5, -7e-5])

    def program(rank: SimulatedRank) -> list[Any]:
        rank.start(network)
        return Synchroniser(rank, now=rank.now, sleep=rank.sleep).records()

    found = results(run_ranks(3, program, SimulatedRank))
    assert found[0] == found[1] == found[2]
    for rank, record in enumerate(found[0]):
        # common - local, at about 1000 s of true time
        expected = 1000.0 - network.local(rank, 1000.0)
        assert record.offset_s == pytest.approx(expected, abs=1e-3)
        assert (record.error_s > 0) == (rank > 0) and record.error_s < 1e-4
        # two readings half a second apart, each within 1e-5 s
        assert record.drift == pytest.approx(network.drifts[rank], abs=4e-5)


class Ticking:
    """A clock that goes on by `step` at every reading."""

    def __init__(self, at: float, step: float) -> None:
        self.at, self.step = at, step

    def __call__(self) -> float:
        self.at += self.step
        return self.at


def test_wait_until_returns_at_the_common_instant() -> None:
    """A clock 100 s behind that loses 1 s in 1000: local 12 s is common 112.012 s.

    Of common 111 s it is then late by 1.012 s / 1.001 and by the reading that finds it so.
    """
    clock = Clock.through([Reading(0.0, 100.0, 1e-9), Reading(1000.0, 101.0, 1e-9)])
    now = Ticking(10.0, 0.25)
    assert wait_until(clock, 112.012, now) == 0.0
    assert now.at == pytest.approx(12.0)
    assert wait_until(clock, 111.0, now) == pytest.approx(0.25 + 1.012 / 1.001)
    assert now.at == pytest.approx(12.25), "who is late does not wait"


def test_a_window_is_the_same_instant_for_all_ranks() -> None:
    """Ranks 3 hours apart all wake within the clocks' errors of one another, and on time."""
    network = Network([0.0, 10800.0, -5000.0], [0.0, 1e-4, -1e-4], seed=5)

    def program(rank: SimulatedRank) -> tuple[float, float, float]:
        rank.start(network)
        clock = Synchroniser(rank, now=rank.now, sleep=rank.sleep).clock
        window = next_window(rank, clock, 0.01, rank.now)
        late = wait_until(clock, window, rank.now)
        return late, rank.true_s - window, clock.error_s(network.local(rank.rank, rank.true_s))

    for late, passed, error in results(run_ranks(3, program, SimulatedRank)):
        assert late == 0.0
        assert -error <= passed <= error + 40e-9  # and a reading of the clock


PROGRAM = """
import json
from time import perf_counter
from calib.microbench.timing.clock import Synchroniser
from calib.microbench.communicators.mpi import MpiCommunicator

world = MpiCommunicator()
synchroniser = Synchroniser(world)
found = [[r.model_dump() for r in synchroniser.records()]]
synchroniser.refresh()
found.append([r.model_dump() for r in synchroniser.records()])
now = perf_counter()
clock = synchroniser.clock
everyone = world.allgather_object([len(clock.readings), clock.to_common(now) - now, clock.error_s(now)])
if world.rank == 0:
    print("result " + json.dumps([found, everyone]), flush=True)
"""


@pytest.mark.mpi
@pytest.mark.waits
@needs_mpiexec
def test_two_processes_of_one_host_have_one_clock() -> None:
    """CLOCK_MONOTONIC is the host's: the true offset is 0, and so is the drift."""
    done = run_script(2, "-c", PROGRAM)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("result ")]
    records, (first, second) = json.loads(line.removeprefix("result "))
    for rank_0, rank_1 in records:
        assert set(rank_0.values()) == {0.0}
        assert rank_1["error_s"] > 0 and abs(rank_1["offset_s"]) <= rank_1["error_s"]
    assert first == [0, 0.0, 0.0]
    rounds, offset, error = second
    assert rounds == ROUNDS + 1 and abs(offset) <= error
