"""Measured collectives beside what is expected: verdicts, and the one line that answers."""

from __future__ import annotations

import pytest

from calib.fitting.parameters.algorithms import GroupShape
from calib.foundation.records import Estimate
from calib.oracle.cost import Cost
from calib.oracle.costs.asked import CollectiveTime
from calib.reports.scoring.collectives import CollectiveRow, by_place, place_words, summary_of

SHAPE = GroupShape(8, 2, 4)


def row(measured: float | None, nbytes: int = 1024, shape: GroupShape = SHAPE) -> CollectiveRow:
    """1 ms [0.9, 1.2] of an allreduce, and what was measured."""
    cost = Cost(1e-3, "interpolated", (("law", 1e-4, 2e-4),))
    of = CollectiveTime("allreduce", "nccl", "cuda", shape, nbytes, cost, "ring")
    return CollectiveRow(of, None if measured is None else Estimate.exactly(measured))


@pytest.mark.parametrize(
    ("seconds", "verdict"),
    [(1e-3, "inside"), (1.19e-3, "inside"), (1.21e-3, "slower"), (0.89e-3, "faster")],
)
def test_where_a_time_lies(seconds: float, verdict: str) -> None:
    found = row(seconds)
    assert found.verdict == verdict and found.off == pytest.approx(seconds / 1e-3 - 1)
    assert found.measured_busbw == pytest.approx(1.75 * 1024 / seconds)


def test_nothing_measured_has_no_verdict() -> None:
    assert (row(None).verdict, row(None).off, row(None).measured_busbw) == (None, None, None)


def test_the_summary() -> None:
    assert summary_of([row(1e-3), row(None)]) == (
        "normal: none of 1 measured time is above its expected 95% interval"
    )
    assert summary_of([row(1e-3), row(5e-4)]) == (
        "normal: none of 2 measured times is above its expected 95% interval; 1 is below it"
    )
    slow = [row(2e-3), row(3e-3, 4096), row(1e-3), row(5e-4)]
    assert summary_of(slow) == (
        "slower than expected: 2 of 4 measured times are above the expected 95% interval; 1 is below "
        "it; farthest: 4 KiB of allreduce on 8 ranks of 2 nodes took 3 ms, expected 1 ms [900 µs, "
        "1.2 ms] (+200.0%)"
    )


def test_wide_intervals_say_nothing() -> None:
    wide = Cost(1e-3, "extrapolated", (("law", 9e-4, 5e-3),))
    expected = row(None).expected._replace(cost=wide)
    said = summary_of([CollectiveRow(expected, Estimate.exactly(4e-3))])
    assert said.startswith(
        "cannot tell: none of 1 measured time is above its expected 95% interval"
    )
    assert "go to 6.0 times the expected time" in said


def test_places() -> None:
    assert place_words("p2p", GroupShape(2, 1, 2)) == "p2p on 2 ranks"
    uneven = place_words("allreduce", GroupShape(10, 2, 8))
    assert uneven == "allreduce on 10 ranks of 2 nodes, up to 8 on one"
    other = GroupShape(16, 4, 4)
    groups = by_place([row(None), row(None, 2048), row(None, shape=other)])
    assert [len(group) for group in groups] == [2, 1]
