"""When to stop, on a clock that only the block moves: every number here is exact."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

import microbench.repeat
from microbench.repeat import (
    FEWEST_REPETITIONS,
    MAX_REPETITIONS,
    MIN_REPETITIONS,
    WARMUP_REPETITIONS,
    Repetitions,
    merge_ranks,
    repeat,
)
from tests.helpers.ranks import results, run_ranks


class Clock:
    """A clock that stands still between calls of `pass_`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(microbench.repeat, "perf_counter", clock)
    return clock


def alone(
    clock: Clock, seconds: Callable[[], float], budget_s: float, target: float = 0.025
) -> Repetitions:
    """Repeat on one rank; every repetition takes `seconds()` on the clock."""

    def block(n: int) -> dict[str, list[float]]:
        times = [seconds() for _ in range(n)]
        clock.pass_(sum(times))
        return {"work": times}

    (result,) = results(run_ranks(1, lambda comm: repeat(comm, block, budget_s, target, calls=7)))
    assert isinstance(result, Repetitions)
    return result


def test_a_constant_stops_at_its_interval(clock: Clock) -> None:
    result = alone(clock, lambda: 0.25, budget_s=1e6)
    assert result.stopped_by == "interval"
    assert result.half_width == 0.0
    assert result.ranks == {"work": [[0.25]] * (WARMUP_REPETITIONS + MIN_REPETITIONS)}
    assert result.elapsed_s == 0.25 * (WARMUP_REPETITIONS + MIN_REPETITIONS)
    assert result.calls == 7


def test_noise_stops_at_its_budget(clock: Clock) -> None:
    """Times of 1 to 3 s at random: the interval of their median is never within 2.5%."""
    noise = random.Random(1)
    result = alone(clock, lambda: noise.uniform(1.0, 3.0), budget_s=100.0)
    assert result.stopped_by == "budget"
    assert result.half_width > 0.025
    # the last block is planned to end at the budget and may pass it by what noise adds to it
    assert 100.0 <= result.elapsed_s <= 125.0
    assert result.elapsed_s == pytest.approx(sum(row[0] for row in result.ranks["work"]))


def test_the_budget_is_passed_by_less_than_one_repetition(clock: Clock) -> None:
    """Blocks of 1.0 s on average, whose two operations differ: 100 s hold 100 of them, not 101."""
    counts: list[int] = []

    def block(n: int) -> dict[str, list[float]]:
        counts.append(n)
        clock.pass_(n)
        start = sum(counts) - n
        return {"work": [0.5 if (start + i) % 2 else 1.5 for i in range(n)]}

    (result,) = results(run_ranks(1, lambda comm: repeat(comm, block, 100.0, 0.025)))
    assert result.stopped_by == "budget"
    assert sum(counts) == 100
    assert counts == [1, 2, 8, 16, 32, 41]


def test_noise_that_a_median_settles_stops_at_its_interval(clock: Clock) -> None:
    """2% uniform noise: the interval gets within 1% before the budget, and not at once."""
    noise = random.Random(2)
    result = alone(clock, lambda: 1.0 + 0.04 * (noise.random() - 0.5), budget_s=1e6, target=0.004)
    assert result.stopped_by == "interval"
    assert 0 < result.half_width <= 0.004
    assert len(result.seconds("work")) > MIN_REPETITIONS


def test_no_budget_still_gives_an_interval(clock: Clock) -> None:
    noise = random.Random(3)
    result = alone(clock, lambda: noise.uniform(1.0, 3.0), budget_s=0.0)
    assert result.stopped_by == "budget"
    assert result.warmup == 1 and len(result.seconds("work")) == FEWEST_REPETITIONS
    assert result.half_width < float("inf")  # six values are the fewest with a 95% interval


def test_no_case_has_more_than_the_most_repetitions(clock: Clock) -> None:
    noise = random.Random(4)
    result = alone(clock, lambda: noise.uniform(1e-6, 3e-6), budget_s=1e6, target=1e-9)
    assert result.stopped_by == "budget"
    assert len(result.ranks["work"]) == MAX_REPETITIONS


