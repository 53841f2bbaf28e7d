"""What is special to pieces: borders, falls, outliers, gaps, and how often intervals cover."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from benchmarks.coverage import Coverage, Design, coverage_of
from benchmarks.sweeps import BORDERS, INTERCEPTS, NOISES, SLOPES, made_law, made_sizes
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from scipy.stats import t as student

from calib.fitting.estimators.collectives.segmented_hockney import FLOOR, SegmentedHockney
from calib.foundation.errors import InputError

SIZES = made_sizes(24)
TRUE = made_law(SIZES)
# the most steps of log2 between borders that one grid step allows
STEP = np.log2(SIZES[-1] / SIZES[0]) / (len(SIZES) - 1)


def fit(seconds: np.ndarray, sizes: np.ndarray = SIZES, falls: bool = False) -> SegmentedHockney:
    return SegmentedHockney(falls=falls, n_bootstraps=20).fit(sizes, seconds)


def fine(sizes: np.ndarray) -> np.ndarray:
    """A grid finer than the sizes that goes two decades beyond them, and the sizes."""
    grid = np.geomspace(sizes[0] / 100, sizes[-1] * 100, 400)
    result: np.ndarray = np.union1d(grid, sizes)
    return result


def law_on(model: SegmentedHockney, sizes: np.ndarray) -> np.ndarray:
    """Seconds without the warning that a size is beyond the range."""
    result: np.ndarray = model._seconds(np.asarray(sizes, dtype=float)[:, None])
    return result


@pytest.mark.parametrize("n", [24, 47, 200])
def test_known_pieces_come_back(n: int) -> None:
    """More than 64 sizes take the way over a grid of cuts, which is then refined."""
    sizes = made_sizes(n)
    model = fit(made_law(sizes), sizes)
    assert model.intercepts_ == pytest.approx(INTERCEPTS, rel=1e-6)
    assert model.slopes_ == pytest.approx(SLOPES, rel=1e-6)
    step = np.log2(sizes[-1] / sizes[0]) / (len(sizes) - 1)
    assert np.abs(np.log2(model.borders_ / BORDERS)).max() <= step
    assert not model.continuous_.any()
    assert model.mean_relative_error_ < 1e-9 and model.error_factor_ == pytest.approx(1.0)


def test_where_two_lines_cross_the_law_is_continuous() -> None:
    """Closed form: 5 us + 0.2 ns/B and 25 us + 0.1 ns/B cross at 200,000 B."""
    sizes = 2.0 ** np.arange(10, 25)
    model = fit(np.minimum(5e-6 + 2e-10 * sizes, 25e-6 + 1e-10 * sizes), sizes)
    assert model.borders_ == pytest.approx([2e5])
    assert model.continuous_.tolist() == [True]
    left, right = law_on(model, [2e5 * (1 - 1e-9), 2e5 * (1 + 1e-9)])
    assert left == pytest.approx(right, rel=1e-8) and left == pytest.approx(45e-6)


def test_between_two_pieces_it_goes_straight_in_log_log() -> None:
    model = fit(TRUE)
    for k, border in enumerate(model.borders_):
        low, high = model.to_[k], model.from_[k + 1]
        assert low < border < high and border == pytest.approx(np.sqrt(low * high))
        ends = law_on(model, np.array([low, high]))
        assert law_on(model, [border]) == pytest.approx(np.sqrt(ends[0] * ends[1]))


@st.composite
def sweeps(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Any sizes from 1 B to 64 GiB and any times from 1 ns to 1000 s."""
    sizes = draw(st.lists(st.integers(1, 2**36), min_size=1, max_size=14, unique=True))
    logs = draw(st.lists(st.floats(-9, 3), min_size=len(sizes), max_size=len(sizes)))
    return np.sort(np.array(sizes, dtype=float)), 10.0 ** np.array(logs)


@settings(max_examples=60)
@given(sweeps())
def test_the_law_never_falls(sweep: tuple[np.ndarray, np.ndarray]) -> None:
    """On any data, in the gaps and beyond; and it is positive where something was measured."""
    sizes, seconds = sweep
    law = law_on(fit(seconds, sizes), fine(sizes))
    assert np.isfinite(law).all()
    assert (np.diff(law) >= -1e-9 * law[:-1]).all()
    assert (law[fine(sizes) >= sizes[0]] > 0).all()


@settings(max_examples=30)
@given(sweeps())
def test_with_falls_it_is_positive_and_holds_its_interval(
    sweep: tuple[np.ndarray, np.ndarray],
) -> None:
    sizes, seconds = sweep
    model = fit(seconds, sizes, falls=True)
    low, high = model.predict_interval(sizes)
    value = model.predict(sizes)
    assert (value > 0).all()
    assert (low <= value * (1 + 1e-9)).all() and (value <= high * (1 + 1e-9)).all()


