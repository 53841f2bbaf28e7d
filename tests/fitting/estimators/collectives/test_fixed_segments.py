"""Trimming by blocks and lines between given breakpoints, against NumPy's own."""

from __future__ import annotations

import numpy as np
import pytest
from tests.fitting.estimators.examples.fixed_segments import BREAKPOINTS, EXAMPLES, INTERCEPTS, X

from calib.fitting.estimators.collectives.fixed_segments import (
    FixedSegments,
    trimmed_mean,
    within_quantiles,
)
from calib.foundation.errors import InputError

TRUE = EXAMPLES[0].seconds


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("size", [3, 4, 10, 11, 21])
def test_trimming_is_that_of_numpy_quantiles(seed: int, size: int) -> None:
    generator = np.random.default_rng(seed)
    seconds = np.round(generator.uniform(1, 2, 6 * size), 1)  # many ties
    block = np.arange(len(seconds)) // size
    kept = within_quantiles(seconds, block, 0.1)
    for number in range(6):
        mine = seconds[block == number]
        low, high = np.quantile(mine, [0.1, 0.9])
        inside = (mine >= low - 1e-12) & (mine <= high + 1e-12)
        assert (kept[block == number] == inside).all()


def test_a_block_of_ten_loses_its_ends() -> None:
    seconds = np.array([5.0, 1, 2, 3, 4, 6, 7, 8, 9, 10])
    assert seconds[~within_quantiles(seconds, np.zeros(10), 0.1)].tolist() == [1, 10]
    assert within_quantiles(np.full(10, 3.0), np.zeros(10), 0.1).all(), "ties stay"
    assert within_quantiles(np.array([1.0, 2.0]), np.zeros(2), 0.1).all(), "nothing would be left"


def test_a_trimmed_mean_drops_whole_values() -> None:
    """R: mean(x, trim = 0.1) of 19 values drops one at each end."""
    values = np.array([100.0, *range(1, 18), -100.0])
    assert trimmed_mean(values, 0.1) == 9.0
    assert trimmed_mean(np.array([1.0, 2.0, 9.0]), 0.1) == 4.0


@pytest.mark.parametrize("seed", range(3))
def test_lines_are_those_of_polyfit_on_each_piece(seed: int) -> None:
    """A limit belongs to the segment above it."""
    generator = np.random.default_rng(seed)
    x = np.repeat(X[:, 0], 12)
    y = np.repeat(TRUE, 12) * (1 + 0.05 * generator.standard_normal(len(x)))
    law = FixedSegments(BREAKPOINTS, trim=0.0).fit(x, y)
    for index, (low, high) in enumerate([(0, 1420), (1420, 65536), (65536, np.inf)]):
        mine = (x >= low) & (x < high)
        slope, intercept = np.polyfit(x[mine], y[mine], 1)
        assert law.slopes_[index] == pytest.approx(slope, rel=1e-6)
        assert law.intercepts_[index] == pytest.approx(intercept, rel=1e-6)


def test_an_outlier_in_ten_does_not_count() -> None:
    x, y = np.repeat(X[:, 0], 10), np.repeat(TRUE, 10)
    y[::10] *= 30
    assert FixedSegments(BREAKPOINTS).fit(x, y).intercepts_ == pytest.approx(INTERCEPTS)
    assert FixedSegments(BREAKPOINTS, trim=0.0).fit(x, y).intercepts_[0] > 2 * INTERCEPTS[0]


def test_intervals_hold_intercepts_below_zero() -> None:
    """Ordinary least squares may be negative at 0 B, where no message was."""
    x = np.repeat([1e5, 2e5, 4e5], 9)
    generator = np.random.default_rng(0)
    y = (x * 1e-9 - 5e-5) * (1 + 0.02 * generator.standard_normal(len(x)))
    law = FixedSegments(()).fit(x, y)
    assert law.intercepts_[0] < 0
    assert law.intercept_intervals_[0, 0] <= law.intercepts_[0] <= law.intercept_intervals_[0, 1]
    assert law.intercept_intervals_[0, 0] <= -5e-5 <= law.intercept_intervals_[0, 1]


def test_segments_that_cannot_be() -> None:
    with pytest.raises(InputError, match=r"fewer than two sizes in the segment \[5000000, inf\)"):
        FixedSegments((1420, 5_000_000)).fit(X, TRUE)
    for breakpoints, trim in (((2.0, 1.0), 0.1), ((1.0, 1.0), 0.1), ((1.0,), 0.5)):
        with pytest.raises(InputError, match="rising breakpoints, trim below"):
            FixedSegments(breakpoints, trim=trim).fit(X, TRUE)
