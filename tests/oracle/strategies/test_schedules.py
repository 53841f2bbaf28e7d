"""The longest path of GPipe and 1F1B against events, for unequal slots."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracle.simulated_pipeline import Times, makespan, program

from calib.foundation.division import Schedule
from calib.oracle.strategies.schedules import Span, critical_path

SCHEDULES: tuple[Schedule, ...] = ("gpipe", "1f1b")
# few values, so that many stages tie, and any
SECONDS = st.one_of(st.sampled_from([0.0, 1.0, 2.0, 5.0]), st.floats(1e-6, 1e3))


def on(spans: Sequence[Span], slots: Sequence[float]) -> float:
    return math.fsum(n * slots[i] for first, after, n in spans for i in range(first, after))


def longest(schedule: Schedule, forward: list[float], backward: list[float], s: int) -> float:
    path = critical_path(schedule, forward, backward, s)
    return on(path.forward, forward) + on(path.backward, backward)


@settings(max_examples=250, deadline=None)
@given(
    st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=7),
    st.integers(1, 12),
    st.sampled_from(SCHEDULES),
)
def test_makespan(slots: list[tuple[float, float]], segments: int, schedule: Schedule) -> None:
    forward, backward = [f for f, _ in slots], [b for _, b in slots]
    nothing = [0.0] * len(slots)
    simulated = makespan(schedule, Times(forward, backward, nothing, nothing), segments)
    assert longest(schedule, forward, backward, segments) == pytest.approx(simulated, rel=1e-9)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("p", "segments"), [(1, 1), (1, 5), (4, 1), (4, 3), (4, 16)])
def test_equal_stages(schedule: Schedule, p: int, segments: int) -> None:
    """(p + S - 1)(a + r) for both: 1F1B saves memory, not time."""
    found = longest(schedule, [2.0] * p, [3.0] * p, segments)
    assert found == pytest.approx((p + segments - 1) * 5.0, rel=1e-12)


def test_one_slow_stage_sets_the_pace() -> None:
    """Busy S times 12 s, with 2 s of other stages before and 4 s after; at most with all the others."""
    forward, backward = [1.0, 1.0, 4.0, 1.0], [2.0, 2.0, 8.0, 2.0]
    assert 2.0 + 1200.0 + 4.0 <= longest("1f1b", forward, backward, 100) <= 1200.0 + 9.0


def test_schedules_differ_where_stages_are_slow_in_different_directions() -> None:
    """Forward slow on one stage, backward on the other: GPipe waits for both, 1F1B overlaps them."""
    forward, backward = [10.0, 1.0], [1.0, 10.0]
    assert longest("gpipe", forward, backward, 8) == pytest.approx(11.0 + 70.0 + 11.0 + 70.0)
    assert longest("1f1b", forward, backward, 8) < 130.0


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("segments", [1, 2, 4, 9])
def test_the_program_keeps_so_many_in_flight(stage: int, segments: int) -> None:
    """The simulated 1F1B is the one whose memory formulas count: min(S, p - i) at stage i."""
    flying = most = 0
    for what, _ in program("1f1b", stage, 4, segments):
        flying += 1 if what == "F" else -1
        most = max(most, flying)
    assert most == min(segments, 4 - stage)
