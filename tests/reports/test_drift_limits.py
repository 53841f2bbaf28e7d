"""calib.reports.drift.limits: probabilities against SciPy's distributions, integrals and simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from calib.reports.drift.baselines import baselines, level_of, winsorised_variance
from calib.reports.drift.limits import (
    CORRELATIONS,
    FREEDOM,
    LEVEL_NIGHTS,
    TAIL_PART,
    TAIL_POINT,
    correlation_factors,
    estimated_factors,
    known_limit,
    limit_factors,
    night_share,
    run_chance,
    tail_factor,
)

RULES = [(3, 3), (4, 5), (7, 9), (12, 14)]


@pytest.mark.parametrize(("k", "m"), RULES)
@pytest.mark.parametrize("chance", [1e-2, 1e-5, 1e-9])
def test_a_share_of_nights_gives_the_binomial_its_chance(k: int, m: int, chance: float) -> None:
    assert stats.binom.sf(k - 1, m, night_share(k, m, chance)) == pytest.approx(chance, rel=1e-8)


def test_three_of_three_is_a_cube() -> None:
    assert night_share(3, 3, 8e-9) == pytest.approx(2e-3, rel=1e-9)
    assert known_limit(3, 3, 8e-9, 0.0) == pytest.approx(stats.norm.isf(2e-3), rel=1e-9)


@pytest.mark.parametrize(("k", "m"), RULES)
def test_runs_of_independent_nights_are_binomial(k: int, m: int) -> None:
    expected = stats.binom.sf(k - 1, m, stats.norm.sf(1.4))
    assert run_chance(k, m, 1.4, 0.0) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("rho", [0.3, 0.6, 0.8])
def test_three_nights_that_hang_together_are_a_normal_orthant(rho: float) -> None:
    covariance = rho ** np.abs(np.subtract.outer(range(3), range(3)))
    limit = 1.5
    expected = stats.multivariate_normal.cdf(
        [-limit] * 3, cov=covariance, abseps=1e-10, releps=1e-8, maxpts=400_000
    )
    assert run_chance(3, 3, limit, rho) == pytest.approx(float(expected), rel=1e-4)


def test_counts_of_nights_that_hang_together_are_those_of_a_simulation() -> None:
    random, rho, n = np.random.default_rng(5), 0.6, 200_000
    x = np.empty((n, 9))
    x[:, 0] = random.standard_normal(n)
    for night in range(1, 9):
        x[:, night] = rho * x[:, night - 1] + np.sqrt(1 - rho**2) * random.standard_normal(n)
    share = ((x > 0.8).sum(axis=1) >= 7).mean()
    error = np.sqrt(share / n)
    assert abs(run_chance(7, 9, 0.8, rho) - share) < 4 * error


@pytest.mark.parametrize(("k", "m"), RULES)
def test_limits_of_nights_that_hang_together_have_the_chance(k: int, m: int) -> None:
    factors = correlation_factors(k, m, 1e-6)
    assert factors[0] == 1.0 and (np.diff(factors) > 0).all()
    limit = factors[2] * known_limit(k, m, 1e-6, 0.0)
    assert run_chance(k, m, limit, CORRELATIONS[2]) == pytest.approx(1e-6, rel=0.02)


def test_one_future_night_has_the_limit_of_students_t() -> None:
    """Prediction limit of one normal value: t sqrt(1 + 1/n) (Hahn and Meeker, Statistical Intervals)."""
    expected = stats.t.isf(1e-3, FREEDOM)[None, :] * np.sqrt(1 + 1 / LEVEL_NIGHTS)[:, None]
    np.testing.assert_allclose(estimated_factors(1, 1, 1e-3), expected, rtol=5e-3)


@pytest.mark.parametrize(("k", "m"), [(3, 3), (7, 9)])
def test_few_nights_have_the_chance_that_they_say(k: int, m: int) -> None:
    """Simulated: level and scatter of 16 normal nights, mean and standard deviation."""
    random, n, chance = np.random.default_rng(6), 100_000, 2e-3
    before, after = random.standard_normal((n, 16)), random.standard_normal((n, m))
    factor = limit_factors(k, m, chance, np.array([16.0]), np.array([15.0]), np.zeros(1))[0]
    factor /= 1 + TAIL_PART * (tail_factor(k, m, chance) - 1)
    limit = before.mean(axis=1) + factor * before.std(axis=1, ddof=1)
    found = ((after > limit[:, None]).sum(axis=1) >= k).sum()
    low, high = stats.poisson.interval(0.999, chance * n)
    assert low <= found <= high


def test_heavy_tails_widen_the_limit_of_few_nights_only() -> None:
    share = night_share(3, 3, 1e-7)
    of_t3 = stats.t.isf(share, 3) / stats.t.isf(0.03, 3)
    assert tail_factor(3, 3, 1e-7) == pytest.approx(
        of_t3 / (stats.norm.isf(share) / stats.norm.isf(0.03)), rel=1e-9
    )
    assert pytest.approx(stats.norm.isf(0.03)) == TAIL_POINT
    assert tail_factor(12, 14, 1e-7) == 1.0


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), st.integers(30, 90))
def test_the_winsorised_variance_is_its_integral(cut: int, count: int) -> None:
    z = stats.norm.isf(cut / count)
    inside = integrate.quad(lambda x: x * x * stats.norm.pdf(x), -z, z)[0]
    expected = inside + 2 * cut / count * z * z
    assert winsorised_variance(cut, count) == pytest.approx(expected, rel=1e-7)


def test_more_nights_narrow_the_limit_and_more_series_widen_it() -> None:
    nights = np.array([5.0, 10.0, 30.0, 80.0])
    limits = limit_factors(3, 3, 1e-7, nights, nights, np.zeros(4))
    assert (np.diff(limits) < 0).all()
    assert (limit_factors(3, 3, 1e-8, nights, nights, np.zeros(4)) > limits).all()


def test_nights_that_hang_together_widen_the_limit_by_their_factor() -> None:
    nights, none = np.array([30.0]), np.zeros(1)
    apart = limit_factors(7, 9, 1e-7, nights, nights, none)
    together = limit_factors(7, 9, 1e-7, nights, nights, none + CORRELATIONS[2])
    np.testing.assert_allclose(together / apart, correlation_factors(7, 9, 1e-7)[2])


@pytest.mark.parametrize("heavy", [False, True])
@pytest.mark.parametrize("n", [12, 40, 130])
def test_level_and_scatter_are_those_of_scipy(n: int, heavy: bool) -> None:
    """Trimmed mean, winsorised deviation and the 94% point, of the last 90 nights."""
    random = np.random.default_rng([n, heavy])
    x = random.standard_t(1.5, n) if heavy else random.uniform(-1, 1, n)
    known = baselines(x, np.empty(0), 90)
    last = x[-90:]
    location = stats.trim_mean(last, 0.1)
    assert known.location[-1] == pytest.approx(location)
    count, cut = len(last), len(last) // 10
    drawn_in = stats.mstats.winsorize(last, limits=(cut / count, cut / count)).data
    winsorised = drawn_in.std(ddof=1) / np.sqrt(winsorised_variance(cut, count))
    tail = np.quantile(np.abs(last - location), 0.94) / stats.norm.isf(0.03)
    tail *= np.sqrt(count / (count - 1))
    assert (tail > winsorised) == heavy
    assert known.scatter[-1] == pytest.approx(max(tail, winsorised))
    assert known.freedom[-1] == count - 2 * cut - 1
    alone = level_of(last, np.empty(0))
    assert (alone.location[0], alone.scatter[0]) == pytest.approx(
        (known.location[-1], known.scatter[-1])
    )


def test_a_side_with_a_long_tail_has_its_own_scatter() -> None:
    """Nights are rather slow than fast: the 95% point of exponential noise is 3, its level about 0.8."""
    x = np.random.default_rng(12).exponential(size=90)
    known = baselines(x, np.empty(0), 90)
    expected = np.quantile(x - stats.trim_mean(x, 0.1), 0.95) / stats.norm.isf(0.05)
    assert known.up[-1] == pytest.approx(expected * np.sqrt(90 / 89))
    assert known.up[-1] > 1.1 * known.scatter[-1]
    assert known.down[-1] == known.scatter[-1]
    mirrored = baselines(-x, np.empty(0), 90)
    assert (mirrored.up[-1], mirrored.down[-1]) == pytest.approx((known.down[-1], known.up[-1]))


def test_a_young_level_has_the_scatter_of_those_before() -> None:
    before = np.random.default_rng(3).standard_normal(80)
    young = baselines(np.array([5.0, 5.1, 4.9, 5.0, 5.05]), before, 90)
    assert young.location[-1] == pytest.approx(np.mean([5.0, 5.05, 5.0]), abs=0.05)
    assert 0.8 < young.scatter[-1] < 1.3 and young.nights[-1] < 5


def test_correlation_is_that_of_the_series_at_its_upper_end() -> None:
    random, x = np.random.default_rng(4), np.zeros((60, 90))
    for night in range(1, 90):
        x[:, night] = 0.5 * x[:, night - 1] + random.standard_normal(60)
    found = [baselines(row, np.empty(0), 90).correlation[-1] for row in x]
    assert 0.5 < np.mean(found) < 0.65
    alone = [baselines(random.standard_normal(90), np.empty(0), 90).correlation[-1] for _ in x]
    assert 0.05 < np.mean(alone) < 0.2