def test_warm_up_is_kept_and_marked(clock: Clock) -> None:
    """First calls of 100, 99, 98 s do not count, and are there to be seen."""
    times = iter([100.0, 99.0, 98.0])
    result = alone(clock, lambda: next(times, 1.0), budget_s=1e6)
    assert result.warmup == WARMUP_REPETITIONS == 3
    assert [row[0] for row in result.ranks["work"][:3]] == [100.0, 99.0, 98.0]
    assert result.seconds("work") == [1.0] * MIN_REPETITIONS
    assert result.stopped_by == "interval"


def on_ranks(
    size: int, seconds: Callable[[int, int], Mapping[str, float | None]], **limits: Any
) -> tuple[list[Repetitions], list[list[int]]]:
    """Repeat where rank r takes `seconds(r, i)` in repetition i; and the blocks of every rank."""
    blocks: list[list[int]] = [[] for _ in range(size)]

    def program(comm: Any) -> Repetitions:
        def block(n: int) -> dict[str, Sequence[float | None]]:
            start = sum(blocks[comm.rank])
            blocks[comm.rank].append(n)
            rows = [seconds(comm.rank, start + i) for i in range(n)]
            return {name: [row[name] for row in rows] for name in rows[0]}

        return repeat(comm, block, **limits)

    return results(run_ranks(size, program)), blocks


def test_a_repetition_takes_as_long_as_its_slowest_rank() -> None:
    def seconds(rank: int, i: int) -> dict[str, float]:
        return {"work": 2.0 + i if rank == i % 3 else 1.0}

    (first, *others), _ = on_ranks(3, seconds, budget_s=0.0, target=1e-9)
    assert first.seconds("work") == [2.0 + i for i in range(1, 7)]
    assert first.ranks["work"][4] == [1.0, 6.0, 1.0]
    assert all(other.ranks == first.ranks for other in others)


def test_noise_of_any_rank_keeps_all_going(clock: Clock) -> None:
    """Rank 0 is constant; the maximum with rank 1 is not. Rank 1 has no budget left: no matter."""
    noise = random.Random(5)

    def seconds(rank: int, _: int) -> dict[str, float]:
        if rank == 0:
            clock.pass_(1.0)
            return {"work": 1.0}
        return {"work": noise.uniform(1.0, 3.0)}

    found, blocks = on_ranks(2, seconds, budget_s=40.0, target=0.01)
    assert [result.stopped_by for result in found] == ["budget", "budget"]
    assert blocks[0] == blocks[1] and sum(blocks[0]) > WARMUP_REPETITIONS + MIN_REPETITIONS


def test_every_operation_must_be_sure(clock: Clock) -> None:
    noise = random.Random(6)

    def seconds(rank: int, _: int) -> dict[str, float]:
        clock.pass_(1.0)
        return {"still": 1.0, "noisy": noise.uniform(1.0, 3.0)}

    (result,), _ = on_ranks(1, seconds, budget_s=40.0, target=0.01)
    assert result.stopped_by == "budget" and len(result.ranks["still"]) == 40


def test_a_rank_that_does_not_time_gives_none() -> None:
    def seconds(rank: int, i: int) -> dict[str, float | None]:
        return {"p2p": 1.0 + i if rank == 1 else None}

    found, _ = on_ranks(3, seconds, budget_s=0.0, target=1e-9)
    for result in found:
        assert result.ranks["p2p"] == [[1.0 + i] for i in range(7)]


def test_ranks_that_disagree_on_the_number_of_repetitions_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="zip"):
        merge_ranks([{"work": [1.0, 2.0]}, {"work": [1.0]}])


def test_threads_have_their_own_affinity() -> None:
    """What the helper promises, so that tests of pinning do not slow the tests after them."""
    import os

    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system has no affinity")
    before = os.sched_getaffinity(0)
    one = min(before)
    results(run_ranks(1, lambda _: os.sched_setaffinity(0, [one])))
    assert os.sched_getaffinity(0) == before
