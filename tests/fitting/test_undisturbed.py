"""Rows of a disturbed machine, made by hand: which are kept, and what is taken off their times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.rows import as_samples, sample

from calib.fitting.estimate import slowest_rank, together
from calib.fitting.undisturbed import MOST_WAITED, undisturbed
from calib.microbench.records.looks import Disturbance
from calib.microbench.records.manifest import CaseEnd
from calib.microbench.records.samples import Sample


def rows(times: list[list[float]], waited: list[list[float]], **about: object) -> list[Sample]:
    return [
        sample(repetition=n, seconds=max(of), rank_seconds=of, rank_waited=of_waits, **about)
        for n, (of, of_waits) in enumerate(zip(times, waited, strict=True))
    ]


def ended(*words: Disturbance) -> CaseEnd:
    return CaseEnd(
        case_id="0" * 16,
        launch=0,
        label="a case",
        purpose="",
        repetitions=1,
        half_width=None,
        stopped_by="budget",
        elapsed_s=1.0,
        started_unix_s=sample().started_unix_s,
        disturbed=list(words),
    )


BUSY = [ended("cores")]


def test_where_nobody_else_had_the_cores_threads_waited_for_one_another() -> None:
    given = as_samples(rows([[1.5]] * 9, [[0.5]] * 9))
    for ends in ([], [ended()], [ended("slow", "network")]):
        found, notes = undisturbed(given, ends)
        assert found is given and notes == []


def test_where_nothing_was_counted_rows_stay_as_they_are() -> None:
    given = as_samples([sample(repetition=n) for n in range(3)])
    found, notes = undisturbed(given, BUSY)
    assert found is given and notes == []


def test_where_nobody_waited_rows_stay_as_they_are() -> None:
    given = as_samples(rows([[1.0, 2.0]] * 9, [[0.0, 0.009]] * 9))
    found, notes = undisturbed(given, BUSY)
    assert found is given and notes == []


def test_undisturbed_repetitions_are_enough() -> None:
    times = [[1.0, 1.0]] * 6 + [[1.5, 1.2]] * 20
    waits = [[0.0, 0.0]] * 6 + [[0.4, 0.0]] * 20
    found, (note,) = undisturbed(as_samples(rows(times, waits)), BUSY)
    assert len(found) == 6 and set(found["seconds"]) == {1.0}
    assert "76.9%" in note and "20 rows left out" in note


def test_ranks_that_wait_for_one_another_lose_what_the_unluckiest_waited() -> None:
    found, (note,) = undisturbed(as_samples(rows([[1.5, 1.4]] * 8, [[0.0, 0.5]] * 8)), BUSY)
    assert len(found) == 8
    assert found.rank_seconds.tolist() == [[1.0, pytest.approx(0.9)]] * 8
    assert set(found["seconds"]) == {1.0}
    assert "8 rows less what was waited" in note


def test_ranks_side_by_side_lose_what_each_waited() -> None:
    of = {"kind": "layer", "operation": "forward", "key": "k"}
    found, _ = undisturbed(as_samples(rows([[1.5, 1.4]] * 8, [[0.0, 0.5]] * 8, **of)), BUSY)
    assert slowest_rank(found).value == 1.5, "the rank that did not wait"
    assert found.rank_seconds[:, 1] == pytest.approx(0.9)


def test_a_repetition_that_waited_most_of_its_time_says_nothing_unless_all_did() -> None:
    lost = MOST_WAITED + 0.1
    some, _ = undisturbed(as_samples(rows([[1.0]] * 3, [[lost], [0.2], [0.2]])), BUSY)
    assert some["seconds"] == pytest.approx([0.8, 0.8])
    none, _ = undisturbed(as_samples(rows([[1.0]] * 3, [[lost]] * 3)), BUSY)
    assert none["seconds"].tolist() == [1.0] * 3


def test_each_launch_is_judged_by_itself_and_other_rows_stay() -> None:
    quiet = rows([[2.0]] * 6, [[0.0]] * 6, launch=0)
    busy = rows([[3.0]] * 6, [[1.0]] * 6, launch=1)
    imported = [sample(repetition=n, case_id="f" * 16, seconds=7.0) for n in range(2)]
    found, _ = undisturbed(as_samples([*quiet, *busy, *imported]), BUSY)
    assert found.where(launch=1)["seconds"] == pytest.approx([2.0] * 6)
    assert found.where(case_id="f" * 16)["seconds"].tolist() == [7.0] * 2
    assert together(found.where(case_id="0" * 16)).value == pytest.approx(2.0)


@given(
    seed=st.integers(0, 2**32 - 1),
    share=st.floats(0.05, 0.5),
    often=st.floats(0.0, 1.0),
    n=st.integers(6, 40),
)
def test_the_undisturbed_time_is_found_whatever_the_disturber(
    seed: int, share: float, often: float, n: int
) -> None:
    """Times of one second with 1% of noise; some repetitions wait so much more."""
    draw = np.random.default_rng(seed)
    work = draw.normal(1.0, 0.01, (n, 2))
    hit = draw.random(n) < often
    waits = np.where(hit, share / (1 - share) * draw.uniform(0.5, 1.5, n), 0.0)
    per_rank = np.column_stack([waits, np.zeros(n)])
    given = as_samples(rows((work + waits[:, None]).tolist(), per_rank.tolist()))
    found, _ = undisturbed(given, BUSY)
    assert np.median(found["seconds"]) == pytest.approx(1.0, abs=0.02)
