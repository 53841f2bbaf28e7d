"""From repetitions to an Estimate: examples that were worked out by hand."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import beta
from tests.helpers.rows import as_samples, sample

from calib.fitting.estimate import hull, slowest_rank, together
from calib.foundation.statistics import median_interval
from calib.microbench.records.samples import Sample


def rows(*rank_seconds: list[float], launch: int = 0) -> list[Sample]:
    return [
        sample(repetition=i, seconds=max(row), rank_seconds=row, launch=launch)
        for i, row in enumerate(rank_seconds)
    ]


def test_hull_spans_the_intervals_of_the_launches() -> None:
    """Six values: an interval is all of them, and of six launches what all 36 say of a median of six.

    The pooled median is that of all twelve.

    Two launches whose medians are 10 apart cover at 95% only within 6.353 * 10 (Lord 1947).
    """
    one, two = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [11.0, 12.0, 13.0, 14.0, 15.0, 16.0]
    found = hull([one, two])
    assert (found.value, found.low, found.high) == pytest.approx((8.5, 0.0, 8.5 + 63.53))
    three = hull([one, one, [v + 1 for v in one]])
    assert (three.value, three.high) == pytest.approx((4.0, 7.0)) and three.low == 1.0
    launches = [[v + i / 10 for v in one] for i in range(6)]
    many = hull(launches)
    off = [v / (3.5 + i / 10) for i, launch in enumerate(launches) for v in launch]
    low, high = np.quantile(off, beta.ppf([0.025, 0.975], 3.5, 3.5))
    assert (many.low, many.high) == pytest.approx((3.5 * low, 4.0 * high))
    long = [launch * 5 for launch in launches]
    assert (hull(long).low, hull(long).high) == (2.0, 5.5), (
        "of many values each launch says its own"
    )
    assert hull([two, one]) == found
    assert hull([one, [], two]) == found


def test_a_launch_that_another_program_disturbed_does_not_count() -> None:
    """Five launches at 1 +- 1% and one at 50: those five, with Lord's margin. Two are the machine."""
    five = [[1.0 + (i - 2) / 200] * 6 for i in range(5)]
    found = hull([*five, [50.0] * 6])
    assert found == hull(five)
    assert found.high == pytest.approx(1.0 + 0.507 * 0.02)
    assert hull([*five, [50.0] * 6, [40.0] * 6]).high == 50.0
    assert hull([*five[:4], [50.0] * 6]).high == 50.0, "of five launches none is spared"


def test_hull_is_no_narrower_than_any_launch() -> None:
    generator = random.Random(0)
    launches = [[generator.lognormvariate(0, 0.5) for _ in range(30)] for _ in range(3)]
    found = hull(launches)
    intervals = [median_interval(launch) for launch in launches]
    assert found.low == min(low for low, _ in intervals)
    assert found.high == max(high for _, high in intervals)
    assert found.low <= found.value <= found.high


def test_hull_of_a_long_and_a_short_launch_holds_its_value() -> None:
    """Both weigh alike, however often each repeated; the interval reaches both."""
    found = hull([[1.0] * 60, [2.0] * 8])
    assert (found.value, found.low, found.high) == pytest.approx((1.5, 0.0, 1.5 + 6.353))


def test_slowest_rank_is_a_rank_and_together_the_maximum() -> None:
    """Ranks that take turns at being late: each takes 2 s in the middle, together always 3 s."""
    turns = rows(*[[1.0, 3.0], [3.0, 1.0]] * 4)
    assert slowest_rank(as_samples(turns)).value == 2.0
    assert together(as_samples(turns)).value == 3.0


def test_slowest_rank_has_the_interval_of_that_rank() -> None:
    """Rank 1 is slower by its median, although rank 0 has the longest repetition."""
    two = rows(*[[1.0, 2.0 + i / 10] for i in range(5)], [50.0, 2.5])
    found = slowest_rank(as_samples(two))
    assert found.value == pytest.approx(2.25)
    assert (found.low, found.high) == (2.0, 2.5)


def test_slowest_rank_spans_its_launches() -> None:
    launches = rows(*[[1.0, 4.0]] * 6) + rows(*[[1.0, 6.0]] * 6, launch=1)
    found = slowest_rank(as_samples(launches))
    assert (found.value, found.low, found.high) == pytest.approx((5.0, 0.0, 5.0 + 2 * 6.353))


def test_no_interval_is_narrower_than_the_clock() -> None:
    """Events in steps of 0.5 over one call: equal readings are known to half a unit each way."""
    assert (hull([[5.0] * 9], 0.5).low, hull([[5.0] * 9], 0.5).high) == (4.5, 5.5)
    wide = hull([[4.0, 5.0, 6.0] * 4, [5.0] * 9], 0.5)
    assert wide == hull([[4.0, 5.0, 6.0] * 4, [5.0] * 9]), "it widens what is narrower alone"
    coarse = [replace(row, resolution_s=0.5) for row in rows(*[[5.0, 4.0]] * 9)]
    for found in (together(as_samples(coarse)), slowest_rank(as_samples(coarse))):
        assert (found.value, found.low, found.high) == (5.0, 4.5, 5.5)


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
    """Launches 5% apart (normal), repetitions hardly: 4,000 seeded draws, 95% +- 4 sigma or more."""
    generator = np.random.default_rng(launches)
    covered = 0
    for _ in range(4000):
        medians = generator.normal(1.0, 0.05, launches)
        found = hull([[float(m)] * 6 for m in medians])
        covered += found.low <= 1.0 <= found.high
    sigma = (0.95 * 0.05 / 4000) ** 0.5
    assert covered / 4000 > 0.95 - 4 * sigma
    assert covered / 4000 < 0.99


def test_a_disturbed_value_is_no_end_where_launches_have_few() -> None:
    """One of 30: nobody's median of five is there, as others are there for all launches."""
    dice = np.random.default_rng(5)
    launches = [sorted(dice.normal(1.0, 0.02, 5).tolist()) for _ in range(6)]
    launches[4][-1] = 10.0
    found = hull(launches)
    assert 0.9 < found.low < found.value < found.high < 1.1
    # where a fifth of all values are so, a median of five may be
    for launch in launches:
        launch[-1] = 10.0
    assert hull(launches).high > 2.0


@pytest.mark.parametrize("values", [3, 5, 12])
def test_intervals_of_few_values_hold(values: int) -> None:
    """The median of all launches, of levels 10% apart and values 20% apart: in 95% of 500."""
    dice = np.random.default_rng(values)
    held = 0
    for _ in range(500):
        levels = np.exp(dice.normal(0.0, 0.1, 6))
        drawn = levels[:, None] * np.exp(dice.normal(0.0, 0.2, (6, values)))
        found = hull(np.sort(drawn, axis=1).tolist())
        held += found.low <= 1.0 <= found.high
    assert held >= 500 * 0.95
