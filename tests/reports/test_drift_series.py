"""calib.reports.drift.series: means of a night by hand, and points that come, go and are missing."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reports.drift_past import CHECKS, SHARES, night, past, point

from calib.reports.drift.detector import watch
from calib.reports.drift.series import exact_level, level, series_of
from calib.reports.history.records import Past, PastCheck

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


def test_series_are_of_strategies_and_of_what_is_checked() -> None:
    found = {one.name: (one.of, one.source, one.strategy) for one in series_of(past(12))}
    of_strategies = {
        name: value
        for s in ("data", "filter")
        for name, value in {
            f"accuracy of training, {s}": ("accuracy", "accuracy", s),
            f"forward and backward in training, {s}": ("kernels", "phase", s),
            f"communication in training, {s}": ("network", "phase", s),
            f"packing and update in training, {s}": ("memory", "phase", s),
            f"peak memory of training, {s}": ("memory", "peak", s),
            f"predicted time, {s}": ("oracle", "predicted", s),
        }.items()
    }
    assert found == {**of_strategies, **{what: (kind, "check", "") for kind, what, _ in CHECKS}}


def test_executions_have_series_of_their_own() -> None:
    """A slower kernel of bfloat16 does not hide among those of float32."""
    points = [
        point(n, name, "data", seconds, execution=name)
        for n in range(2)
        for name, seconds in (("float32", 1.0), ("bfloat16", 1.0 + n))
    ]
    by_name = {one.name: one for one in series_of(Past([night(0), night(1)], points))}
    assert by_name["accuracy of training, data"].values == pytest.approx([0.0, 0.0])
    assert by_name["accuracy of training, data, bfloat16"].values == pytest.approx([0.0, log(2.0)])


def test_values_are_means_of_logarithms() -> None:
    points = [
        point(n, work, "data", seconds, predicted)
        for n, a in enumerate((1.1, 1.3))
        for work, seconds, predicted in (("a", a, 1.0), ("b", 2.0, 4.0))
    ]
    by_name = {one.name: one for one in series_of(Past([night(0), night(1)], points))}
    accuracy = by_name["accuracy of training, data"]
    assert accuracy.nights == [0, 1]
    assert accuracy.values == pytest.approx([(log(a) + log(0.5)) / 2 for a in (1.1, 1.3)])
    exchange = by_name["communication in training, data"].values
    expected = [(log(0.2 * a) + log(0.2 * 2)) / 2 for a in (1.1, 1.3)]
    assert exchange == pytest.approx(expected)


def test_what_does_not_count_is_in_no_series() -> None:
    points = [point(n, "a", "data", 1.0) for n in range(3)]
    beside = [point(n, "b", "data", 5.0 * n + 1, oversubscribed=True) for n in range(3)]
    alone = [point(n, "c", "spatial", 1.0, oversubscribed=True) for n in range(3)]
    nights = [night(n) for n in range(3)]
    assert series_of(Past(nights, points + beside + alone)) == series_of(Past(nights, points))


def test_what_others_disturbed_has_no_time() -> None:
    """But its prediction and its memory are those of any night."""
    nights = [night(n) for n in range(3)]
    words = ("", "cores,slow", "slow")
    points = [point(n, "a", "data", 1.0 + n, disturbed=of) for n, of in enumerate(words)]
    found = {one.name: one for one in series_of(Past(nights, points))}
    assert list(found["accuracy of training, data"].nights) == [0, 2]
    assert list(found["communication in training, data"].nights) == [0, 2]
    assert list(found["peak memory of training, data"].nights) == [0, 1, 2]
    assert list(found["predicted time, data"].nights) == [0, 1, 2]
    assert "accuracy of training, data" not in {
        one.name for one in series_of(Past(nights, points[1:2]))
    }
    checks = [PastCheck(n, "memory", "pack", "a", 1.0, 2.0, of) for n, of in enumerate(words)]
    (one,) = series_of(Past(nights, [], checks))
    assert list(one.nights) == [0, 2]


def test_small_phases_and_none_make_no_series() -> None:
    phases = {"forward": (0.5, 0.96), "exchange": (0.1, 0.04), "pack": (0.0, 0.0)}
    points = [point(n, "a", "data", 1.0, phases=phases) for n in range(3)]
    points = [p._replace(memory_measured_bytes=None) for p in points]
    names = {one.name for one in series_of(Past([night(n) for n in range(3)], points))}
    assert names == {
        "accuracy of training, data",
        "forward and backward in training, data",
        "predicted time, data",
    }


def test_checks_do_not_follow_what_is_expected_of_them() -> None:
    checks = [PastCheck(n, "memory", "pack", "a", 1.0 + n, 2.0) for n in range(4)]
    (one,) = series_of(Past([night(n) for n in range(4)], [], checks))
    assert one.of == "memory" and np.ptp(one.values) < 1e-12


def test_the_same_thing_of_two_kinds_has_two_names() -> None:
    checks = [PastCheck(0, kind, "copy", "a", 1.0, 2.0) for kind in ("memory", "network")]
    assert [one.name for one in series_of(Past([night(0)], [], checks))] == [
        "copy, memory",
        "copy, network",
    ]


@settings(max_examples=8, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_within_a_night_does_not_matter(random: Random) -> None:
    one = past(8)
    points, checks = list(one.points), list(one.checks)
    random.shuffle(points)
    random.shuffle(checks)
    key = {s.name: s for s in series_of(one)}
    for series in series_of(replace(one, points=points, checks=checks)):
        assert series.nights == key[series.name].nights
        assert series.values == pytest.approx(key[series.name].values, abs=1e-12)


def made(n: int = 80, points: int = 4, noise: float = 0.004, seed: int = 2) -> Floats:
    """A grid of points whose levels are a factor e apart."""
    random = np.random.default_rng(seed)
    return np.arange(points) + noise * random.standard_normal((n, points))


def test_all_there_is_the_mean() -> None:
    grid = made()
    nights, values = level(range(80), grid)
    assert nights == list(range(80))
    np.testing.assert_allclose(values, grid.mean(axis=1), atol=1e-12)


def test_missing_points_do_not_move_the_level() -> None:
    """Points that lie beside one another as ever give the mean exactly, whoever is missing."""
    together = 0.01 * np.random.default_rng(3).standard_normal(120)
    grid = together[:, None] + np.array([0.0, 1.0, 5.0, -2.0])
    random = np.random.default_rng(4)
    holes = random.random(grid.shape) < 0.3
    holes[0] = False
    holes[holes.all(axis=1), 0] = False
    nights, values = level(range(120), np.where(holes, np.nan, grid))
    assert nights == list(range(120))
    np.testing.assert_allclose(values, grid.mean(axis=1), atol=1e-12)


@pytest.mark.parametrize("first", [0, 30, 50])
def test_a_point_that_is_missing_for_long_makes_no_step(first: int) -> None:
    grid = made(120)
    grid[first : first + 45, 3] = np.nan
    _, values = level(range(120), grid)
    assert watch(values, 8).steps == []
    assert np.ptp(values) < 0.02


def test_a_point_whose_own_level_changed_may_be_missing() -> None:
    """Its last nights tell where it lies: 20% higher than at first."""
    grid = made(120, 2)
    grid[40:, 1] += 0.2
    grid[80:90, 1] = np.nan
    _, values = level(range(120), grid)
    (step,) = watch(values, 8).steps
    assert step.first == 40 and step.change == pytest.approx(0.1, abs=0.004)


def test_a_new_point_joins_at_the_level_of_the_others_and_is_seen_then() -> None:
    grid = made(120)
    grid[:40, :2] = np.nan
    grid[80:] += 0.05
    _, values = level(range(120), grid)
    (step,) = watch(values, 8).steps
    assert step.first == 80 and step.change == pytest.approx(0.05, abs=0.004)
    grid[80:, 2:] = np.nan  # the first ones go, and the new ones tell the level
    nights, values = level(range(120), grid)
    assert nights == list(range(120))
    (step,) = watch(values, 8).steps
    assert step.first == 80 and step.change == pytest.approx(0.05, abs=0.006)


def test_a_point_that_comes_back_after_long_joins_anew() -> None:
    grid = made(120)
    grid[30:80, 3] = np.nan
    grid[80:, 3] += 0.3
    _, values = level(range(120), grid)
    assert watch(values, 8).steps == [] and np.ptp(values) < 0.02


def test_the_value_of_a_night_does_not_change_with_later_ones() -> None:
    grid = made(100)
    grid[np.random.default_rng(5).random(grid.shape) < 0.2] = np.nan
    grid[:30, 1] = np.nan
    nights, values = level(range(100), grid)
    for n in (1, 17, 50, 99):
        assert level(range(n), grid[:n]) == (
            [night for night in nights if night < n],
            values[: sum(night < n for night in nights)],
        )


def test_a_night_without_a_known_point_is_left_out() -> None:
    grid = np.array([[1.0, np.nan], [np.nan, 3.0], [1.5, 3.0]])
    assert level([4, 5, 9], grid) == ([4, 9], [1.0, 1.5])


def test_another_plan_goes_on_at_the_level_of_before() -> None:
    """By hand: the old points lie at 1 and 3, the new ones at 7 and 9; all rise by 0.5 on 30."""
    old, new = np.arange(60) < 20, np.arange(60) >= 20
    grid = np.where(np.stack([old, old, new, new], axis=1), [1.0, 3.0, 7.0, 9.0], np.nan)
    grid[30:] += 0.5
    nights, values = level(range(60), grid)
    # four nights without a known point are left out, and the fifth is known to be another plan
    assert nights == [*range(20), *range(24, 60)]
    np.testing.assert_allclose(values, [2.0] * 26 + [2.5] * 30)
    # a point of before that comes again joins; it is one of three then, and its own change a third
    grid[40:, 0] = 4.0
    grid[50:, 0] += 0.3
    nights, values = level(range(60), grid)
    np.testing.assert_allclose(values[26:], [2.5] * 20 + [2.6] * 10)


def plans(nights: int, *there: tuple[int, int, int, float]) -> Floats:
    """A grid of one level: (point, first, end, where it lies)."""
    grid = np.full((nights, 3), np.nan)
    for column, first, end, value in there:
        grid[first:end, column] = value
    return grid


def test_a_plan_that_comes_again_begins_anew() -> None:
    """What it was beside others, how far it had joined, or came now and then, is forgotten."""
    # the second point had joined the first; then they come again together, and it is missing once
    grid = plans(80, (0, 0, 30, 1.0), (1, 10, 30, 7.0), (2, 30, 50, 5.0), (0, 50, 80, 1.0))
    grid[50:, 1] = 7.0
    grid[60, 1] = np.nan
    np.testing.assert_allclose(level(range(80), grid)[1], 1.0, atol=1e-12)
    # three nights beside the first plan and two beside the second are not five
    grid = plans(40, (0, 0, 20, 1.0), (1, 17, 20, 50.0), (2, 20, 40, 7.0), (1, 30, 40, 50.0))
    np.testing.assert_allclose(level(range(40), grid)[1], 1.0, atol=1e-12)
    # every other night
    grid = plans(40, (0, 0, 40, 1.0))
    grid[10:20:2] = [np.nan, np.nan, 3.0]
    assert level(range(40), grid)[0] == [n for n in range(40) if n not in range(10, 20, 2)]


def test_nights_of_no_common_point_are_no_plan() -> None:
    grid = np.full((40, 12), np.nan)
    grid[:20, 0] = 1.0
    for row in range(20, 40):  # each of these is there two nights in a row
        grid[row, 1 + (row // 2) % 11] = 2.0 + row
    assert level(range(40), grid) == (list(range(20)), [1.0] * 20)


def test_where_a_point_lay_before_it_was_forgotten_tells_nothing() -> None:
    grid = np.tile([0.0, 0.0, 6.0], (120, 1))
    grid[40:80, 2] = np.nan
    grid[90, 2] = np.nan  # it joined at the others' level five nights earlier
    _, values = level(range(120), grid)
    np.testing.assert_allclose(values, 2.0, atol=1e-12)


def test_predictions_follow_each_point_from_its_last_time() -> None:
    grid = np.log([[1.0, 2.0], [np.nan, 2.2], [1.1, np.nan], [1.1, 2.2]])
    nights, values = exact_level([0, 1, 2, 3], grid)
    assert nights == [0, 1, 2, 3]
    assert [exp(v) for v in values] == pytest.approx([1.0, 1.1, 1.21, 1.21])


def test_shares_of_the_helper_are_whole() -> None:
    assert sum(SHARES.values()) == pytest.approx(1.0)
