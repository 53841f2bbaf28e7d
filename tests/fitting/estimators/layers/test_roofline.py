"""What is special to the roofline: forms, layers left out, neighbours, outliers, fresh pages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import least_squares
from scipy.stats import norm
from scipy.stats import t as student
from tests.fitting.estimators.examples.roofline import EXAMPLES, TRUTH, X

from calib.fitting.estimators.base import checked
from calib.fitting.estimators.layers import roofline
from calib.fitting.estimators.layers.price_law import (
    HUBER,
    PRICES,
    Terms,
    WorkForm,
    seconds,
    solve,
    with_call,
)
from calib.fitting.estimators.layers.roofline import Roofline
from calib.fitting.estimators.layers.roofline_choice import make_folds
from calib.fitting.parameters.file import WorkModel
from calib.fitting.parameters.work import UNPRICED_FACTOR, Work, price_of
from calib.fitting.regression import UNCHECKED_FACTOR
from calib.foundation.errors import InputError

SUM, MAX, NORM2 = (example.seconds for example in EXAMPLES)
FEW = {"bootstraps": 10}


def passing(items: list[float]) -> np.ndarray:
    """A pass over items: as many operations, 8 bytes each."""
    n = np.array(items)
    return np.column_stack([n, 8 * n, 0 * n, 4 * n, 0 * n])


@pytest.mark.parametrize("number", range(3))
def test_the_form_of_the_data_is_chosen(number: int) -> None:
    form = ("sum", "max", "norm2")[number]
    law = Roofline(**FEW).fit(X, EXAMPLES[number].seconds)
    assert law.form_ == form
    assert law.s_per_weight_byte_ == law.s_per_patch_byte_ == 0.0
    assert set(law.intervals_) >= set(name.removesuffix("_") for name in TRUTH)
    assert law.score_ < 1e-6 and law.error_factor_ == pytest.approx(1.0)
    assert not law.neighbours_.size
    others = {"sum": "max", "max": "norm2", "norm2": "max"}[form]
    assert law.runner_up_ and (law.runner_up_score_ < 1e-6 or others in law.runner_up_)


def test_weights_and_patches_have_prices_where_they_cost() -> None:
    t = 5e-6 + np.hypot(1e-11 * X[:, 0], 5e-10 * X[:, 2] + 1e-10 * X[:, 3]) + 4e-10 * X[:, 4]
    law = Roofline(**FEW).fit(X, t)
    assert law.form_ == "norm2"
    assert law.prices_ == pytest.approx(
        [5e-6, 1e-11, 0.0, 5e-10, 1e-10, 4e-10], rel=1e-6, abs=1e-20
    )


def test_the_prices_are_least_squares_of_log_seconds() -> None:
    """Independent: SciPy's trust region on the logs, of a pass whose 10% errors Huber's loss squares."""
    x = passing([2.0**i for i in range(4, 22, 2)])
    t = (4e-6 + 1e-10 * x[:, 1]) * np.exp(0.1 * np.sin(np.arange(len(x)) * 2.0))

    def fitted(kept: np.ndarray) -> np.ndarray:
        def errors(logs: np.ndarray) -> np.ndarray:
            call, price = np.exp(logs)
            return np.log((call + price * x[kept, 1]) / t[kept])

        return np.exp(least_squares(errors, np.log([4e-6, 1e-10]), xtol=1e-15, ftol=1e-15).x)

    law = Roofline(**FEW).fit(x, t)
    assert (law.call_s_, law.s_per_byte_) == pytest.approx(fitted(np.arange(len(x))), rel=1e-5)
    assert law.s_per_flop_ == 0.0  # operations and bytes are proportional: one price
    worst = 0.0
    for row in range(len(x)):
        call, price = fitted(np.delete(np.arange(len(x)), row))
        worst = max(worst, abs(float(np.log((call + price * x[row, 1]) / t[row]))))
    assert not law.neighbours_.size
    assert law.error_factor_ == pytest.approx(np.exp(worst), rel=1e-4)


def test_too_long_counts_as_too_short() -> None:
    """Four sizes 1.25 times as long and four 1.25 times as short as a price: the price."""
    x = with_call(passing([1e6 * 3**i for i in range(8)]))
    t = 1e-10 * x[:, 2] * np.array([1.25, 0.8] * 4)
    prices = solve(x, t, np.ones(8), Terms(("s_per_byte",)))
    assert prices[2] == pytest.approx(1e-10)


def test_one_odd_layer_moves_no_other() -> None:
    t = SUM.copy()
    t[7] *= 20.0
    law = Roofline(**FEW).fit(X, t)
    others = np.arange(len(X)) != 7
    assert law.predict(X[others]) == pytest.approx(SUM[others], rel=0.05)


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(0, 4), st.floats(1.0, 1e4))
def test_more_work_never_takes_less(seed: int, column: int, factor: float) -> None:
    """Whatever the times: all prices are at least 0, and the forms rise."""
    generator = np.random.default_rng(seed)
    x = with_call(X[generator.permutation(len(X))[:10]])
    t = np.exp(generator.uniform(-14, -4, 10))
    forms: tuple[WorkForm, ...] = ("sum", "norm2", "max")
    for form in forms:
        prices = solve(x, t, np.ones(10), Terms(PRICES, form))
        assert (prices >= 0).all()
        more = x.copy()
        more[:, 1 + column] *= factor
        before, after = (seconds(rows, prices, form) for rows in (x, more))
        assert (after >= before * (1 - 1e-12)).all()


def test_a_layer_is_left_out_at_all_batches() -> None:
    x = np.concatenate([X[:20], 2 * X[:20]])
    names = [f"layer {i}" for i in range(20)] * 2
    rows = checked(x, np.ones(len(x)), names=names)
    _, layer = np.unique(rows.names, return_inverse=True)
    assert layer.max() == 19
    of = {tuple(row): name for row, name in zip(x.tolist(), names, strict=True)}
    assert rows.names == [of[tuple(point)] for point in rows.points.tolist()]
    folds = make_folds(rows.points, layer)
    assert sum(held.sum() for _, held in folds.by_layer) == len(rows.points)
    for kept, held in [*folds.by_layer, *folds.largest]:
        assert (kept != held).all()
        assert not set(layer[kept]) & set(layer[held])
    with pytest.raises(InputError, match="3 names for 40 rows"):
        checked(x, np.ones(len(x)), names=names[:3])


def test_the_largest_are_left_out_together() -> None:
    points = passing([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0])
    ((kept, held),) = make_folds(points, np.arange(10)).largest  # by operations and by bytes alike
    assert points[held, 0].tolist() == [256.0, 512.0]
    assert kept.sum() == 8


def test_few_layers_are_checked_on_nothing() -> None:
    law = Roofline(**FEW).fit(X[:3], SUM[:3])
    assert law.error_factor_ == UNCHECKED_FACTOR
    one = Roofline(**FEW).fit(X[:1], SUM[:1])
    assert one.predict(X[:1]) == pytest.approx(SUM[:1])
    # two layers at many batches are no more than two
    x = np.concatenate([X[10:12] * b for b in (1, 2, 4, 8)])
    law = Roofline(**FEW).fit(x, 1e-6 + 1e-10 * x[:, 1], names=["a", "b"] * 4)
    assert law.error_factor_ == UNCHECKED_FACTOR


def test_neighbours_are_taken_where_layers_left_out_are_better_with_them() -> None:
    """A family of layers (by their reuse of the inputs) at a third of the speed."""
    reuse = X[:, 3] / X[:, 1]
    t = SUM * np.where(reuse > 1.0, 3.0, 1.0)
    law = Roofline(**FEW).fit(X, t)
    assert len(law.neighbours_) == len(X)
    plain = seconds(with_call(X), law.prices_, law.form_)
    with_them = law.predict(X)
    assert np.abs(np.log(with_them / t)).mean() < 0.5 * np.abs(np.log(plain / t)).mean()
    # and far from all of them the law stands alone
    far = np.array([[1e18, 1e3, 0.0, 1e3, 0.0]])
    with pytest.warns(UserWarning, match="outside"):
        assert law.predict(far) == pytest.approx(seconds(with_call(far), law.prices_, law.form_))


def test_the_oracle_says_the_same() -> None:
    """fitting/parameters/work.py in plain arithmetic, from the record."""
    for t in (MAX, NORM2, SUM * np.where(X[:, 3] > X[:, 1], 3.0, 1.0)):
        law = Roofline(**FEW).fit(X, t)
        record = WorkModel(
            kind="conv",
            direction="forward",
            active_ranks=1,
            form=law.form_,
            n_layers=len(X),
            neighbours=[tuple(row) for row in law.neighbours_.tolist()],
            reach=law.reach_,
            error_factor=law.error_factor_,
            max_flops=1.0,
            max_bytes=1.0,
            **law.coefficients_,
        )
        expected = [price_of(record, Work(*row)).seconds for row in X.tolist()]
        assert law.predict(X) == pytest.approx(expected, rel=1e-9)


def test_beyond_the_layers_the_interval_widens_by_decade() -> None:
    generator = np.random.default_rng(0)
    law = Roofline(**FEW).fit(X, SUM * np.exp(0.1 * generator.standard_normal(len(X))))
    widths = []
    for decades in (0, 1, 2):
        row = X[[-1]] * 10.0**decades
        low, high = law.predict_interval(row)
        widths.append(float(np.log(high / low)[0]))
    growth = np.log(law.growth_per_decade_)
    assert np.diff(widths) == pytest.approx([2 * growth] * 2, rel=0.2)
    assert law.growth_per_decade_ >= 1.5


@pytest.mark.parametrize("column", [0, 1, 2, 3])
def test_work_of_any_kind_outside_widens(column: int) -> None:
    law = Roofline(**FEW).fit(X, SUM)
    low, high = law.range_[:, column]
    rows = X[[7]].repeat(3, axis=0)
    rows[:, column] = [high, 100 * high, low / 100]
    ends = law.predict_interval(rows)
    middle = law._seconds(rows)
    more = law.growth_per_decade_**2
    assert (ends[1] / middle)[1:] == pytest.approx([more, more], rel=1e-3)
    assert (ends[1] / middle)[0] < 1.1


def test_few_layers_draw_wider_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed form, of two prices and 6 layers: n / (n - k), and Student's t over the normal."""
    x = passing([2.0**i for i in range(4, 22, 3)])
    t = (4e-6 + 1e-10 * x[:, 1]) * np.exp(0.02 * np.sin(np.arange(6) * 2.0))
    wide = Roofline(**FEW).fit(x, t)
    monkeypatch.setattr(roofline, "_few_layers", lambda layers, prices: 1.0)
    plain = Roofline(**FEW).fit(x, t)
    expected = 6 / 4 * student.ppf(0.975, 4) / norm.ppf(0.975)
    off, wider = (law._draws[:, [0, 2]] - law.prices_[[0, 2]] for law in (plain, wide))
    assert wider == pytest.approx(expected * off)


