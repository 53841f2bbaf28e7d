"""Eta against a scan of the interval, at its ends, and beside Galvatron's coefficient."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fitting.estimators.examples.overlap import EXAMPLES, X

from calib.fitting.estimators.overlap import OverlapLaw, best_eta, iteration
from calib.foundation.errors import InputError

TIMES = st.lists(
    st.tuples(st.floats(1e-4, 1.0), st.floats(1e-4, 1.0), st.floats(0.0, 1.0), st.floats(0.3, 1.2)),
    min_size=1,
    max_size=6,
)


@given(rows=TIMES)
def test_no_eta_of_a_scan_is_better(rows: list[tuple[float, float, float, float]]) -> None:
    x = np.array([row[:3] for row in rows])
    seconds = np.array([row[3] for row in rows]) * x.sum(axis=1)
    weight = np.ones(len(x))

    def loss(eta: float) -> float:
        return float(np.sum((iteration(x, eta) / seconds - 1) ** 2))

    first, last = best_eta(x, seconds, weight)
    assert 0 <= first <= last <= 1
    assert loss(first) <= min(map(loss, np.linspace(0, 1, 2001))) + 1e-9


@pytest.mark.parametrize("slower", [1.0, 1.2])
def test_no_overlap_and_a_slower_iteration(slower: float) -> None:
    """eta = 0 is the paper's data parallelism; what is beyond it is said, not clipped."""
    law = OverlapLaw().fit(X, slower * X.sum(axis=1))
    assert (law.eta_, law.eta_high_) == pytest.approx((0.0, 0.0), abs=1e-9)
    ends = law.slowdown_low_, law.slowdown_, law.slowdown_high_
    assert ends == pytest.approx((slower - 1,) * 3)
    assert law.error_ == pytest.approx(0.0, abs=1e-9)
    assert law.predict(X) == pytest.approx(slower * X.sum(axis=1))


def test_long_exchanges_do_not_tell_how_much_could_be_hidden() -> None:
    """All exchanges over twice the backward: any eta from 1/2 up hides the whole backward."""
    x = np.array([[1.0, 2.0, 4.0], [2.0, 4.0, 10.0]])
    law = OverlapLaw().fit(x, x.sum(axis=1) - x[:, 1])
    assert (law.eta_, law.eta_high_) == pytest.approx((0.5, 1.0))


def test_shorter_exchanges_tell_it() -> None:
    law = OverlapLaw().fit(X, EXAMPLES[0].seconds)
    assert law.eta_low_ == pytest.approx(law.eta_high_) == pytest.approx(0.7)
    assert law.held_out_error_ == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("coefficient", [1.0, 1.125552573612729, 1.5])
def test_galvatron_where_the_exchange_is_shorter(coefficient: float) -> None:
    """Golden number: shared/data/galvatron/overlap_coefficient.json; c min(a, b) + |a - b|."""
    backward, exchange = np.array([2.0, 5.0, 9.0]), np.array([1.0, 5.0, 0.5])
    together = coefficient * np.minimum(backward, exchange) + np.abs(backward - exchange)
    x = np.column_stack([np.ones(3), backward, exchange])
    assert OverlapLaw().fit(x, 1.0 + together).eta_ == pytest.approx(2 - coefficient)


def test_an_iteration_is_never_shorter_than_with_all_hidden() -> None:
    generator = np.random.default_rng(1)
    noisy = EXAMPLES[0].seconds * (1 + 0.1 * generator.standard_normal(len(X)))
    law = OverlapLaw().fit(X, noisy)
    low, high = law.predict_interval(X)
    assert (low >= X.sum(axis=1) - np.minimum(X[:, 1], X[:, 2]) - 1e-15).all()
    assert (low <= law.predict(X)).all() and (law.predict(X) <= high).all()


def test_rows_that_cannot_be() -> None:
    with pytest.raises(InputError, match="backward, exchange and all else"):
        OverlapLaw().fit([[1.0, 2.0]], [3.0])
    with pytest.raises(InputError, match="an exchange that takes time"):
        OverlapLaw().fit([[1.0, 2.0, 0.0]], [3.0])
