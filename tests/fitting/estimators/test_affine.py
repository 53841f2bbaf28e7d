"""What is special to laws with prices that cannot be negative."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import lsq_linear
from tests.fitting.estimators.examples.affine import EXAMPLES, X

from calib.fitting.estimators.affine import AffineInBytes, widened_factor
from calib.fitting.regression import MIN_ROWS, UNCHECKED_FACTOR, relative_nnls

TRUE = EXAMPLES[0].seconds


def repeated(seed: int, launches: int = 1, repetitions: int = 15) -> tuple[np.ndarray, ...]:
    """X, y and launch of rows with 3% noise."""
    generator = np.random.default_rng(seed)
    times = launches * repetitions
    y = np.repeat(TRUE, times) * (1 + 0.03 * generator.standard_normal(len(TRUE) * times))
    launch = np.tile(np.repeat(np.arange(launches), repetitions), len(TRUE))
    return np.repeat(X, times, axis=0), y, launch


@pytest.mark.parametrize("seed", range(5))
def test_the_law_is_that_of_the_medians_by_bounded_least_squares(seed: int) -> None:
    """Independent: medians by hand, SciPy's bounded least squares on relative residuals."""
    x, y, _ = repeated(seed)
    law = AffineInBytes().fit(x, y)
    middle = np.median(y.reshape(len(X), -1), axis=1)
    design = np.column_stack([np.ones(len(X)), X]) / middle[:, None]
    scale = design.max(axis=0)
    expected = lsq_linear(design / scale, np.ones(len(X)), (0, np.inf), "bvls", 1e-14).x / scale
    assert law.coefficients_ == pytest.approx(expected, rel=1e-6)
    predicted = np.column_stack([np.ones(len(X)), X]) @ expected
    assert law.error_ == pytest.approx(np.mean(np.abs(predicted / middle - 1)), rel=1e-6)
    assert law.held_out_error_ > law.error_


def test_weights_count_relative_to_one_another() -> None:
    """Two times of one x: the constant c that is least in w1 (c/1 - 1)^2 + w2 (c/2 - 1)^2."""
    design, seconds = np.ones((2, 1)), np.array([1.0, 2.0])
    for w in ([1.0, 1.0], [3.0, 1.0], [30.0, 10.0]):
        (c,) = relative_nnls(design, seconds, np.array(w))
        assert c == pytest.approx((w[0] + w[1] / 2) / (w[0] + w[1] / 4))


def test_intervals_cover_the_prices() -> None:
    """Seeded: 95% intervals of 3 prices in 100 samples of one launch; 5 sigma of a binomial."""
    covered = 0
    for seed in range(100):
        x, y, _ = repeated(seed)
        law = AffineInBytes(seed=seed).fit(x, y)
        truth = np.array([*EXAMPLES[0].truth.values()])
        covered += int(((law.low_ <= truth) & (truth <= law.high_)).sum())
    assert 0.95 * 300 - 5 * np.sqrt(300 * 0.95 * 0.05) <= covered


def test_launches_that_differ_widen_the_interval() -> None:
    x, y, launch = repeated(0, launches=2)
    one = AffineInBytes().fit(x, y)
    apart = AffineInBytes().fit(x, np.where(launch == 1, 1.3, 1.0) * y, groups=launch)
    assert (apart.high_[2] - apart.low_[2]) > 5 * (one.high_[2] - one.low_[2])
    low, high = apart.predict_interval(X)
    assert (low <= TRUE).all() and (high >= 1.3 * TRUE).all()


def test_few_points_are_checked_on_nothing() -> None:
    law = AffineInBytes().fit(X[: MIN_ROWS - 1], TRUE[: MIN_ROWS - 1])
    assert law.error_factor_ == UNCHECKED_FACTOR
    assert AffineInBytes().fit(X, TRUE).error_factor_ == pytest.approx(1.0)
    one = AffineInBytes().fit(X[:1], TRUE[:1])
    assert np.isnan(one.held_out_error_) and one.predict(X[:1]) == pytest.approx(TRUE[:1])


def test_single_times_are_moved_by_the_residuals_of_all() -> None:
    """Without repetitions the bootstrap of medians alone would be sure of everything."""
    generator = np.random.default_rng(0)
    law = AffineInBytes().fit(X, TRUE * (1 + 0.05 * generator.standard_normal(len(TRUE))))
    assert (law.high_ > law.low_).all()
    assert law.low_[2] <= 0.25e-9 <= law.high_[2]


def test_single_times_cover_the_prices() -> None:
    """Seeded, without repetitions: 95% of 100 samples, three prices each."""
    truth, held = np.array([*EXAMPLES[0].truth.values()]), []
    for seed in range(100):
        noise = 0.02 * np.random.default_rng(seed).standard_normal(len(TRUE))
        law = AffineInBytes(seed=seed).fit(X, TRUE * (1 + noise))
        held.append((law.low_ <= truth) & (truth <= law.high_))
    assert 0.92 <= np.mean(held) <= 0.985


@pytest.mark.parametrize(
    ("sizes", "powers"),
    [
        (np.geomspace(1, 1e10, 5), (0.25, 0.33, 0.75, 1.0)),
        (np.geomspace(1, 1e10, 5), (0.5, 0.67, 1.0, 1.5)),
    ],
)
def test_columns_of_many_decades_are_solved(sizes: np.ndarray, powers: tuple[float, ...]) -> None:
    """One time for all sizes is the first column alone. (SciPy turns in circles on columns as they
    are, and gives up; so it does on noisy times and columns that are less alike.)"""
    design = np.column_stack([np.ones(5), *(sizes**power for power in powers)])
    found = relative_nnls(design, np.full(5, 1e-6))
    assert found == pytest.approx([1e-6, 0, 0, 0, 0], rel=1e-6, abs=1e-15)


def test_a_decade_outside_costs_a_factor_more() -> None:
    limits = np.array([[1.0], [100.0]])
    x = np.array([[1.0], [50.0], [100.0], [1000.0], [10_000.0], [0.1]])
    assert widened_factor(1.5, x, limits) == pytest.approx([1.5, 1.5, 1.5, 1.5**2, 1.5**3, 1.5**2])
    # a perfect law is not trusted outside either, and a bad one is not infinitely bad
    assert widened_factor(1.0, x, limits)[3] == pytest.approx(1.1**2)
    assert widened_factor(10.0, x, limits)[4] == pytest.approx(10.0 * 2**2)
