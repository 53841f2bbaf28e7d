"""How many calls one timing holds, in closed form."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import calib.microbench.timing.timer
from calib.microbench.timing.timer import MAX_CALLS, Timer, measure_timer

TIMER = Timer(resolution_s=1e-9, overhead_s=40e-9)  # 50 overheads are 2 us


@pytest.mark.parametrize(
    ("seconds", "calls"),
    [
        (1.0, 1),
        (2e-6, 1),
        (1.9e-6, 2),
        (1e-6, 2),
        (0.3e-6, 7),
        (1e-7, 20),
        (1e-12, MAX_CALLS),
        (0.0, MAX_CALLS),
        (-1.0, MAX_CALLS),
    ],
)
def test_calls(seconds: float, calls: int) -> None:
    assert TIMER.calls_for(seconds) == calls


def test_a_coarse_clock_counts_by_its_resolution() -> None:
    coarse = Timer(resolution_s=1e-6, overhead_s=40e-9)
    assert coarse.shortest_timing_s == pytest.approx(100e-6)
    assert coarse.calls_for(1e-6) == 100


@given(
    resolution=st.floats(1e-9, 1e-5), overhead=st.floats(1e-9, 1e-5), seconds=st.floats(1e-9, 10.0)
)
def test_calls_are_just_enough(resolution: float, overhead: float, seconds: float) -> None:
    timer = Timer(resolution, overhead)
    calls = timer.calls_for(seconds)
    assert 1 <= calls <= MAX_CALLS
    if calls < MAX_CALLS:
        assert calls * seconds >= timer.shortest_timing_s * (1 - 1e-12)
    if calls > 1:
        assert (calls - 1) * seconds < timer.shortest_timing_s * (1 + 1e-12)


def test_properties_of_a_scripted_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 0, 30, 70, 30 ns: the smallest positive is 30, the median is 30."""
    readings = iter([0, 0, 100, 130, 200, 270, 300, 330])
    monkeypatch.setattr(
        calib.microbench.timing.timer, "perf_counter", lambda: next(readings) * 1e-9
    )
    timer = measure_timer(4)
    assert timer.as_dict() == {
        "resolution_s": pytest.approx(30e-9),
        "overhead_s": pytest.approx(30e-9),
    }


def test_a_clock_that_never_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calib.microbench.timing.timer, "perf_counter", lambda: 5.0)
    timer = measure_timer(10)
    assert timer.overhead_s == 0.0 and timer.resolution_s == 1e-9
    assert math.isfinite(timer.shortest_timing_s)
