"""Order statistics against SciPy's binomial distribution, NumPy's quantiles and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import binom

from calib.foundation.statistics import (
    effective_number,
    median,
    median_interval,
    median_of_groups,
    median_ranks,
    quantile,
    serial_half_width,
    serial_interval,
    weighted_median,
)

values = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=60)


@given(values=values, q=st.floats(0, 1))
def test_quantile_is_that_of_numpy(values: list[float], q: float) -> None:
    assert quantile(values, q) == pytest.approx(float(np.quantile(values, q)), rel=1e-12)


@given(values=values)
def test_median_is_that_of_numpy(values: list[float]) -> None:
    assert median(values) == pytest.approx(float(np.median(values)), rel=1e-12)


def test_quantile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.5)


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_median_ranks_are_the_tightest_symmetric_pair_of_the_binomial(confidence: float) -> None:
    """scipy.stats.binom: the interval covers enough, and one rank further in it does not.

    The values under the median are Binomial(n, 1/2); the low rank is over the median when at most
    `low` of them are under it.
    """
    tail = (1 - confidence) / 2
    for n in [*range(1, 120), 500, 1999, 2000]:
        ranks = median_ranks(n, confidence)
        if ranks is None:
            assert binom.cdf(0, n, 0.5) > tail
            continue
        low, high = ranks
        assert high == n - 1 - low
        assert binom.cdf(low, n, 0.5) <= tail < binom.cdf(low + 1, n, 0.5), n


def test_the_smallest_number_of_values_with_a_95_percent_interval_is_six() -> None:
    """2 / 2^6 = 3.1% is the first under 5%."""
    assert [median_ranks(n, 0.95) for n in (0, 1, 5)] == [None] * 3
    assert median_ranks(6, 0.95) == (0, 5)
    # published table, Conover (1999), Practical Nonparametric Statistics: n = 20, ranks 6 and 15
    assert median_ranks(20, 0.95) == (5, 14)


@pytest.mark.parametrize("n", [6, 17, 60])
def test_interval_covers_the_median_as_often_as_the_binomial_says(n: int) -> None:
    """20,000 seeded exponential samples: a skewed distribution, as times have."""
    trials = 20_000
    draws = np.random.default_rng(n).exponential(size=(trials, n)).tolist()
    truth = math.log(2)
    hits = sum(low <= truth <= high for low, high in map(median_interval, draws))
    ranks = median_ranks(n, 0.95)
    assert ranks is not None
    exact = 1 - 2 * float(binom.cdf(ranks[0], n, 0.5))
    assert exact >= 0.95
    assert abs(hits / trials - exact) < 4 * math.sqrt(exact * (1 - exact) / trials)


def test_interval_of_few_values_is_all_of_them_and_has_no_width_to_stop_on() -> None:
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert serial_interval([1.0] * 5) is None and serial_interval([]) is None
    assert serial_half_width([1.0] * 5) == serial_half_width([]) == math.inf


def test_half_width_is_relative_to_the_median() -> None:
    """Six values: the interval is [1, 6], its half 2.5, the median 3.5."""
    assert serial_half_width([6.0, 1.0, 5.0, 2.0, 4.0, 3.0]) == pytest.approx(2.5 / 3.5)
    assert serial_half_width([2.0] * 6) == 0.0
    assert serial_half_width([0.0] * 6) == math.inf


@given(values=st.lists(st.floats(1e-6, 1e3), min_size=6, max_size=40), factor=st.floats(1e-3, 1e3))
def test_half_width_has_no_unit(values: list[float], factor: float) -> None:
    assume(len({f"{value:.6g}" for value in values}) == len(set(values)))  # rounding ties none
    scaled = serial_half_width([factor * value for value in values])
    assert scaled == pytest.approx(serial_half_width(values), rel=1e-9, abs=1e-12)


@given(values=st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=40), seed=st.integers(0, 9))
def test_order_does_not_matter_for_independent_values(values: list[float], seed: int) -> None:
    shuffled = np.random.default_rng(seed).permutation(values).tolist()
    assert median_interval(shuffled) == median_interval(values)
    low, high = median_interval(values)
    assert low <= median(values) <= high


def effective_by_numpy(values: list[float]) -> int:
    """The same sum from numpy.correlate."""
    above = np.array(values) > np.median(values)
    signs = above - above.mean()
    n = len(values)
    products = np.correlate(signs, signs, "full")[n - 1 :]
    if products[0] <= 0:
        return n
    lags = products[1 : n // 2] / products[0]
    # what is zero but for rounding is not positive
    ends = np.flatnonzero(lags <= 1e-12)
    return int(n / (1 + 2 * lags[: ends[0] if len(ends) else None].sum()) + 1e-9)


@given(seed=st.integers(0, 10**6), n=st.integers(2, 300), rho=st.floats(-0.9, 0.99))
def test_effective_number_is_that_of_numpy(seed: int, n: int, rho: float) -> None:
    values = autoregressive(seed, n, rho)
    assert effective_number(values) == effective_by_numpy(values)


def autoregressive(seed: int, n: int, rho: float) -> list[float]:
    """AR(1): each value is rho times the one before and noise; standard deviation 1, mean 10."""
    noise = np.random.default_rng(seed).standard_normal(n)
    values = [float(noise[0])]
    for step in noise[1:]:
        values.append(rho * values[-1] + math.sqrt(1 - rho * rho) * float(step))
    return [10.0 + value for value in values]


def test_effective_number_of_cases_worked_out_by_hand() -> None:
    assert [effective_number([1.0] * n) for n in (0, 1, 2, 9)] == [0, 1, 2, 9]
    assert effective_number([1.0, 2.0] * 10) == 20, "an alternation is no lack of information"
    # 8 low, then 8 high: the products at lags 0..5 are (16 - 3k)/4 = 4, 3.25, 2.5, 1.75, 1, 0.25
    assert effective_number([1.0] * 8 + [2.0] * 8) == int(16 / (1 + 2 * 8.75 / 4)) == 2
    levels = (1.5, 0.5, 2.0)  # one between them, one below and one above all
    assert [effective_number([1.0] * 8 + [2.0] * 8, level) for level in levels] == [2, 16, 16]
    one_outlier = [1.0 + i / 100 for i in (3, 1, 4, 0, 5, 2, 6, 7)]
    assert effective_number([*one_outlier[:-1], 1e9]) == effective_number(one_outlier)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_effective_number_is_that_of_the_theory(rho: float) -> None:
    """Of a Gaussian process "above the median" correlates 2/pi arcsin(r) (Sheppard, 1899)."""
    theory = 1 + 2 * sum(2 / math.pi * math.asin(rho**k) for k in range(1, 200))
    found = [4000 / effective_number(autoregressive(seed, 4000, rho)) for seed in range(12)]
    assert median(found) == pytest.approx(theory, rel=0.12)


@given(
    values=st.lists(st.floats(1e-6, 1e3), min_size=6, max_size=60), confidence=st.floats(0.5, 0.99)
)
def test_the_serial_interval_holds_the_binomial_one(values: list[float], confidence: float) -> None:
    found = serial_interval(values, confidence)
    if found is None:
        assert median_ranks(max(effective_number(values), 1), confidence) is None
        return
    ranks = median_ranks(len(values), confidence)
    assert ranks is not None
    assert found[0] <= sorted(values)[ranks[0]] and found[1] >= sorted(values)[ranks[1]]
    assert set(found) <= set(values)
    middle = float(np.median(values))
    expected = (found[1] - found[0]) / (2 * middle)
    assert serial_half_width(values, confidence) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("rho", "plain", "least"), [(0.0, 0.965, 0.94), (0.5, 0.82, 0.9)])
def test_the_serial_interval_covers_where_the_binomial_one_does_not(
    rho: float, plain: float, least: float
) -> None:
    """1,500 seeded AR(1) series of 100 values, whose true median is 10.

    Plain: of rho = 0.5 100 values are worth 44 (the theory above), so 95% becomes 82%.
    """
    hits, plain_hits, trials = 0, 0, 1500
    for seed in range(trials):
        values = autoregressive(seed, 100, rho)
        low, high = serial_interval(values) or (math.inf, 0.0)
        hits += low <= 10.0 <= high
        low, high = median_interval(values)
        plain_hits += low <= 10.0 <= high
    assert hits / trials >= least
    assert abs(plain_hits / trials - plain) < 0.02


def test_groups_weigh_alike_in_their_median() -> None:
    """99 ones and one group of three twos: the pooled median is 1, that of groups is between them."""
    assert median_of_groups([[1.0] * 99, [2.0] * 3]) == 1.5
    assert median_of_groups([[1.0] * 99, [2.0] * 3, [2.5]]) == 2.0
    assert median_of_groups([[1.0, 3.0], [2.0, 4.0]]) == 2.5


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=30))
def test_a_median_with_equal_weights_is_the_median(values: list[float]) -> None:
    assert weighted_median(values, [0.3] * len(values)) == pytest.approx(median(values))
    # a weight of k is k times the value
    assert weighted_median(values, [2.0] * len(values)) == weighted_median(
        values * 2, [1.0] * len(values) * 2
    )
