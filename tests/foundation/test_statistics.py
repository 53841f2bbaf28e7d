"""Order statistics against SciPy's binomial distribution, NumPy's quantiles and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from foundation.statistics import median, median_half_width, median_interval, median_ranks, quantile

values = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=60)


@settings(deadline=None, derandomize=True)
@given(values=values, q=st.floats(0, 1))
def test_quantile_is_that_of_numpy(values: list[float], q: float) -> None:
    assert quantile(values, q) == pytest.approx(float(np.quantile(values, q)), rel=1e-12)


@settings(deadline=None, derandomize=True)
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
    assert median_half_width([1.0] * 5) == math.inf


def test_half_width_is_relative_to_the_median() -> None:
    """Six values: the interval is [1, 6], its half 2.5, the median 3.5."""
    assert median_half_width([6.0, 1.0, 5.0, 2.0, 4.0, 3.0]) == pytest.approx(2.5 / 3.5)
    assert median_half_width([2.0] * 6) == 0.0
    assert median_half_width([0.0] * 6) == math.inf


@settings(deadline=None, derandomize=True)
@given(values=st.lists(st.floats(1e-6, 1e3), min_size=6, max_size=40), factor=st.floats(1e-3, 1e3))
def test_half_width_has_no_unit(values: list[float], factor: float) -> None:
    scaled = median_half_width([factor * value for value in values])
    assert scaled == pytest.approx(median_half_width(values), rel=1e-9, abs=1e-12)


@settings(deadline=None, derandomize=True)
@given(values=st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=40), seed=st.integers(0, 9))
def test_order_does_not_matter(values: list[float], seed: int) -> None:
    shuffled = np.random.default_rng(seed).permutation(values).tolist()
    assert median_interval(shuffled) == median_interval(values)
    low, high = median_interval(values)
    assert low <= median(values) <= high


@settings(deadline=None, derandomize=True)
@given(values=st.lists(st.floats(1e-6, 1e3), min_size=6, max_size=40))
def test_half_width_is_half_the_interval_over_the_median_of_numpy(values: list[float]) -> None:
    low, high = median_interval(values)
    expected = (high - low) / (2 * float(np.median(values)))
    assert median_half_width(values) == pytest.approx(expected, rel=1e-12)
