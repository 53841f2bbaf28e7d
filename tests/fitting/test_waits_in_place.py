"""Iterations whose parts some other program hit: what each of them takes alone, by hand and seeded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.rows import as_samples, sample
from tests.helpers.runs import end

from calib.fitting.undisturbed import undisturbed
from calib.fitting.waits_in_place import attributed, without_waits
from calib.microbench.records.samples import Sample

PARTS = np.array([10.0, 30.0, 20.0, 0.5])


def shared_out(times: np.ndarray, waited: np.ndarray) -> np.ndarray:
    """What is recorded: the waiting of an iteration by the time of its parts."""
    share: np.ndarray = times * (waited / times.sum(axis=1))[:, None]
    return share


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), often=st.floats(0.1, 0.9), length=st.floats(0.1, 1.0))
def test_a_part_that_was_hit_loses_what_hit_it(seed: int, often: float, length: float) -> None:
    """Bursts of `length` of an iteration, each in one part, as likely as that is long; noise of 1%."""
    draw = np.random.default_rng(seed)
    n = 30
    times = PARTS * draw.normal(1.0, 0.01, (n, len(PARTS)))
    waited = np.where(draw.random(n) < often, length * PARTS.sum() * draw.uniform(0.5, 1.5, n), 0.0)
    hit = draw.choice(len(PARTS), n, p=PARTS / PARTS.sum())
    times[np.arange(n), hit] += waited
    net = attributed(times, waited)
    assert np.median(net, axis=0) == pytest.approx(PARTS, rel=0.04)
    assert net.sum(axis=1) == pytest.approx(times.sum(axis=1) - waited, rel=0.02)


def test_what_hit_all_parts_alike_is_taken_off_by_time() -> None:
    times = np.tile(1.5 * PARTS, (8, 1))
    waited = np.full(8, 0.5 * PARTS.sum())
    assert attributed(times, waited) == pytest.approx(np.tile(PARTS, (8, 1)))
    assert attributed(times, np.zeros(8)) == pytest.approx(times)


def rows(parts: dict[str, list[list[float]]], waited: list[list[float]], **of: Any) -> list[Sample]:
    """Phases of iterations on ranks; `waited` of each iteration on each rank, shared out by time."""
    whole = np.sum([np.array(times) for times in parts.values()], axis=0)
    return [
        sample(
            kind="in_place",
            operation=name.partition("/")[0],
            key="net",
            repetition=n,
            seconds=max(each),
            rank_seconds=each,
            rank_waited=(np.array(each) * np.array(waited[n]) / whole[n]).tolist(),
            ranks=len(each),
            **of,
        )
        for name, times in parts.items()
        for n, each in enumerate(times)
    ]


def test_where_ranks_meet_they_lose_what_the_others_waited() -> None:
    """Rank 0 waits for 4 s in its forward, and rank 1 for rank 0; the meeting itself takes 1 s."""
    hit, plain = [[7.0, 3.0], [2.0, 2.0]], [[3.0, 3.0], [2.0, 2.0]]
    turns = [hit, plain] * 4
    parts = {
        "forward": [forward for forward, _ in turns],
        "backward": [backward for _, backward in turns],
        "halo": [[1.0, 5.0] if turn is hit else [1.0, 1.0] for turn in turns],
    }
    waited = [[4.0, 0.0] if turn is hit else [0.0, 0.0] for turn in turns]
    given = as_samples(rows(parts, waited))
    found = without_waits(given)
    names = given.table["operation"].to_pylist()
    wanted = {"forward": 3.0, "backward": 2.0, "halo": 1.0}
    for place, name in enumerate(names):
        assert found[place] == pytest.approx([wanted[name]] * 2)


def test_a_whole_iteration_loses_what_the_unluckiest_rank_waited() -> None:
    parts = {"blocking": [[9.0, 9.0]] * 6, "overlapped": [[8.0, 8.0]] * 6}
    given = as_samples(rows(parts, [[8.5, 0.0]] * 6))
    found = without_waits(given)
    assert [found[n].tolist() for n in (0, 6)] == [
        pytest.approx([4.5, 4.5]),
        pytest.approx([4.0, 4.0]),
    ]


def test_layers_are_told_from_phases_and_those_of_some_ranks_are_left_out() -> None:
    phases = rows({"forward": [[5.0], [3.0]] * 4}, [[2.0], [0.0]] * 4)
    layers = rows({"layer_forward": [[4.0], [1.0]] * 4}, [[3.0], [0.0]] * 4)
    found = without_waits(as_samples([*phases, *layers]))
    assert [found[n][0] for n in range(16)] == pytest.approx([3.0] * 8 + [1.0] * 8)
    uneven = rows({"forward": [[1.0]] * 4}, [[0.5]] * 4) + rows(
        {"backward": [[1.0, 1.0]] * 4}, [[0.5, 0.5]] * 4
    )
    assert without_waits(as_samples(uneven)) == {}


def test_iterations_in_place_are_undisturbed_part_by_part() -> None:
    """Of six repetitions all were hit, three in the forward and three in the backward."""
    turns = [[8.0, 6.0]] * 3 + [[4.0, 10.0]] * 3
    parts = {name: [[turn[k]] for turn in turns] for k, name in enumerate(("forward", "backward"))}
    given = as_samples(rows(parts, [[4.0]] * 6))
    started = sample().started_unix_s
    busy = end("0" * 16, started_unix_s=started, disturbed=["cores"])
    found, (note,) = undisturbed(given, [busy])
    assert "12 rows less what was waited" in note
    assert found.where(operation="forward")["seconds"] == pytest.approx([4.0] * 6)
    assert found.where(operation="backward")["seconds"] == pytest.approx([6.0] * 6)