def test_a_protocol_that_is_faster_above_a_border_falls() -> None:
    """As a V100's MPI does: 117 us for 128 KiB, 62 us for 256 KiB (docs/fitting.md)."""
    sizes = 2.0 ** np.arange(3, 25)
    slow, fast = 5e-6 + 9e-10 * sizes, 40e-6 + 9e-11 * sizes
    seconds = np.where(sizes < 2.0**18, slow, fast)
    falling = fit(seconds, sizes, falls=True)
    assert falling.predict(sizes) == pytest.approx(seconds, rel=1e-6)
    assert 2.0**17 < falling.borders_[0] < 2.0**18
    monotone = law_on(fit(seconds, sizes), fine(sizes))
    assert (np.diff(monotone) >= -1e-9 * monotone[:-1]).all()


def test_a_fall_within_noise_is_none() -> None:
    """Level times with 3% noise: no border, and so nothing falls."""
    generator = np.random.default_rng(3)
    model = fit(10e-6 * (1 + 0.03 * generator.standard_normal(len(SIZES))), falls=True)
    assert (np.diff(law_on(model, SIZES)) >= 0).all()


@pytest.mark.parametrize("n", [24, 47])
@pytest.mark.parametrize("falls", [False, True])
def test_a_planted_outlier_moves_no_other_size(n: int, falls: bool) -> None:
    """The bar of the issue: 20 times too slow, nothing else moves by over 5%; here at every size."""
    sizes = made_sizes(n)
    true = made_law(sizes)
    for index in range(n):
        planted = true.copy()
        planted[index] *= 20
        model = fit(planted, sizes, falls)
        others = np.arange(n) != index
        assert law_on(model, sizes)[others] == pytest.approx(true[others], rel=0.05), index
        assert model.outliers_.tolist() == [sizes[index]]


def test_several_outliers_are_named() -> None:
    planted = TRUE.copy()
    planted[[4, 5, 15]] *= [20, 8, 50]
    model = fit(planted)
    assert model.outliers_.tolist() == SIZES[[4, 5, 15]].tolist()
    others = np.isin(SIZES, model.outliers_, invert=True)
    assert law_on(model, SIZES)[others] == pytest.approx(TRUE[others], rel=0.05)


def test_slow_repetitions_hardly_matter() -> None:
    """2 of 10 repetitions ten times too slow: the median is the 62.5% quantile of the others."""
    generator = np.random.default_rng(0)
    y = np.repeat(TRUE, 10) * (1 + 0.01 * generator.standard_normal(10 * len(TRUE)))
    y.reshape(-1, 10)[:, :2] *= 10
    model = fit(y, np.repeat(SIZES, 10))
    assert model.predict(SIZES) == pytest.approx(TRUE, rel=0.02)


def test_one_size_and_two() -> None:
    one = fit(np.array([3e-6]), np.array([1024.0]))
    assert law_on(one, [1.0, 1024.0, 1e9]) == pytest.approx([3e-6] * 3)
    assert one.runner_up_ is None and len(one.borders_) == 0
    two = fit(np.array([3e-6, 4e-6]), np.array([1024.0, 2048.0]))
    assert law_on(two, [1024.0, 1536.0, 2048.0]) == pytest.approx([3e-6, 3.5e-6, 4e-6])
    down = fit(np.array([4e-6, 3e-6]), np.array([1024.0, 2048.0]))
    assert down.slopes_.tolist() == [0.0] and 3e-6 <= down.intercepts_[0] <= 4e-6


def test_one_size_many_times() -> None:
    y = np.array([1.0, 2.0, 3.0, 4.0, 50.0]) * 1e-6
    model = fit(y, np.full(5, 64.0))
    assert model.predict([64.0]) == pytest.approx(3e-6)
    low, high = model.predict_interval([64.0])
    assert low[0] < 3e-6 < high[0]


def test_from_four_bytes_to_64_gib() -> None:
    sizes = 4.0 * 2.0 ** np.arange(35)
    true = np.where(sizes < 2**20, 3e-6 + 1e-10 * sizes, 9e-5 + 4e-11 * sizes)
    assert fit(true, sizes).predict(sizes) == pytest.approx(true, rel=1e-6)


def test_a_thousand_sizes_with_noise() -> None:
    sizes = made_sizes(1000)
    generator = np.random.default_rng(0)
    model = fit(made_law(sizes) * (1 + 0.02 * generator.standard_normal(len(sizes))), sizes)
    assert len(model.pieces_) == 3
    assert model.slopes_ == pytest.approx(SLOPES, rel=0.02)
    assert np.abs(np.log2(model.borders_ / BORDERS)).max() < 0.2


