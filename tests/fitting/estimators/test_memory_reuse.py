"""Which factors the models tell apart, and which form predicts a model that was left out better."""

from __future__ import annotations

import numpy as np
import pytest
from tests.fitting.estimators.examples.memory_reuse import CONSTANT, FACTORS, X

from calib.fitting.estimators.memory_reuse import LAYOUTS, SIMPLE, ReuseLaw, layouts_told_apart
from calib.foundation.errors import InputError


def test_gamma_is_that_of_the_paper_for_one_model() -> None:
    law = ReuseLaw().fit([[6e6, 3e6, 1e6]], [4e6])
    assert law.gamma_ == pytest.approx(0.4)
    assert law.parts_ == SIMPLE and law.chosen_ == "simple"
    assert np.isnan(law.simple_.held_out_error)
    low, high = law.predict_interval([[6e6, 3e6, 1e6]])
    assert law.gamma_low_ == law.gamma_ == law.gamma_high_, "nothing differs from it"
    assert low[0] < 0.4e6 * 2 and high[0] > 1e7, "one model says nothing of others"


def test_gamma_has_the_least_relative_errors() -> None:
    """sum (1 - gamma n/y)^2 is least at sum(n/y) / sum((n/y)^2)."""
    naive, peak = X.sum(axis=1), CONSTANT + X @ FACTORS
    law = ReuseLaw().fit(X, peak)
    ratio = naive / peak
    assert law.gamma_ == pytest.approx(ratio.sum() / (ratio**2).sum())
    assert law.simple_.error == pytest.approx(np.mean(np.abs(law.gamma_ * ratio - 1)))


@pytest.mark.parametrize(
    ("models", "finest"), [(1, None), (2, None), (3, 2), (4, 1), (5, 0), (12, 0)]
)
def test_fewer_models_tell_fewer_factors(models: int, finest: int | None) -> None:
    """As many points as factors must be left when one is out. Index of LAYOUTS; coarse ones first."""
    told = layouts_told_apart(X[:models], [str(n) for n in range(models)])
    assert told == ([SIMPLE] if finest is None else list(LAYOUTS[2::-1][: 3 - finest]))
    assert ReuseLaw().fit(X[:models], CONSTANT + X[:models] @ FACTORS).parts_ in told


def test_one_optimizer_shares_its_factor_with_the_weights() -> None:
    """With momentum the optimizer is always half of weights and gradients: nothing tells them apart."""
    x = X.copy()
    x[:, 2] = x[:, 1] / 2
    law = ReuseLaw().fit(x, CONSTANT + x @ np.array([0.3, 0.9, 0.9]))
    assert law.parts_ == LAYOUTS[1]
    assert (law.weights_, law.optimizer_) == pytest.approx((0.9, 0.9))
    assert law.constant_bytes_ == pytest.approx(CONSTANT)


def test_batches_of_one_model_are_left_out_together() -> None:
    """Two batches of three models: with a model out, four points are left."""
    x = np.concatenate([X[:3], X[:3] * [2.0, 1.0, 1.0]])
    y = CONSTANT + x @ FACTORS
    names = ["a", "b", "c"] * 2
    assert layouts_told_apart(x, names)[-1] == LAYOUTS[0]
    assert layouts_told_apart(x, ["a", "a", "b"] * 2)[-1] == LAYOUTS[2], "two points are left"
    law = ReuseLaw().fit(x, y, names=names)
    assert law.n_models_ == 3
    expected = []
    for name in "abc":
        out = np.array(names) == name
        ratio = x[~out].sum(axis=1) / y[~out]
        gamma = ratio.sum() / (ratio**2).sum()
        expected += np.abs(gamma * x[out].sum(axis=1) / y[out] - 1).tolist()
    assert law.simple_.held_out_error == pytest.approx(np.mean(expected))


def test_the_form_that_predicts_left_out_models_is_chosen() -> None:
    refined = ReuseLaw().fit(X, CONSTANT + X @ FACTORS)
    assert refined.chosen_ == "refined"
    assert refined.predict(X) == pytest.approx(CONSTANT + X @ FACTORS)
    assert refined.refined_.error < 1e-9 < refined.simple_.error
    # of four models whose factors are noise, either may predict the fourth from three better
    chosen = set()
    for seed in range(10):
        noise = 0.2 * np.random.default_rng(seed).standard_normal(4)
        law = ReuseLaw().fit(X[:4], 0.4 * X[:4].sum(axis=1) * (1 + noise))
        better = law.refined_.held_out_error < law.simple_.held_out_error
        assert law.chosen_ == ("refined" if better else "simple")
        chosen.add(law.chosen_)
    assert chosen == {"simple", "refined"}


def test_models_that_differ_are_in_the_interval_of_gamma() -> None:
    """Peaks of one model do not vary at all; the models do."""
    x = np.repeat(X[:3], 6, axis=0)
    gamma = np.repeat([0.25, 0.39, 0.40], 6)
    law = ReuseLaw().fit(x, gamma * x.sum(axis=1))
    assert law.gamma_low_ < 0.25 and law.gamma_high_ > 0.40


def test_few_models_allow_all_that_their_gammas_do() -> None:
    """Lord's margin of two gammas is much more than their ratio, by which either is off."""
    law = ReuseLaw().fit(X[:2], X[:2].sum(axis=1) * [0.3, 0.4])
    assert law.error_factor_ == pytest.approx(4 / 3)
    (low,), (high,) = law.predict_interval(X[:1])
    assert high == pytest.approx(law.gamma_high_ * X[0].sum()) and high > 2 * law.predict(X[:1])[0]
    assert low == pytest.approx(law.gamma_low_ * X[0].sum(), abs=1.0)


def test_batches_of_one_model_are_in_its_interval() -> None:
    law = ReuseLaw().fit(X[:3], X[:3].sum(axis=1) * [0.2, 0.3, 0.4], names=["a"] * 3)
    assert law.gamma_low_ < 0.2 and law.gamma_high_ > 0.4
    assert np.isnan(law.simple_.held_out_error) and law.chosen_ == "simple"


def test_rows_that_cannot_be() -> None:
    with pytest.raises(InputError, match="activations, weights and optimizer"):
        ReuseLaw().fit(X[:, :2], X.sum(axis=1))
    with pytest.raises(InputError, match="activations, weights and optimizer"):
        ReuseLaw().fit([[0.0, 0.0, 0.0]], [1.0])
    with pytest.raises(InputError, match="2 names for 1 rows"):
        ReuseLaw().fit(X[:1], [1.0], names=["a", "b"])
