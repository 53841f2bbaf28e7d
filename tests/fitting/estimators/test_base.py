"""The floor of all estimators: medians, the bootstrap's middle, intervals, what is refused."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from scipy.stats import t as student
from sklearn.exceptions import NotFittedError

from calib.fitting.estimators.base import (
    Estimator,
    ExtrapolationWarning,
    checked,
    interval,
    launch_medians,
    medians,
    resampled_medians,
)
from calib.fitting.estimators.draws import MOST_INFLATION, inflation
from calib.foundation.errors import InputError
from calib.foundation.statistics import median_of_groups


class Constant(Estimator):
    """The smallest estimator: one time for all."""

    def _fit(self, rows):
        self.seconds_ = float(np.median(rows.seconds))

    def _seconds(self, x):
        return np.full(len(x), self.seconds_)

    def _interval(self, x):
        return self._seconds(x), self._seconds(x)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.floats(1e-9, 1e3), st.integers(0, 2)), min_size=1),
    st.randoms(use_true_random=False),
)
def test_medians_are_those_of_launches_that_weigh_alike_in_any_order(rows: list, random) -> None:
    random.shuffle(rows)
    x, y, launch = (np.array(column) for column in zip(*rows, strict=True))
    table = checked(x, y, groups=launch)
    found, weight = medians(table)
    by_launch = launch_medians(table)
    for k, (point,) in enumerate(table.points):
        launches = [y[(x == point) & (launch == number)].tolist() for number in np.unique(launch)]
        alike = median_of_groups([times for times in launches if times])
        assert found[k] == pytest.approx(alike, rel=1e-12)
        assert weight[k] == (x == point).sum()
        for row, number in enumerate(np.unique(launch)):
            mine = y[(x == point) & (launch == number)]
            if len(mine):
                assert by_launch[row, k] == pytest.approx(np.median(mine), rel=1e-12)
            else:
                assert np.isnan(by_launch[row, k])


def test_a_weighted_median_is_where_half_the_weight_is() -> None:
    table = checked([1, 1, 1, 2], [1.0, 2.0, 3.0, 5.0], sample_weight=[1.0, 1.0, 5.0, 2.0])
    found, weight = medians(table)
    assert found.tolist() == [3.0, 5.0] and weight.tolist() == [7.0, 2.0]


@pytest.mark.parametrize("n", [1, 2, 5, 20, 21])
def test_the_middle_of_a_bootstrap_sample_is_drawn_as_by_drawing_all_of_it(n: int) -> None:
    """Independent: samples drawn whole. Quantiles of the medians of both, of 20,000 samples."""
    y = np.sort(np.random.default_rng(n).exponential(1.0, n)) + 1.0
    ours = resampled_medians(checked(np.ones(n), y), seed=0, n=20_000)[:, 0]
    whole = np.median(np.random.default_rng(1).choice(y, size=(20_000, n)), axis=1)
    levels = [0.05, 0.3, 0.5, 0.7, 0.95]  # none at a step of few values
    spread = max(y.max() - y.min(), 1e-9)
    expected, found = np.quantile(whole, levels), np.quantile(ours, levels)
    assert np.abs(found - expected).max() <= 0.03 * spread


@pytest.mark.parametrize("n", [5, 20])
def test_the_bootstrap_heeds_weights(n: int) -> None:
    """Independent: samples drawn whole, each value as often as its weight says, and their medians."""
    generator = np.random.default_rng(n)
    y, weight = np.sort(generator.exponential(1.0, n)), generator.integers(1, 6, n)
    ours = resampled_medians(checked(np.ones(n), y, weight), seed=0, n=4000)[:, 0]
    drawn = generator.integers(0, n, (4000, n))
    whole = [np.median(np.repeat(y[row], weight[row])) for row in drawn]
    shares = [[np.mean(np.asarray(draws) <= at) for at in y] for draws in (ours, whole)]
    assert shares[0] == pytest.approx(shares[1], abs=0.035)  # 3 standard errors


def test_a_heavy_half_is_the_median_of_all_draws_and_of_each_launch() -> None:
    y, launch = np.repeat([1.0, 2.0], 100), np.tile([0, 1], 100)
    weight = np.where(y == 1.0, 10.0, 1.0)
    table = checked(np.ones(200), y, weight, launch)
    assert medians(table)[0].tolist() == [1.0]
    assert (resampled_medians(table, seed=0) == 1.0).all()
    assert launch_medians(table).tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize("light", [1.0, 0.999])  # of equal weights only the middle is drawn
def test_launches_weigh_alike_in_the_draws(light: float) -> None:
    """200 times of 1 s, 20 of 3 s: of samples with both launches (1 in 2), half have either median."""
    y, launch = np.repeat([1.0, 3.0], [200, 20]), np.repeat([0, 1], [200, 20])
    weight = np.where(np.arange(220) % 2, light, 1.0)
    table = checked(np.ones(220), y, weight, launch)
    draws = resampled_medians(table, seed=0, n=4000)[:, 0]
    assert np.mean(draws == 3.0) > 0.4


def test_the_bootstrap_draws_launches_whole() -> None:
    """Two launches that never vary: a sample is one, the other, or both, in 1/4, 1/4 and 1/2."""
    x, y, launch = np.ones(40), np.repeat([1.0, 3.0], 20), np.repeat([0, 1], 20)
    draws = resampled_medians(checked(x, y, groups=launch), seed=0, n=4000)[:, 0]
    assert np.mean(draws == 1.0) == pytest.approx(np.mean(draws == 3.0), abs=0.06)
    assert 0.25 <= np.mean(draws == 1.0) <= 0.52
    one = resampled_medians(checked(x, np.repeat(2.0, 40), groups=launch), seed=0, n=50)
    assert (one == 2.0).all()


def test_a_size_that_the_drawn_launches_lack_comes_from_those_that_have_it() -> None:
    table = checked([1, 1, 2], [1.0, 1.1, 7.0], groups=[0, 1, 1])
    draws = resampled_medians(table, seed=0, n=100)
    assert (draws[:, 1] == 7.0).all()


def test_an_interval_holds_the_value_and_the_launches() -> None:
    draws = np.linspace(9.0, 11.0, 1001)
    assert interval(10.0, draws) == pytest.approx((9.05, 10.95))
    assert interval(12.0, draws) == pytest.approx((9.05, 12.0))
    low, high = interval(10.0, draws, [9.0, 10.0, 11.0])
    margin = student.ppf(0.975, 2) * 1.0 / np.sqrt(3)
    assert (low, high) == pytest.approx((10.0 - margin, 10.0 + margin))
    assert interval(10.0, [10.0] * 9, np.linspace(9.0, 11.0, 40)) == pytest.approx(
        (10 - 0.1919, 10 + 0.1919), abs=1e-3
    )
    assert interval(1.0, draws / 10, [0.5, 1.5])[0] == 0.0  # a time is not negative


def test_residuals_of_few_points_are_drawn_wider() -> None:
    """Independent: SciPy's t and normal; by n / (n - k) in the square, and as Student has it."""
    upper = 0.975
    for n, k in ((8, 3), (100, 3), (24, 8)):
        wider = student.ppf(upper, n - k) / norm.ppf(upper)
        assert inflation(n, k) == pytest.approx(np.sqrt(n / (n - k)) * wider)
    assert inflation(4, 3) == inflation(4, 9) == 2 * MOST_INFLATION


