"""Whether launches differ: the tests against SciPy's, how often they err, and what they see."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import friedmanchisquare, kruskal

from calib.fitting.estimators.base import checked
from calib.fitting.estimators.collectives import launches
from calib.fitting.estimators.collectives.launches import launches_alike


def rows(seed: int, points: int = 12, count: int = 3, repetitions: int = 8):
    """(x, y, launch) of repetitions with 5% exponential noise; reshape as [points, count, each]."""
    generator = np.random.default_rng(seed)
    shape = (points, count, repetitions)
    x = np.broadcast_to(2.0 ** np.arange(points)[:, None, None], shape)
    y = x * 1e-9 * (1 + generator.exponential(0.05, shape))
    return x.copy(), y, np.broadcast_to(np.arange(count)[None, :, None], shape).copy()


def alike(x: np.ndarray, y: np.ndarray, launch: np.ndarray) -> bool:
    return launches_alike(checked(x.ravel(), y.ravel(), groups=launch.ravel()))


@pytest.mark.parametrize("seed", range(8))
def test_of_one_size_it_is_kruskal_and_wallis(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both forms are then the same; SciPy's p-value is the border between the two answers."""
    x, y, launch = rows(seed, points=1)
    p = kruskal(*y[0]).pvalue
    monkeypatch.setattr(launches, "ALIKE", p * (1 - 1e-9))
    assert alike(x, y, launch)
    monkeypatch.setattr(launches, "ALIKE", p * (1 + 1e-9))
    assert not alike(x, y, launch)


@pytest.mark.parametrize("seed", range(8))
def test_of_single_times_it_is_friedman(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one time per launch and size, ranks within a size say nothing of that size alone."""
    x, y, launch = rows(seed, repetitions=1)
    p = friedmanchisquare(*y[:, :, 0].T).pvalue
    somewhere = 0.46  # of a chi-square that is 24 with 24 degrees of freedom
    monkeypatch.setattr(launches, "ALIKE", min(p, somewhere) * (1 - 1e-9))
    assert alike(x, y, launch)
    if p < somewhere:
        monkeypatch.setattr(launches, "ALIKE", p * (1 + 1e-9))
        assert not alike(x, y, launch)


def test_how_often_equal_launches_are_said_to_differ() -> None:
    """Two tests at 12.5%: at most 25%, and no less than one of them; 4 sigma of 400 seeds."""
    differ = np.mean([not alike(*rows(seed)) for seed in range(400)])
    assert (
        0.125 - 4 * np.sqrt(0.125 * 0.875 / 400) <= differ <= 0.25 + 4 * np.sqrt(0.25 * 0.75 / 400)
    )


def test_a_launch_that_is_a_little_slower_everywhere_is_seen() -> None:
    """2% slower, under noise whose quartiles are 5% apart."""
    for seed in range(20):
        x, y, launch = rows(seed)
        y[:, 1] *= 1.02
        assert not alike(x, y, launch)


def test_launches_that_differ_by_size_are_seen() -> None:
    for seed in range(20):
        x, y, launch = rows(seed)
        y *= 1 + 0.05 * np.random.default_rng([1, seed]).standard_normal(y.shape[:2])[:, :, None]
        assert not alike(x, y, launch)


def test_where_nothing_can_be_compared_they_count() -> None:
    x, y, launch = rows(0)
    assert not alike(x[:, :1], y[:, :1], launch[:, :1])
    apart = x + launch  # no size in two launches
    assert not alike(apart * 1000 + launch, y, launch)
    assert not alike(x, np.ones_like(y), launch)


def test_launches_of_other_sizes_and_counts() -> None:
    """Launch 2 has half of the sizes and launch 1 fewer repetitions: still 2% are seen."""
    differ = 0
    for seed in range(100):
        x, y, launch = rows(seed)
        kept = ~((launch == 2) & (x < 64)) & ~((launch == 1) & (np.arange(8) > 4))
        differ += not alike(x[kept], y[kept], launch[kept])
        y[:, 1] *= 1.05
        assert not alike(x[kept], y[kept], launch[kept])
    assert differ <= 25 + 4 * np.sqrt(100 * 0.25 * 0.75)
