"""From repetitions to an Estimate: examples that were worked out by hand."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t as student
from tests.helpers.rows import as_samples, sample

from calib.fitting.estimate import across_launches, slowest_rank, together
from calib.fitting.launches import factor_of
from calib.foundation.statistics import serial_interval
from calib.microbench.records.samples import Sample


def rows(*rank_seconds: list[float], launch: int = 0) -> list[Sample]:
    return [
        sample(repetition=i, seconds=max(row), rank_seconds=row, launch=launch)
        for i, row in enumerate(rank_seconds)
    ]


def numbered(*launches: list[float]) -> dict[int, list[float]]:
    return dict(enumerate(launches))


def test_one_launch_has_the_interval_of_its_median() -> None:
    """Of independent values in 95%, and of values that drift wider; of fewer than six all."""
    dice = random.Random(3)
    values = [dice.lognormvariate(0.0, 0.1) for _ in range(40)]
    found = across_launches({0: values})
    assert (found.low, found.high) == serial_interval(values)
    drifting = across_launches({0: sorted(values)})
    assert (drifting.low, drifting.high) == (min(values), max(values))
    few = across_launches({0: [2.0, 1.0, 4.0]})
    assert (few.value, few.low, few.high) == (2.0, 1.0, 4.0)


def test_two_launches_by_student_t_on_logs() -> None:
    """Medians of 1 and 1.02: their geometric mean, and t of one degree of freedom, 12.7."""
    found = across_launches(numbered([1.0] * 6, [1.02] * 60))
    factor = math.exp(student.ppf(0.975, 1) * 0.5 * math.log(1.02))
    assert found.value == pytest.approx(math.sqrt(1.02))
    assert found.high == pytest.approx(found.value * factor)
    assert found.low == pytest.approx(found.value / factor)
    assert across_launches({5: [1.02] * 6, 9: [1.0] * 6}) == found, "whatever their numbers"


def test_a_wide_factor_grows_as_its_margin() -> None:
    """e to the margin up to a margin of 1, and on from there along the tangent."""
    assert factor_of(0.3) == math.exp(0.3)
    assert factor_of(1.0) == pytest.approx(math.e)
    assert factor_of(10.0) == pytest.approx(10 * math.e)


def test_a_launch_that_another_program_disturbed_hardly_counts() -> None:
    """Five launches at 1 +- 1% and one at 50. Of five launches none is held."""
    five = [[1.0 + (i - 2) / 200] * 6 for i in range(5)]
    found = across_launches(numbered(*five, [50.0] * 6))
    assert found.value == pytest.approx(1.0, abs=0.01)
    assert found.high < 1.04
    assert across_launches(numbered(*five[:4], [50.0] * 6)).high > 10.0


def test_a_disturbed_repetition_is_no_end() -> None:
    """One of six repetitions in one of six launches took ten times as long."""
    dice = np.random.default_rng(5)
    launches = [dice.normal(1.0, 0.02, 6).tolist() for _ in range(6)]
    launches[4][-1] = 10.0
    found = across_launches(numbered(*launches))
    assert 0.95 < found.low < found.value < found.high < 1.05


def test_slowest_rank_is_a_rank_and_together_the_maximum() -> None:
    """Ranks that take turns at being late: each takes 2 s in the middle, together always 3 s."""
    turns = rows(*[[1.0, 3.0], [3.0, 1.0]] * 4)
    assert slowest_rank(as_samples(turns)).value == 2.0
    assert together(as_samples(turns)).value == 3.0


def test_slowest_rank_has_the_interval_of_that_rank() -> None:
    """Rank 1 is slower by its median, although rank 0 has the longest repetition."""
    two = rows(*[[1.0, 2.0 + i / 10] for i in (3, 0, 4, 1, 2)], [50.0, 2.5])
    found = slowest_rank(as_samples(two))
    assert found.value == pytest.approx(2.25)
    assert (found.low, found.high) == (2.0, 2.5)


def test_slowest_rank_spans_its_launches() -> None:
    launches = rows(*[[1.0, 4.0]] * 6) + rows(*[[1.0, 4.1]] * 6, launch=1)
    found = slowest_rank(as_samples(launches))
    assert found == across_launches(numbered([4.0] * 6, [4.1] * 6))


def test_no_interval_is_narrower_than_the_clock() -> None:
    """Events in steps of 0.5 over one call: equal readings are known to half a unit each way."""
    steps = across_launches({0: [5.0] * 9}, 0.5)
    assert (steps.low, steps.high) == (4.5, 5.5)
    wide = numbered([4.0, 5.0, 6.0] * 4, [5.0] * 9)
    assert across_launches(wide, 0.5) == across_launches(wide), "it widens what is narrower alone"
    coarse = [replace(row, resolution_s=0.5) for row in rows(*[[5.0, 4.0]] * 9)]
    for found in (together(as_samples(coarse)), slowest_rank(as_samples(coarse))):
        assert (found.value, found.low, found.high) == (5.0, 4.5, 5.5)


def test_a_time_below_the_clock_has_no_log() -> None:
    found = across_launches(numbered([0.0] * 6, [0.0] * 6, [1.0] * 6), 0.5)
    assert (found.value, found.low, found.high) == (0.0, 0.0, 1.0)
    assert across_launches({0: [0.0] * 6}).value == 0.0


def test_order_does_not_matter() -> None:
    generator = random.Random(1)
    samples = [
        row
        for launch in range(3)
        for row in rows(
            *[[generator.random(), generator.random()] for _ in range(9)], launch=launch
        )
    ]
    before = together(as_samples(samples)), slowest_rank(as_samples(samples))
    generator.shuffle(samples)
    assert (together(as_samples(samples)), slowest_rank(as_samples(samples))) == before


@pytest.mark.parametrize("launches", [2, 3, 4, 5, 6])
def test_the_interval_covers_when_launches_differ(launches: int) -> None:
    """Launches 5% apart (lognormal), repetitions hardly: 1,000 seeded draws, 95% +- 4 sigma."""
    dice = np.random.default_rng(launches)
    held = 0
    for _ in range(1000):
        medians = np.exp(dice.normal(0.0, 0.05, launches)).tolist()
        found = across_launches(numbered(*[[median] for median in medians]))
        held += found.low <= 1.0 <= found.high
    assert held / 1000 == pytest.approx(0.95, abs=4 * (0.95 * 0.05 / 1000) ** 0.5)


@pytest.mark.parametrize("values", [3, 5, 12])
def test_intervals_of_few_values_hold(values: int) -> None:
    """The median of all launches, of levels 10% apart and values 20% apart: in 95% of 500."""
    dice = np.random.default_rng(values)
    held = 0
    for _ in range(500):
        levels = np.exp(dice.normal(0.0, 0.1, 6))
        drawn = levels[:, None] * np.exp(dice.normal(0.0, 0.2, (6, values)))
        found = across_launches(numbered(*drawn.tolist()))
        held += found.low <= 1.0 <= found.high
    assert held >= 500 * 0.93
