"""What is special to the contention estimator; the common rules are in the conformance suite."""

from __future__ import annotations

import numpy as np
import pytest
from tests.fitting.estimators.examples.contention import EXAMPLES, FULL, GROUPS, SIZES, STEPS

from calib.fitting.estimators.base import ExtrapolationWarning
from calib.fitting.estimators.collectives.contention import ContentionLaw
from calib.fitting.estimators.collectives.contention_laws import LAWS
from calib.foundation.errors import InputError

SATURATION, STEPPED = EXAMPLES


def times(contention: np.ndarray, starts: np.ndarray | float = 20e-6) -> np.ndarray:
    """Noiseless seconds of SIZES at every k of GROUPS, k by k."""
    start = np.broadcast_to(starts, GROUPS.shape)
    return np.concatenate([a + 1e-9 * c * SIZES for a, c in zip(start, contention, strict=True)])


def noisy(seconds: np.ndarray, repetitions: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(x, y): repetitions with 2% multiplicative noise, 5% of them up to 3 times as slow."""
    generator = np.random.default_rng([99, seed])
    x = np.repeat(SATURATION.x, repetitions, axis=0)
    y = np.repeat(seconds, repetitions) * (1 + 0.02 * generator.standard_normal(len(x)))
    late = generator.random(len(y)) < 0.05
    return x, y * np.where(late, 1 + 2 * generator.random(len(y)), 1.0)


def test_the_criterion_chooses_the_form_that_made_the_times() -> None:
    full = ContentionLaw().fit(SATURATION.x, SATURATION.seconds)
    steps = ContentionLaw().fit(STEPPED.x, STEPPED.seconds)
    assert (full.law_, full.capacity_) == ("saturation", pytest.approx(3.0))
    assert steps.law_ == "steps" and np.isnan(steps.capacity_)
    for model in (full, steps):
        assert set(LAWS) >= model.scores_.keys() >= {"none", "steps", "saturation"}
        assert model.scores_[model.runner_up_] >= model.scores_[model.law_]


def test_start_ups_of_their_own_where_they_differ() -> None:
    starts = np.array([20e-6, 30e-6, 60e-6, 90e-6])
    model = ContentionLaw().fit(SATURATION.x, times(FULL, starts))
    assert model.law_ == "saturation, own start-ups"
    assert model.intercepts_ == pytest.approx(starts)
    assert model.contention_ == pytest.approx(FULL)


def test_a_link_that_never_fills_shows_no_capacity() -> None:
    model = ContentionLaw().fit(SATURATION.x, times(np.ones(4)))
    assert model.law_ == "none" and np.isnan(model.capacity_)
    assert model.contention_ == pytest.approx(np.ones(4))
    assert model.contention(64.0)[0] == pytest.approx(1.0)


def test_noise_is_no_capacity() -> None:
    """Of 10 seeds without contention, none finds a link that is all but full with the most groups."""
    for seed in range(10):
        model = ContentionLaw(seed=seed).fit(*noisy(times(np.ones(4)), 5, seed))
        assert np.isnan(model.capacity_)
        assert 1.0 <= model.contention_interval_[-1, 0] < 1.02
        assert 1.0 < model.contention_interval_[-1, 1] < 1.1


def test_times_that_nothing_checks_are_not_sure() -> None:
    model = ContentionLaw().fit([[2**20, 1], [2**20, 4]], [1e-3, 2e-3])
    assert model.capacity_ == pytest.approx(2.0)
    assert model.contention_interval_[-1, 0] < 1.7 and model.contention_interval_[-1, 1] > 2.3


def test_a_fall_is_pooled_and_never_below_one() -> None:
    """Closed form: of one size, slopes (1, 0.9, 2, 1.6)/t are pooled with weights 1/t^2."""
    seconds = np.array([1.0, 0.9, 2.0, 1.6]) * 1e-3
    x = np.column_stack([np.full(4, 2**20), GROUPS])
    model = ContentionLaw(law="steps").fit(x, seconds)

    def pooled(a: float, b: float) -> float:
        return (1 / a + 1 / b) / (1 / a**2 + 1 / b**2)

    low, high = pooled(1.0, 0.9), pooled(2.0, 1.6)
    assert model.contention_ == pytest.approx([1, 1, high / low, high / low], rel=0.01)
    assert model.intercept_ == 0.0  # one size tells no start-up


def test_a_slow_size_moves_phi_little() -> None:
    seconds = times(STEPS)
    clean = ContentionLaw().fit(STEPPED.x, seconds).contention_
    for index in (4, 13, 30):
        planted = seconds.copy()
        planted[index] *= 20
        found = ContentionLaw().fit(STEPPED.x, planted).contention_
        assert found == pytest.approx(clean, rel=0.02)


def test_between_and_beyond_the_measured_groups() -> None:
    steps = ContentionLaw().fit(STEPPED.x, STEPPED.seconds)
    assert steps.contention([3.0, 6.0]) == pytest.approx([1.15, 2.6])
    assert steps.contention(10.0)[0] == pytest.approx(4.0 + 2 * (4.0 - 1.2) / 4)
    full = ContentionLaw().fit(SATURATION.x, SATURATION.seconds)
    assert full.contention([3.0, 6.0, 30.0]) == pytest.approx([1.0, 2.0, 10.0])


def test_beyond_the_groups_it_warns_and_holds_both_ends() -> None:
    """The link may be no fuller with 32 groups than with 8, or as full as 32 / 8 of it."""
    model = ContentionLaw().fit(STEPPED.x, STEPPED.seconds)
    at = np.array([[2.0**20, 8.0], [2.0**20, 32.0]])
    with pytest.warns(ExtrapolationWarning):
        model.predict(at)
    low, high = model.predict_interval(at)
    assert low[1] <= model.predict(at[:1])[0] * (1 + 1e-9)
    assert high[1] >= 4 * model.predict(at[:1])[0] * (1 - 1e-9)


def test_beyond_the_bytes_it_is_less_sure() -> None:
    """A law without noise is sure; by WIDER_PER_DOUBLING less for each doubling of the bytes."""
    model = ContentionLaw().fit(SATURATION.x, SATURATION.seconds)
    least, largest = model.range_[:, 0]
    for nbytes in (16 * (largest + 1) - 1, (least + 1) / 16 - 1):
        (low,), (high,) = model.predict_interval([[nbytes, 2.0]])
        middle = model._seconds(np.array([[nbytes, 2.0]]))[0]
        assert high / middle == pytest.approx(1.4, rel=1e-3) == middle / low


def test_what_repetitions_do_not_see_is_in_the_interval() -> None:
    """Times off by 10% that repeat to the digit: phi is as unsure as if each had been timed once."""
    noise = 1 + 0.1 * np.random.default_rng(3).standard_normal(len(STEPPED.x))
    once = ContentionLaw(law="steps").fit(STEPPED.x, STEPPED.seconds * noise)
    thrice = ContentionLaw(law="steps").fit(
        np.repeat(STEPPED.x, 3, axis=0), np.repeat(STEPPED.seconds * noise, 3)
    )
    widths = [np.diff(model.contention_interval_[1:])[:, 0] for model in (once, thrice)]
    assert (widths[0] > 0.02).all()
    assert widths[1] == pytest.approx(widths[0], rel=0.4)


@pytest.mark.parametrize("contention", [FULL, STEPS], ids=["saturation", "steps"])
def test_intervals_of_phi_cover(contention: np.ndarray) -> None:
    """40 seeds: at least 34 hold the truth (below 34 of 95% is a chance of 1 in 80)."""
    held = np.zeros(len(GROUPS))
    for seed in range(40):
        x, y = noisy(times(contention), 10, seed)
        ends = ContentionLaw(seed=seed).fit(x, y).contention_interval_
        held += (ends[:, 0] <= contention) & (contention <= ends[:, 1])
    assert (held >= 34).all()


def test_two_launches_that_differ_are_in_the_interval() -> None:
    x, y = noisy(times(FULL), 6, 0)
    launch = np.arange(len(y)) % 2
    y = np.where((launch == 1) & (x[:, 1] > 3), 1.2 * y, y)
    model = ContentionLaw().fit(x, y, groups=launch)
    low, high = model.contention_interval_[-1]
    assert low < 8 / 3 < 1.2 * 8 / 3 < high


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        ([[1024, 2], [2048, 2]], "1 group alone"),
        ([[1024, 1], [2048, 1.5]], "whole numbers"),
        ([[1024], [2048]], "bytes and groups"),
    ],
)
def test_what_it_refuses(x: list[list[float]], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        ContentionLaw().fit(x, [1.0, 2.0])


def test_times_that_do_not_rise_have_no_contention() -> None:
    x = [[m, k] for k in (1, 2) for m in (1024, 2048, 4096)]
    with pytest.raises(InputError, match="do not rise"):
        ContentionLaw().fit(x, [3.0, 2.0, 1.0] * 2)


def test_an_unknown_law() -> None:
    with pytest.raises(InputError, match="none of"):
        ContentionLaw(law="wishful").fit(SATURATION.x, SATURATION.seconds)
