"""The estimator's conformance suite: known coefficients, order, units, refusals, coverage.

Independent computations: SciPy's bounded least squares (a trust-region method, not Lawson-Hanson)
and, for the coverage of an error factor, the normal distribution in closed form.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import lsq_linear
from scipy.stats import norm

from calib.fitting.regression import RelativeNonNegativeRegression, error_factor, leave_one_out
from calib.foundation.errors import InputError

TRUTH = np.array([5e-6, 2e-11, 1.5e-10])  # call, flops, bytes


def data(seed: int, n: int = 30, noise: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Features [1, flops, bytes] over five decades, and times that follow TRUTH."""
    generator = np.random.default_rng(seed)
    x = np.column_stack([np.ones(n), 10 ** generator.uniform(4, 9, (n, 2))])
    return x, (x @ TRUTH) * (1 + noise * generator.standard_normal(n))


def bounded(x: np.ndarray, t: np.ndarray, offset: np.ndarray | float = 0.0) -> np.ndarray:
    """The same problem by scipy.optimize.lsq_linear, columns scaled to one."""
    rows = x / t[:, None]
    scale = np.abs(rows).max(axis=0)
    scale[scale == 0] = 1
    found = lsq_linear(rows / scale, 1 - offset / t, bounds=(0, np.inf), tol=1e-14, method="bvls")
    return np.asarray(found.x / scale)


