"""Regressions with relative errors: known coefficients, order, units, rows left out, coverage.

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

from calib.fitting.parameters.algorithms import steps_and_volume
from calib.fitting.regression import error_factor, hockney_line, left_out, relative_nnls

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
    assert relative_nnls(x, t) == pytest.approx(TRUTH, rel=1e-9)
    offset = np.random.default_rng(seed).uniform(0, 3, len(t)) * t
    assert relative_nnls(x, t + offset, offset=offset) == pytest.approx(TRUTH, rel=1e-9)
    assert relative_nnls(x, t + 1e-3, offset=1e-3) == pytest.approx(TRUTH, rel=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_noise_is_met_as_bounded_least_squares_meets_it(seed: int) -> None:
    x, t = data(seed, noise=0.2)
    found = relative_nnls(x, t)
    assert found == pytest.approx(bounded(x, t), rel=1e-6, abs=1e-16)


@pytest.mark.parametrize("seed", range(10))
def test_coefficients_are_never_negative(seed: int) -> None:
    """Times that fall with the bytes: the plain solution is negative, the bounded one is zero."""
    generator = np.random.default_rng(seed)
    m = 10 ** generator.uniform(3, 6, 20)
    x, t = np.column_stack([np.ones(20), m]), 1e-3 - 5e-10 * m
    plain = np.linalg.lstsq(x / t[:, None], np.ones(20), rcond=None)[0]
    assert plain[1] < 0
    found = relative_nnls(x, t)
    assert found[1] == 0.0 and found[0] == pytest.approx(bounded(x, t)[0])


def test_residuals_are_relative() -> None:
    """Constant fit to 1 and 100: sum (1 - c/t)^2 is least at c = (sum 1/t) / (sum 1/t^2)."""
    (c,) = relative_nnls(np.ones((2, 1)), np.array([1.0, 100.0]))
    assert c == pytest.approx((1 + 1 / 100) / (1 + 1 / 10_000))


@pytest.mark.parametrize("seed", range(3))
def test_order_of_rows_does_not_matter(seed: int) -> None:
    x, t = data(seed, noise=0.1)
    order = np.random.default_rng(seed).permutation(len(t))
    one = relative_nnls(x, t)
    other = relative_nnls(x[order], t[order])
    assert other == pytest.approx(one, rel=1e-9)


@pytest.mark.parametrize("factor", [1e3, 1e9, 1 / 3600])
def test_units_scale_the_coefficients(factor: float) -> None:
    """Seconds to milliseconds, nanoseconds and hours; then bytes to kilobytes."""
    x, t = data(1, noise=0.1)
    one = relative_nnls(x, t)
    assert relative_nnls(x, factor * t) == pytest.approx(factor * one, rel=1e-9)
    columns = np.array([1, 1, 1e-3])
    assert relative_nnls(x * columns, t) == pytest.approx(one / columns, rel=1e-9)


def test_a_column_of_zeros_gets_nothing() -> None:
    x, t = data(0)
    x[:, 1] = 0
    assert relative_nnls(x, t)[1] == 0.0


@pytest.mark.parametrize("with_offset", [False, True])
def test_left_out_is_a_fit_without_the_row(with_offset: bool) -> None:
    x, t = data(3, n=9, noise=0.3)
    offset = 0.3 * t * np.arange(9) / 9 if with_offset else np.zeros(9)
    expected = []
    for row in range(9):
        keep = [i for i in range(9) if i != row]
        c = bounded(x[keep], t[keep], offset[keep])
        expected.append(offset[row] + float(x[row] @ c))
    found = left_out(x, t, np.ones(9), range(9), offset if with_offset else None)
    assert found == pytest.approx(expected, rel=1e-6)


def test_left_out_does_not_see_the_row() -> None:
    """A wild time changes every prediction but its own."""
    x, t = data(4, n=8, noise=0.1)
    wild = t.copy()
    wild[2] *= 50
    before, after = (left_out(x, times, np.ones(8), range(8)) for times in (t, wild))
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


@given(
    alpha=st.floats(1e-7, 1e-3),
    beta=st.floats(1e-12, 1e-8),
    ranks=st.integers(2, 64),
    operation=st.sampled_from(["allreduce", "p2p"]),
)
def test_alpha_and_beta_of_a_noiseless_collective(
    alpha: float, beta: float, ranks: int, operation: str
) -> None:
    """formulas.md: allreduce 2 (p-1) (alpha + m beta / p), p2p alpha + m beta."""
    sizes = np.array([*(8 * 4**k for k in range(12)), 2**28, 2**32], dtype=float)
    times = (
        alpha + sizes * beta
        if operation == "p2p"
        else 2 * (ranks - 1) * (alpha + sizes * beta / ranks)
    )
    intercept, slope = hockney_line(sizes, times)
    steps, volume = steps_and_volume(operation, ranks)
    assert intercept / steps == pytest.approx(alpha, rel=1e-6)
    assert slope / volume == pytest.approx(beta, rel=1e-6)
    assert intercept + slope * sizes == pytest.approx(times, rel=1e-9)


def test_a_line_through_falling_times_is_flat() -> None:
    intercept, slope = hockney_line([8, 8000], [2e-6, 1e-6])
    assert slope == 0.0 and 1e-6 < intercept < 2e-6