def test_fresh_pages_without_a_price_may_take_long() -> None:
    dry = X[:, 4] == 0
    law = Roofline(**FEW).fit(X[dry], SUM[dry])
    assert "s_per_fresh_byte" not in law.intervals_
    row = X[dry][[-1]]
    wet = row + np.array([0.0, 0.0, 0.0, 0.0, 4e6])
    (low, high), (wet_low, wet_high) = law.predict_interval(row), law.predict_interval(wet)
    assert wet_high == pytest.approx(UNPRICED_FACTOR * high)
    assert wet_low == pytest.approx(low)


def test_intervals_cover_the_prices() -> None:
    """Seeded: 4 prices in 40 samples of one launch; 5 sigma of a binomial at 95%."""
    covered, truth = 0, {name.removesuffix("_"): value for name, value in TRUTH.items()}
    for seed in range(40):
        generator = np.random.default_rng(seed)
        law = Roofline(seed=seed, bootstraps=100)
        law.fit(X, SUM * (1 + 0.02 * generator.standard_normal(len(X))))
        assert law.form_ == "sum"
        for name, value in truth.items():
            low, high = law.intervals_[name]
            covered += int(low <= value <= high)
    assert 0.95 * 160 - 5 * np.sqrt(160 * 0.95 * 0.05) <= covered