@pytest.mark.parametrize("seed", range(5))
def test_recovers_known_coefficients(seed: int) -> None:
    x, t = data(seed)
    model = RelativeNonNegativeRegression().fit(x, t)
    assert model.coefficients_ == pytest.approx(TRUTH, rel=1e-9)
    assert model.predict(x) == pytest.approx(t, rel=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_an_offset_is_taken_as_known(seed: int) -> None:
    x, t = data(seed)
    offset = np.random.default_rng(seed).uniform(0, 3, len(t)) * t
    model = RelativeNonNegativeRegression().fit(x, t + offset, offset)
    assert model.coefficients_ == pytest.approx(TRUTH, rel=1e-9)
    assert model.predict(x) == pytest.approx(t, rel=1e-9), "without the offset"
    scalar = RelativeNonNegativeRegression().fit(x, t + 1e-3, 1e-3)
    assert scalar.coefficients_ == pytest.approx(TRUTH, rel=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_noise_is_met_as_bounded_least_squares_meets_it(seed: int) -> None:
    x, t = data(seed, noise=0.2)
    found = RelativeNonNegativeRegression().fit(x, t).coefficients_
    assert found == pytest.approx(bounded(x, t), rel=1e-6, abs=1e-16)


@pytest.mark.parametrize("seed", range(10))
def test_coefficients_are_never_negative(seed: int) -> None:
    """Times that fall with the bytes: the plain solution is negative, the bounded one is zero."""
    generator = np.random.default_rng(seed)
    m = 10 ** generator.uniform(3, 6, 20)
    x, t = np.column_stack([np.ones(20), m]), 1e-3 - 5e-10 * m
    plain = np.linalg.lstsq(x / t[:, None], np.ones(20), rcond=None)[0]
    assert plain[1] < 0
    found = RelativeNonNegativeRegression().fit(x, t).coefficients_
    assert found[1] == 0.0 and found[0] == pytest.approx(bounded(x, t)[0])


def test_residuals_are_relative() -> None:
    """Constant fit to 1 and 100: sum (1 - c/t)^2 is least at c = (sum 1/t) / (sum 1/t^2)."""
    (c,) = RelativeNonNegativeRegression().fit([[1.0], [1.0]], [1.0, 100.0]).coefficients_
    assert c == pytest.approx((1 + 1 / 100) / (1 + 1 / 10_000))


@pytest.mark.parametrize("seed", range(3))
def test_order_of_rows_does_not_matter(seed: int) -> None:
    x, t = data(seed, noise=0.1)
    order = np.random.default_rng(seed).permutation(len(t))
    one = RelativeNonNegativeRegression().fit(x, t).coefficients_
    other = RelativeNonNegativeRegression().fit(x[order], t[order]).coefficients_
    assert other == pytest.approx(one, rel=1e-9)


@pytest.mark.parametrize("factor", [1e3, 1e9, 1 / 3600])
def test_units_scale_the_coefficients(factor: float) -> None:
    """Seconds to milliseconds, nanoseconds and hours; then bytes to kilobytes."""
    x, t = data(1, noise=0.1)
    one = RelativeNonNegativeRegression().fit(x, t).coefficients_
    assert RelativeNonNegativeRegression().fit(x, factor * t).coefficients_ == pytest.approx(
        factor * one, rel=1e-9
    )
    columns = np.array([1, 1, 1e-3])
    assert RelativeNonNegativeRegression().fit(x * columns, t).coefficients_ == pytest.approx(
        one / columns, rel=1e-9
    )


def test_a_column_of_zeros_gets_nothing() -> None:
    x, t = data(0)
    x[:, 1] = 0
    assert RelativeNonNegativeRegression().fit(x, t).coefficients_[1] == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_times_that_cannot_be_are_refused(bad: float) -> None:
    x, t = data(0)
    t[3] = bad
    with pytest.raises(InputError, match="NaN, infinite or not positive") as caught:
        RelativeNonNegativeRegression().fit(x, t)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_features_that_cannot_be_are_refused(bad: float) -> None:
    x, t = data(0)
    x[3, 1] = bad
    with pytest.raises(InputError, match="NaN, infinite"):
        RelativeNonNegativeRegression().fit(x, t)


@pytest.mark.parametrize(
    ("x", "t"), [([], []), ([[1.0]], [1.0, 2.0]), ([1.0], [1.0]), (np.empty((0, 2)), [])]
)
def test_shapes_that_do_not_fit_are_refused(x: object, t: object) -> None:
    with pytest.raises(InputError, match="regression of"):
        RelativeNonNegativeRegression().fit(x, t)


@pytest.mark.parametrize("with_offset", [False, True])
def test_leave_one_out_is_a_fit_without_the_row(with_offset: bool) -> None:
    x, t = data(3, n=9, noise=0.3)
    offset = 0.3 * t * np.arange(9) / 9 if with_offset else np.zeros(9)
    expected = []
    for row in range(9):
        keep = [i for i in range(9) if i != row]
        c = bounded(x[keep], t[keep], offset[keep])
        expected.append(offset[row] + float(x[row] @ c))
    found = leave_one_out(x, t, offset if with_offset else 0.0)
    assert found == pytest.approx(expected, rel=1e-6)


def test_leave_one_out_does_not_see_the_row() -> None:
    """A wild time changes every prediction but its own."""
    x, t = data(4, n=8, noise=0.1)
    wild = t.copy()
    wild[2] *= 50
    before, after = leave_one_out(x, t), leave_one_out(x, wild)
    assert after[2] == before[2]
    assert (np.delete(after, 2) != np.delete(before, 2)).any()


@given(errors=st.lists(st.floats(-3, 3), min_size=1, max_size=200), seconds=st.floats(1e-9, 1e3))
def test_the_factor_holds_95_percent_of_its_rows(errors: list[float], seconds: float) -> None:
    times = seconds * np.exp(errors)
    factor = error_factor([seconds] * len(errors), times)
    slack = 1 + 1e-9
    inside = (times <= seconds * factor * slack) & (times >= seconds / factor / slack)
    assert factor >= 1 and inside.mean() >= 0.95


@pytest.mark.parametrize("n", [19, 40, 100])
def test_the_factor_covers_95_percent_of_new_lognormal_times(n: int) -> None:
    """Seeded. A factor f covers 2 Phi(ln f / sigma) - 1 of new times; its mean is k / (n + 1) with
    k = ceil(0.95 (n + 1)): the order statistic of conformal prediction (Vovk et al. 2005)."""
    sigma, trials = 0.4, 3000
    generator = np.random.default_rng(n)
    draws = np.exp(sigma * generator.standard_normal((trials, n)))
    factors = np.array([error_factor(np.ones(n), row) for row in draws])
    covered = 2 * norm.cdf(np.log(factors) / sigma) - 1
    exact = math.ceil(0.95 * (n + 1)) / (n + 1)
    assert exact >= 0.95 - 1e-12
    assert abs(covered.mean() - exact) < 4 * covered.std() / math.sqrt(trials)


def test_the_factor_of_few_rows_is_that_of_the_worst() -> None:
    assert error_factor([1.0, 1.0, 1.0], [1.1, 0.5, 1.5]) == pytest.approx(2.0)
    assert error_factor([1.0], [1.0]) == 1.0
    # of 100 rows the 96th; the four worst are outside
    times = [1.0 + i / 100 for i in range(100)]
    assert error_factor([1.0] * 100, times) == pytest.approx(times[95])


def test_the_factor_is_symmetric_and_has_no_unit() -> None:
    x, y = [1.0, 2.0, 3.0], [1.2, 1.5, 4.0]
    assert error_factor(x, y) == pytest.approx(error_factor(y, x))
    assert error_factor(np.array(x) * 1e3, np.array(y) * 1e3) == pytest.approx(error_factor(x, y))


def test_a_prediction_of_nothing_has_a_finite_factor() -> None:
    assert error_factor([0.0, 1.0], [1.0, 1.0]) == 1e6


def test_offsets_that_cannot_be_are_refused() -> None:
    x, t = data(0)
    with pytest.raises(InputError):
        RelativeNonNegativeRegression().fit(x, t, np.where(np.arange(30) == 3, math.nan, 0.0))