def test_residual_quantiles_are_of_the_relative_residual() -> None:
    law = Constant().fit(np.ones(201), np.linspace(0.9, 1.1, 201))
    assert law.residual_quantiles_ == pytest.approx([-0.09, -0.05, 0.0, 0.05, 0.09])


def test_rows_are_sorted_and_counted() -> None:
    table = checked([[2, 1], [1, 5], [2, 1]], [3.0, 1.0, 2.0])
    assert table.points.tolist() == [[1, 5], [2, 1]]
    assert table.seconds.tolist() == [1.0, 2.0, 3.0] and table.point.tolist() == [0, 1, 1]
    assert table.repeated and not checked([1, 2], [1.0, 2.0]).repeated


@pytest.mark.parametrize(
    ("x", "y", "options", "reason"),
    [
        ([], [], {}, "0"),
        ([1, 2], [1.0], {}, "times for features"),
        ([1, np.nan], [1.0, 1.0], {}, "NaN"),
        ([1, 2], [1.0, np.inf], {}, "NaN or infinite"),
        ([1, 2], [1.0, 0.0], {}, "not positive"),
        ([1, -2], [1.0, 1.0], {}, "negative"),
        ([1, 2], [1.0, 1.0], {"sample_weight": [1.0]}, "as many weights"),
        ([1, 2], [1.0, 1.0], {"sample_weight": [1.0, 0.0]}, "weight"),
        ([1, 2], [1.0, 1.0], {"groups": [1]}, "as many weights and groups"),
    ],
)
def test_what_is_refused(x, y, options, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        checked(x, y, **options)


def test_predicting() -> None:
    model = Constant().fit([1, 2, 3], [1.0, 2.0, 4.0])
    assert model.n_ == 3 and model.range_.tolist() == [[1], [3]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.predict([1, 3]).tolist() == [2.0, 2.0]
    with pytest.warns(ExtrapolationWarning, match="Constant: 2 of 3 predictions"):
        model.predict([[0.5], [2], [9]])
    with pytest.raises(InputError, match="fitted on 1"):
        model.predict([[1, 2]])
    with pytest.raises(InputError, match="NaN"):
        model.predict([np.nan])
    with pytest.raises(NotFittedError):
        Constant().predict([1])
