"""Schedules and their simulation against closed forms, bounds and another simulator."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calib.foundation.errors import InputError
from calib.oracle.strategies.schedules import critical_path
from calib.search.timelines.schedules import (
    DeviceWork,
    PipelineSchedule,
    gpipe,
    in_flight,
    interleaved,
    one_forward_one_backward,
    pipedream,
)
from calib.search.timelines.simulation import StageTimes, lower_bound, simulate

SIZES = st.tuples(st.integers(1, 6), st.integers(1, 9))
SLOTS = st.integers(1, 50)


def equal(stages: int, forward: float = 1.0, backward: float = 2.0) -> StageTimes:
    return StageTimes([forward] * stages, [backward] * stages)


@settings(max_examples=30, deadline=None)
@given(SIZES)
def test_bubble_of_equal_stages(sizes: tuple[int, int]) -> None:
    """(p+S-1)/S B (max F + max B) of formulas.md, and a bubble of (K-1)/(M+K-1): GPipe and 1F1B."""
    k, m = sizes
    for make in (gpipe, one_forward_one_backward):
        of = simulate(make(k, m), equal(k))
        assert of.makespan_s == (m + k - 1) * 3.0
        assert of.idle_share == pytest.approx((k - 1) / (m + k - 1))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4))
def test_bubble_of_chunks(k: int, groups: int, chunks: int) -> None:
    """Narayanan et al., 2021: the bubble is (K-1)/(v M) of the ideal time; v chunks of 1/v each."""
    m = k * groups
    of = simulate(interleaved(k, m, chunks), equal(k * chunks, 1.0, 2.0))
    ideal = 3.0 * m * chunks
    assert of.makespan_s == pytest.approx(ideal * (1 + (k - 1) / (chunks * m)))


@settings(max_examples=40, deadline=None)
@given(SIZES, st.data())
def test_any_stages(sizes: tuple[int, int], data: st.DataObject) -> None:
    """The longest path's closed form (oracle/strategies/schedules.py), never below the bounds."""
    k, m = sizes
    forward = data.draw(st.lists(SLOTS, min_size=k, max_size=k))
    backward = data.draw(st.lists(SLOTS, min_size=k, max_size=k))
    times = StageTimes(forward, backward)
    for name, make in (("gpipe", gpipe), ("1f1b", one_forward_one_backward)):
        schedule = make(k, m)
        of = simulate(schedule, times)
        path = critical_path("1f1b" if name == "1f1b" else "gpipe", forward, backward, m)
        expected = sum(n * sum(forward[a:b]) for a, b, n in path.forward)
        expected += sum(n * sum(backward[a:b]) for a, b, n in path.backward)
        assert of.makespan_s == expected
        assert of.makespan_s >= lower_bound(schedule, times)


@settings(max_examples=40, deadline=None)
@given(SIZES, st.data(), st.booleans())
def test_events_are_in_order(sizes: tuple[int, int], data: st.DataObject, held: bool) -> None:
    """With messages: devices do one thing at a time, and nothing begins before what it needs."""
    k, m = sizes
    numbers = st.lists(SLOTS, min_size=k, max_size=k)
    forward, backward, send, back = (data.draw(numbers) for _ in range(4))
    times = StageTimes(forward, backward, [], send, back, held)
    replicas = data.draw(st.lists(st.integers(1, 4), min_size=k, max_size=k))
    for schedule in (
        gpipe(k, m),
        one_forward_one_backward(k, m),
        gpipe(k, m, True),
        pipedream(replicas, m),
        pipedream(replicas, m, True),
    ):
        of = simulate(schedule, times)
        assert of.makespan_s >= lower_bound(schedule, times)
        work = {(e.kind, e.stage, e.microbatch): e for e in of.done if e.kind != "send"}
        assert len(work) == sum(map(len, schedule.programs))
        for device in range(len(schedule.programs)):
            own = [e for e in of.done if e.device == device and e.kind != "send"]
            assert all(a.stop_s <= b.start_s for a, b in pairwise(own))
        for (kind, stage, j), event in work.items():
            if kind == "forward" and stage:
                assert event.start_s >= work["forward", stage - 1, j].stop_s + send[stage - 1]
            if kind == "backward" and stage + 1 < k:
                assert event.start_s >= work["backward", stage + 1, j].stop_s + back[stage + 1]
            if kind == "backward":
                assert event.start_s >= work["forward", stage, j].stop_s


@settings(max_examples=40, deadline=None)
@given(SIZES)
def test_in_flight(sizes: tuple[int, int]) -> None:
    """1F1B holds at most K - stage micro-batches, GPipe all."""
    k, m = sizes
    held = simulate(one_forward_one_backward(k, m), equal(k)).by_stage
    assert held == tuple(min(m, k - stage) for stage in range(k))
    assert simulate(gpipe(k, m), equal(k)).by_stage == (m,) * k


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_admitted(replicas: list[int]) -> None:
    """NOAM = ceil(machines / machines of the input stage), on every replica of it; round robin."""
    noam = -(-sum(replicas) // replicas[0])
    assert in_flight(replicas)[0] == noam
    of = pipedream(replicas, 6 * sum(replicas))
    ran = simulate(of, equal(len(replicas)))
    assert ran.by_stage == tuple(in_flight(replicas))
    place = 0
    for stage, count in enumerate(replicas):
        for replica in range(count):
            own = {w.microbatch for w in of.programs[place] if w.stage == stage}
            assert own == set(range(replica, 6 * sum(replicas), count))
            place += 1


def test_steady_state_of_replicas() -> None:
    """Twice the work on two replicas: a mini-batch comes out as often as of the other stage."""
    of = simulate(pipedream([2, 1], 200), StageTimes([2.0, 1.0], [4.0, 2.0]))
    assert of.steady_s() == pytest.approx(3.0, rel=0.02)


def test_recompute_is_a_forward_more() -> None:
    """Of the last stage it is on the path at once: (M + K - 1)(F + B) and M times F."""
    of = simulate(gpipe(1, 5, recompute=True), equal(1))
    assert of.makespan_s == 5 * (1.0 + 1.0 + 2.0)
    assert sum(e.kind == "recompute" for e in of.done) == 5


def test_deadlock_and_what_is_no_schedule() -> None:
    one = DeviceWork("forward", 0, 0), DeviceWork("backward", 0, 0)
    bad = {
        "cannot go on: device 0": ((one[1], one[0]),),
        "no backward of micro-batch 0": ((one[0],),),
        "is there twice": ((one[0], *one),),
        "on two devices": ((one[0],), (one[1],)),
    }
    for said, programs in bad.items():
        with pytest.raises(InputError, match=said):
            simulate(PipelineSchedule("x", 1, 1, programs), equal(1))
    crossed = (
        (
            DeviceWork("forward", 0, 0),
            DeviceWork("backward", 0, 0),
            DeviceWork("forward", 0, 1),
            DeviceWork("backward", 0, 1),
        ),
        (
            DeviceWork("forward", 1, 1),
            DeviceWork("backward", 1, 1),
            DeviceWork("forward", 1, 0),
            DeviceWork("backward", 1, 0),
        ),
    )
    with pytest.raises(InputError, match="waits for"):
        simulate(PipelineSchedule("x", 2, 2, crossed), equal(2))


def test_refusals() -> None:
    for make in (
        lambda: gpipe(0, 1),
        lambda: gpipe(1000, 1000),
        lambda: interleaved(4, 6, 2),
        lambda: pipedream([], 1),
        lambda: pipedream([1, 0], 1),
    ):
        with pytest.raises(InputError):
            make()
