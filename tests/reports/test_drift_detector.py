"""calib.reports.drift.detector: planted steps, outliers, gaps, and how often it is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from calib.reports.drift.detector import RULES, StepSettings, watch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

NOISE = 0.005


def quiet(n: int, seed: int = 0, noise: float = NOISE) -> Floats:
    return noise * np.random.default_rng(seed).standard_normal(n)


def with_step(at: int = 100, size: float = 0.05, n: int = 200, seed: int = 0) -> Floats:
    x = quiet(n, seed)
    x[at:] += size
    return x


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("sign", [1, -1])
def test_a_step_of_five_percent_is_found_on_its_third_night(seed: int, sign: int) -> None:
    (step,) = watch(with_step(size=0.05 * sign, seed=seed), 64).steps
    assert abs(step.first - 100) <= 1 and step.seen == 102
    assert step.low < 0.05 * sign < step.high or abs(step.change - 0.05 * sign) < 0.003
    assert abs(step.change - 0.05 * sign) < 4 * NOISE * np.sqrt(1 / 90 + 1 / 90)
    assert step.noise == pytest.approx(NOISE, rel=0.4) and not step.undone


def test_the_first_night_of_a_clear_step_is_exact() -> None:
    firsts = [watch(with_step(at, 0.1), 64).steps[0].first for at in range(60, 75)]
    assert firsts == list(range(60, 75))


def test_the_interval_of_a_change_holds_it() -> None:
    """95% of 80: the binomial gives 71 to 80 with 99.5%."""
    steps = [watch(with_step(40, 0.04, 70, seed), 1).steps[0] for seed in range(80)]
    held = sum(step.low <= 0.04 <= step.high for step in steps)
    assert held >= stats.binom.ppf(0.0025, 80, 0.95)
    assert np.mean([step.high - step.low for step in steps]) < 8 * NOISE * np.sqrt(2 / 30)


@pytest.mark.parametrize("size", [0.1, 0.3, -0.3, 3.0])
def test_one_night_or_two_that_are_out_are_no_step(size: float) -> None:
    for seed, at in ((1, 40), (2, 90), (3, 198), (4, 199)):
        x = quiet(200, seed)
        x[at : at + 2] += size
        assert watch(x, 1).steps == []
        x[60] += size
        assert watch(x, 1).steps == []


def test_outliers_beside_a_step_do_not_hide_it() -> None:
    x = with_step()
    x[97] += 0.3
    x[104] -= 0.3
    (step,) = watch(x, 64).steps
    assert (step.first, step.seen) == (100, 102)
    assert step.change == pytest.approx(0.05, abs=0.004)


def test_a_night_that_is_out_within_the_first_three_costs_some_more() -> None:
    x = with_step()
    x[101] -= 0.3
    (step,) = watch(x, 64).steps
    assert step.first == 100 and 102 < step.seen <= 105


def test_a_small_step_is_found_later() -> None:
    for seed in range(5):
        x = quiet(200, seed, 0.01)
        x[100:] += 0.03
        (step,) = watch(x, 8).steps
        assert abs(step.first - 100) <= 4 and 102 <= step.seen <= 116


def test_changes_that_nobody_acts_on_are_none() -> None:
    x = quiet(200, noise=0.001)
    x[100:] += 0.015
    assert watch(x, 1).steps == []
    (step,) = watch(x, 1, StepSettings(least_change=0.01)).steps
    assert step.first == 100
    # a slow change of 4% over the year moves the level with it
    assert watch(quiet(365, noise=0.003) + np.linspace(0, 0.04, 365), 1).steps == []


def test_several_steps_are_all_found() -> None:
    x = quiet(300)
    for at, size in ((60, 0.05), (75, 0.06), (150, -0.2), (230, 0.04)):
        x[at:] += size
    steps = watch(x, 64).steps
    assert [step.first for step in steps] == [60, 75, 150, 230]
    np.testing.assert_allclose(
        [step.change for step in steps], [0.05, 0.06, -0.2, 0.04], atol=0.006
    )
    assert not any(step.undone for step in steps)


def test_a_level_that_comes_back_undoes_what_led_away() -> None:
    x = quiet(300)
    x[60:] += 0.03  # stays
    x[100:160] += 0.05
    x[130:160] += 0.04
    steps = watch(x, 64).steps
    assert [(step.first, step.undone) for step in steps] == [
        (60, False),
        (100, True),
        (130, True),
        (160, True),
    ]


def test_a_return_from_what_was_accepted_is_a_step() -> None:
    x = quiet(200)
    x[60:140] -= 0.06
    assert [step.undone for step in watch(x, 64).steps] == [True, True]
    assert [step.undone for step in watch(x, 64, accepted=[60]).steps] == [False, False]
    assert [step.undone for step in watch(x, 64, accepted=[50]).steps] == [True, True]
    # what is accepted is what a later step may come back to
    y = quiet(200)
    y[60:] -= 0.06
    y[100:140] += 0.1
    steps = watch(y, 64, accepted=[60]).steps
    assert [(step.first, step.undone) for step in steps] == [(60, False), (100, True), (140, True)]


def test_a_level_is_back_within_its_noise() -> None:
    """3% off, of six nights that scatter by 3%: 2.6 standard errors are 3.5%."""
    x = quiet(146, noise=0.03)
    x[100:140] += 0.4
    x[140:] += 0.03 - x[140:].mean()
    assert [step.undone for step in watch(x, 1).steps] == [True, True]
    x[140:] += 0.05
    assert [step.undone for step in watch(x, 1).steps] == [False, False]


def test_a_change_is_that_to_the_nights_after_it() -> None:
    x = with_step(100, 0.05, 365)
    x[100:] += np.linspace(0, 0.04, 265)
    (step,) = watch(x, 64).steps
    assert step.change == pytest.approx(0.05 + 0.04 * 45 / 265, abs=0.003)


@pytest.mark.parametrize("seed", range(4))
def test_what_was_found_stays_found(seed: int) -> None:
    x = quiet(160, seed, 0.01)
    x[50:] += 0.06
    x[90:95] += 0.2
    x[120:] -= 0.05
    whole = [(step.first, step.seen) for step in watch(x, 8).steps]
    assert len(whole) >= 3
    for n in range(20, 160, 7):
        found = [(step.first, step.seen) for step in watch(x[:n], 8).steps]
        assert found == [step for step in whole if step[1] < n]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.floats(-3, 3), st.sampled_from([-0.08, 0.04, 0.1]))
def test_a_constant_changes_nothing_and_the_sign_only_signs(
    seed: int, constant: float, size: float
) -> None:
    x = with_step(40, size, 80, seed)
    steps, moved, mirrored = (watch(y, 8).steps for y in (x, x + constant, -x))
    assert len(steps) >= 1
    for one, two, three in zip(steps, moved, mirrored, strict=True):
        assert (one.first, one.seen) == (two.first, two.seen) == (three.first, three.seen)
        assert one.change == pytest.approx(two.change, abs=1e-9)
        assert one.change == pytest.approx(-three.change, abs=1e-12)
        assert (one.low, one.high) == pytest.approx((-three.high, -three.low), abs=1e-12)


def test_a_series_without_noise_is_judged() -> None:
    x = np.zeros(40)
    assert watch(x).steps == []
    x[25:] = 0.021
    (step,) = watch(x).steps
    assert (step.first, step.seen) == (25, 27)
    assert step.change == pytest.approx(0.021) and step.low == step.high


def test_short_series_are_not_judged_and_say_so() -> None:
    assert watch([]).why == "0 nights; it takes 13"
    short = watch(with_step(3, 0.5, 12), 1)
    assert short.why == "12 nights; it takes 13" and short.sensitivity is None
    fresh = watch(with_step(100, 0.1, 104), 1)
    assert fresh.why == "4 nights since its last step; it takes 8" and fresh.sensitivity is None
    assert len(fresh.steps) == 1
    with pytest.raises(ValueError, match="finite"):
        watch([0.0, float("nan")])


def test_few_nights_are_judged_with_care() -> None:
    means = [np.mean([watch(quiet(n, s), 8).sensitivity for s in range(20)]) for n in (13, 30, 100)]
    assert means[0] > 1.5 * means[1] > 1.8 * means[2]


def test_a_fixed_baseline_sees_what_creeps() -> None:
    x = quiet(300, noise=0.003)
    x[60:] += np.minimum(np.arange(240) * 0.0005, 0.06)
    assert watch(x, 8).steps == []
    steps = watch(x, 8, baseline=(0, 59)).steps
    assert steps and 60 < steps[0].first < 110


def test_against_a_fixed_baseline_changes_are_from_it() -> None:
    x = quiet(300)
    x[:40] += 0.5  # is not judged
    x[100:] += 0.05
    x[160:] += 0.04
    x[220:] -= 0.09
    steps = watch(x, 8, baseline=(40, 79)).steps
    assert [step.first for step in steps] == [100, 160, 220]
    np.testing.assert_allclose([step.change for step in steps], [0.05, 0.09, 0.0], atol=0.004)
    assert all(step.undone for step in steps)


def test_one_night_may_be_the_baseline() -> None:
    x = with_step(100, 0.08)
    x[20] = 0.0
    (step,) = watch(x, 8, baseline=(20, 20)).steps
    assert step.first == 100 and step.change == pytest.approx(0.08, abs=0.01)


def test_after_a_return_to_a_fixed_baseline_creep_is_seen_again() -> None:
    x = quiet(400, noise=0.003)
    x[60:80] += 0.1
    x[120:] += np.minimum(np.arange(280) * 0.0005, 0.06)
    steps = watch(x, 8, baseline=(0, 59)).steps
    assert [(step.first, step.undone) for step in steps[:2]] == [(60, True), (80, True)]
    assert len(steps) >= 3 and 120 < steps[2].first < 180


def test_slow_changes_may_move_the_level() -> None:
    """By 0.1%, ten times the noise: less than `creep` is no step whatever the rest says."""
    x = quiet(200, noise=0.0001)
    x[100:] += 0.001
    assert watch(x, 8, StepSettings(least_change=0.0)).steps == []
    assert watch(x, 8, StepSettings(least_change=0.0, creep=0.0)).steps[0].first == 100


def test_where_nights_are_often_out_three_in_a_row_are_no_step() -> None:
    x = quiet(200)
    x[150:153] += 0.3
    assert [step.first for step in watch(x, 64).steps] == [150, 153]
    x[30:150:30] += 0.3
    assert watch(x, 64).steps == []
    # a step that stays is found on its fourth night then
    x[150:153] -= 0.3
    x[170:] += 0.05
    (step,) = watch(x, 64).steps
    assert (step.first, step.seen) == (170, 173)


def kinds(random: np.random.Generator) -> dict[str, Floats]:
    shocks = random.standard_normal(365)
    hanging = np.empty(365)
    hanging[0] = shocks[0]
    for night in range(1, 365):
        hanging[night] = 0.6 * hanging[night - 1] + 0.8 * shocks[night]
    out = 30.0 * (random.random(365) < 0.01) * random.choice([-1, 1], 365)
    return {
        "normal": random.standard_normal(365),
        "heavy": random.standard_t(3, 365) / np.sqrt(3),
        "hanging": hanging,
        "outliers": random.standard_normal(365) + out,
        "gaps": random.standard_normal(365)[random.random(365) > 0.1],
    }


def test_years_of_noise_have_no_alarm() -> None:
    """1% for a year of one series: of 300 years 3 are expected at most, and 9 or more 0.4%."""
    found = 0
    for seed in range(60):
        found += sum(
            bool(watch(0.01 * x, 1).steps) for x in kinds(np.random.default_rng(seed)).values()
        )
    assert found <= 8


def test_the_sensitivity_is_found_in_nine_of_ten_cases() -> None:
    """Of 150 steps of that size: the binomial gives 125 to 144 with 99%."""
    random, found = np.random.default_rng(8), 0
    for _ in range(150):
        x = 0.01 * random.standard_normal(93)
        size = watch(x[:90], 8).sensitivity
        assert size is not None
        x[90:] += size
        found += any(step.seen >= 90 for step in watch(x, 8).steps)
    low, high = stats.binom.interval(0.99, 150, 0.9)
    assert low <= found <= high


def test_the_chances_of_the_rules_add_up() -> None:
    of = StepSettings()
    assert sum(rule.share for rule in RULES) == pytest.approx(1.0)
    total = sum(of.chance(rule, 64) for rule in RULES) * 2 * 365 * 64
    assert total == pytest.approx(0.01)
    assert of.chance(RULES[0], 33) == of.chance(RULES[0], 64) < of.chance(RULES[0], 32)