def test_launches_that_differ_widen_the_interval() -> None:
    x, launch = np.repeat(X, 2, axis=0), np.tile([0, 1], len(X))
    t = np.repeat(SUM, 2) * np.where(launch == 1, 1.3, 1.0)
    low, high = Roofline(**FEW).fit(x, t, groups=launch).predict_interval(X)
    assert (low <= SUM).all() and (high >= 1.3 * SUM).all()
    # a launch that lacks some layers is no reason to fail
    kept = (launch == 0) | (np.arange(len(x)) % 3 == 0)
    law = Roofline(**FEW).fit(x[kept], t[kept], groups=launch[kept])
    assert np.isfinite(law.predict(X)).all()


def test_another_number_of_features_is_refused() -> None:
    with pytest.raises(InputError, match="2 features"):
        Roofline().fit(X[:, :2], SUM)


def test_huber_is_between_squares_and_sizes() -> None:
    """One of three sizes 1000 times too long: the price is off by the slope of the loss, not by 10."""
    x = with_call(passing([1e6, 3e6, 9e6]))
    t = 1e-10 * x[:, 2] * np.array([1.0, 1.0, 1000.0])
    prices = solve(x, t, np.ones(3), Terms(("s_per_byte",)))
    # minimum of 2 e^2 / 2 + HUBER (log 1000 - e): e = HUBER / 2
    assert np.log(prices[2] / 1e-10) == pytest.approx(HUBER / 2, rel=1e-6)
