"""What is special to sums in place: which prices, checked on which models, and how sure."""

from __future__ import annotations

import numpy as np
import pytest
from tests.fitting.estimators.examples.composition import EXAMPLES, S_PER_BYTE, S_PER_LAYER, X

from calib.fitting.estimators.composition import SumInPlace
from calib.foundation.errors import InputError

TRUE = EXAMPLES[0].seconds
SUMS, LAYERS, BYTES = X.T


@pytest.mark.parametrize(
    ("form", "seconds"),
    [
        ("sum", SUMS),
        ("layers", SUMS + S_PER_LAYER * LAYERS),
        ("bytes", SUMS + S_PER_BYTE * BYTES),
        ("layers + bytes", TRUE),
    ],
)
def test_the_law_of_the_data_is_chosen(form: str, seconds: np.ndarray) -> None:
    law = SumInPlace().fit(X, seconds)
    assert law.form_ == form
    assert law.runner_up_ and law.runner_up_ != form
    assert law.predict(X) == pytest.approx(seconds)
    assert law.error_factor_ == pytest.approx(1.0)
    assert law.sum_error_factor_ == pytest.approx(np.max(seconds / SUMS))


def test_a_sum_that_is_too_long_has_no_price() -> None:
    law = SumInPlace().fit(X, 0.8 * SUMS)
    assert (law.form_, law.s_per_layer_, law.s_per_byte_) == ("sum", 0.0, 0.0)
    assert law.error_factor_ == law.sum_error_factor_ == pytest.approx(1.25)


def test_one_model_is_repeated() -> None:
    law = SumInPlace().fit(X[:1], 1.3 * SUMS[:1])
    assert law.s_per_layer_ == pytest.approx(0.3 * SUMS[0] / LAYERS[0])
    assert law.error_factor_ == law.sum_error_factor_ == pytest.approx(1.3)
    assert law.form_ == "layers" and law.runner_up_ == ""
    without = np.array([[0.01, 0.0, 4e6]])  # of an exchange: no layers
    law = SumInPlace().fit(without, [0.012])
    assert law.form_ == "bytes" and law.s_per_byte_ == pytest.approx(0.002 / 4e6)


def test_the_law_is_that_of_the_medians() -> None:
    """Three repetitions of each model, one of them ten times too long."""
    x, t = np.repeat(X, 3, axis=0), (TRUE[:, None] * [0.99, 1.0, 10.0]).ravel()
    law = SumInPlace().fit(x, t)
    assert (law.s_per_layer_, law.s_per_byte_) == pytest.approx((S_PER_LAYER, S_PER_BYTE))
    assert law.n_ == 18


def test_intervals_cover_the_prices() -> None:
    """Seeded: 2 prices in 100 samples of one launch; 5 sigma of a binomial at 95%."""
    covered = 0
    for seed in range(100):
        generator = np.random.default_rng(seed)
        t = (TRUE[:, None] * (1 + 0.01 * generator.standard_normal((len(X), 15)))).ravel()
        law = SumInPlace(seed=seed).fit(np.repeat(X, 15, axis=0), t)
        for name, truth in (("s_per_layer", S_PER_LAYER), ("s_per_byte", S_PER_BYTE)):
            low, high = law.intervals_[name]
            covered += int(low <= truth <= high)
    assert 0.95 * 200 - 5 * np.sqrt(200 * 0.95 * 0.05) <= covered


def test_launches_that_differ_widen_the_interval() -> None:
    x, launch = np.repeat(X, 2, axis=0), np.tile([0, 1], len(X))
    t = np.repeat(TRUE, 2) * np.where(launch == 1, 1.2, 1.0)
    low, high = SumInPlace().fit(x, t, groups=launch).predict_interval(X)
    assert (low <= TRUE).all() and (high >= 1.2 * TRUE).all()


def test_outside_of_the_models_the_interval_widens() -> None:
    """A law without errors is worth 10% outside, and 10% more by every decade, below and beyond."""
    law = SumInPlace().fit(X, TRUE)
    for row, decades in (
        ([0.05, 40.0, 6e7], -1),
        ([0.05, 40.0, 6e9], 2),
        ([0.05, 600.0, 6e7], 1),
        ([0.00085, 2.0, 1e6], 1),
        ([0.0085, 2.0, 1e4], 2),
    ):
        x = np.array([row])
        low, high = law.predict_interval(x)
        middle = law._seconds(x)
        assert high / middle == pytest.approx(1.1 ** (decades + 1)) == middle / low


def test_another_number_of_features_is_refused() -> None:
    with pytest.raises(InputError, match="2 features"):
        SumInPlace().fit(X[:, :2], TRUE)
