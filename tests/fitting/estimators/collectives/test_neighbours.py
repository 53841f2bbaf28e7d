"""What neighbours say: sizes left out, and outliers at the ends and inside."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calib.fitting.estimators.collectives.neighbours import between_neighbours, slow_outliers

SIZES = 2.0 ** np.arange(10)
TIMES = 1e-6 + 1e-9 * SIZES


@given(factor=st.floats(1e-9, 1e-3), power=st.floats(-1, 2))
def test_neighbours_are_exact_on_power_laws(factor: float, power: float) -> None:
    seconds = factor * SIZES**power
    assert between_neighbours(SIZES, seconds) == pytest.approx(seconds[1:-1], rel=1e-9)


def test_between_neighbours_by_hand() -> None:
    """Between 1 and 100 lies 10 (the geometric mean of sizes): sqrt(1 * 4) = 2."""
    assert between_neighbours(np.array([1.0, 10, 100]), np.array([1.0, 3, 4])) == pytest.approx([2])


def test_outliers_at_the_ends_and_inside() -> None:
    for index in range(10):
        planted = TIMES.copy()
        planted[index] *= 20
        assert np.flatnonzero(slow_outliers(SIZES, planted)).tolist() == [index]


def test_steps_are_none() -> None:
    assert not slow_outliers(SIZES, TIMES).any()
    assert not slow_outliers(SIZES, np.where(SIZES < 32, TIMES, 20 * TIMES)).any()
    assert not slow_outliers(SIZES, np.where(SIZES < 32, 10 * TIMES, TIMES)).any()
    assert not slow_outliers(SIZES[:4], TIMES[:4] * [1, 50, 1, 1]).any()  # too few sizes to tell


def test_where_all_sizes_are_as_noisy_none_is_an_outlier() -> None:
    """A spike of 20, and a size 6 times too fast: nothing says which of them is right."""
    planted = TIMES * np.where(SIZES == 8, 20, 1) / np.where(SIZES == 128, 6, 1)
    assert not slow_outliers(SIZES, planted).any()
