"""Sets of times, against one instant after the other."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from calib.training.traces import intervals

PAIRS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=8)


def as_set(of: intervals.Starts) -> set[int]:
    return {x for start, stop in of for x in range(int(start), int(stop))}


def as_times(pairs: list[tuple[int, int]]) -> intervals.Starts:
    return np.array([(a, a + n) for a, n in pairs], dtype=float).reshape(-1, 2)


@given(PAIRS, PAIRS, st.lists(st.tuples(st.integers(0, 36), st.integers(0, 9)), max_size=4))
def test_intervals_are_sets_of_instants(
    a: list[tuple[int, int]], b: list[tuple[int, int]], windows: list[tuple[int, int]]
) -> None:
    one, two = intervals.union(as_times(a)), intervals.union(as_times(b))
    first = {x for start, n in a for x in range(start, start + n)}
    second = {x for start, n in b for x in range(start, start + n)}
    assert as_set(one) == first
    assert as_set(intervals.union(as_times(a), as_times(b))) == first | second
    assert as_set(intervals.both(one, two)) == first & second
    assert as_set(intervals.minus(one, two)) == first - second
    lengths = intervals.lengths_within(one, as_times(windows))
    assert lengths.tolist() == [len(first & set(range(s, s + n))) for s, n in windows]
    inside = intervals.index_at(one, np.arange(40.0)) >= 0
    assert {int(x) for x in np.flatnonzero(inside)} == first