def test_at_most_so_many_pieces() -> None:
    assert len(SegmentedHockney(max_pieces=2).fit(SIZES, TRUE).pieces_) == 2
    with pytest.raises(InputError, match="max_pieces"):
        SegmentedHockney(max_pieces=0).fit(SIZES, TRUE)
    with pytest.raises(InputError, match="bytes, over 0"):
        fit(TRUE, np.append(0.0, SIZES[1:]))


def test_the_runner_up_is_worse() -> None:
    model = fit(TRUE * (1 + 0.03 * np.random.default_rng(1).standard_normal(len(TRUE))))
    assert model.runner_up_ is not None
    pieces, criterion = model.runner_up_
    assert pieces != len(model.pieces_) and criterion >= model.criterion_


def test_launches_that_differ_widen_the_interval() -> None:
    """Three launches, one of them 30% slower: the interval holds it; alike, it is narrow."""
    generator = np.random.default_rng(2)
    x, launch = np.repeat(SIZES, 30), np.tile(np.repeat([0, 1, 2], 10), len(SIZES))
    y = np.repeat(TRUE, 30) * (1 + 0.02 * generator.standard_normal(30 * len(SIZES)))
    alike = SegmentedHockney().fit(x, y, groups=launch)
    apart = SegmentedHockney().fit(x, np.where(launch == 1, 1.3, 1.0) * y, groups=launch)
    low, high = apart.predict_interval(SIZES)
    assert (high > 1.29 * TRUE).all() and (low < TRUE).all()
    narrow_low, narrow_high = alike.predict_interval(SIZES)
    assert np.median((narrow_high - narrow_low) / TRUE) < 0.03 < np.median((high - low) / TRUE)


def test_residuals_are_drawn_as_wide_as_the_freedom_left_says() -> None:
    """Closed form: one line through 8 sizes leaves 6, and Student's t; FLOOR is added in squares."""
    sizes = 2.0 ** np.arange(10, 18)
    seconds = (5e-6 + 1e-9 * sizes) * (1 + 0.05 * np.array([1, -1, -1, 1, 1, -1, -1, 1]))
    model = SegmentedHockney(max_pieces=1, n_bootstraps=3000).fit(sizes, seconds)
    law = model.predict(sizes)
    residual = np.mean((seconds / law - 1) ** 2)
    wider = 8 / 6 * (student.ppf(0.975, 6) / norm.ppf(0.975)) ** 2
    drawn = np.mean((model.resampled_[-1] / law - 1) ** 2)
    assert drawn == pytest.approx(wider * residual + FLOOR**2, rel=0.03)


# coverage: the bar of the issue is 90 to 99% over 500 seeds (python -m benchmarks.fitting coverage)

SEEDS = 30
# four standard errors below 95%: of a size, and of three pieces whose numbers are independent
LEAST_OF_ONE, LEAST_OF_THREE = 0.95 - 4 * np.sqrt(0.95 * 0.05 / (np.array([1, 3]) * SEEDS))
SHORT = [
    Design(24, *rows, noise) for rows, noise in itertools.product([(3, 20), (1, 20)], NOISES)
] + [Design(47, 1, 1, NOISES[1])]


@pytest.fixture(scope="module")
def covered() -> list[Coverage]:
    return [coverage_of(design, SEEDS) for design in SHORT]


@pytest.mark.parametrize("index", range(len(SHORT)), ids=[design.name for design in SHORT])
def test_intervals_cover_slopes_intercepts_and_the_law(covered: list[Coverage], index: int) -> None:
    found = covered[index]
    for part in (found.intercepts, found.slopes, found.law):
        assert part.mean() >= LEAST_OF_THREE
    assert (found.law.mean(axis=0) >= LEAST_OF_ONE).all()


def test_intervals_are_not_too_wide(covered: list[Coverage]) -> None:
    """Of all designs and parameters together: no more than 99% of the intervals hold the truth."""
    parts = [np.concatenate([c.intercepts.ravel(), c.slopes.ravel()]) for c in covered]
    share = np.concatenate(parts).mean()
    assert 0.90 <= share <= 0.99


def test_borders_are_within_a_step(covered: list[Coverage]) -> None:
    """With 60 repetitions of each size. (Of one repetition each, 5% of the sizes are outliers.)"""
    for found, design in zip(covered, SHORT, strict=True):
        if design.repetitions > 1:
            assert found.borders.mean() == 1.0
