"""calib.export.collapse: the numbers with the least mean relative error, and the error that is told."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calib.export.collapse import LEAST_SHARE, bounded, collapse_of, least_by_bytes, least_relative
from calib.export.target import ExportPoint
from calib.foundation.errors import InputError

SIZES = [2**k for k in range(6, 27)]
times = st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=12)


def point(nbytes: int, seconds: float, ranks: int = 2) -> ExportPoint:
    return ExportPoint("allreduce", nbytes, ranks, seconds, "measured")


@given(alpha=st.floats(1e-9, 1e-2), beta=st.floats(1e-13, 1e-7))
@settings(max_examples=25, deadline=None)
def test_a_line_comes_back(alpha: float, beta: float) -> None:
    design = [[1.0, m] for m in SIZES]
    seconds = [alpha + beta * m for m in SIZES]
    found = least_relative(design, seconds)
    assert design @ found == pytest.approx(seconds, rel=1e-6)


@given(seconds=times)
@settings(max_examples=50, deadline=None)
def test_one_number_is_the_weighted_median(seconds: list[float]) -> None:
    """Least |c m / t - 1| is least w |c - t / m| with w = m / t: a weighted median of the t / m."""
    sizes = np.array(SIZES[: len(seconds)], dtype=float)
    t = np.array(seconds)
    (found,) = least_relative(sizes[:, None], t)
    candidates = t / sizes
    errors = np.abs(candidates[:, None] * sizes / t - 1).mean(axis=1)
    assert np.abs(found * sizes / t - 1).mean() == pytest.approx(errors.min(), rel=1e-6, abs=1e-9)


@given(seconds=st.lists(st.floats(1e-6, 1.0), min_size=4, max_size=12), seed=st.integers(0, 999))
@settings(max_examples=50, deadline=None)
def test_no_other_numbers_are_better(seconds: list[float], seed: int) -> None:
    t = np.array(seconds)
    design = np.array([[1.0, m] for m in SIZES[: len(t)]])
    found = least_relative(design, t)
    least = np.abs(design @ found / t - 1).mean()
    generator = np.random.default_rng(seed)
    for factors in generator.uniform(0.5, 2.0, (200, 2)):
        assert np.abs(design @ (found * factors) / t - 1).mean() >= least - 1e-9
    assert (found >= 0).all()


def test_lower_ends_hold() -> None:
    design, seconds = [[1.0, m] for m in SIZES], [3e-6] * len(SIZES)
    assert least_relative(design, seconds) == pytest.approx([3e-6, 0.0])
    least = least_by_bytes([point(m, 3e-6) for m in SIZES])
    assert least == pytest.approx(LEAST_SHARE * 3e-6 / SIZES[-1])
    assert least_relative(design, seconds, [0.0, least])[1] == pytest.approx(least)


def test_the_error_that_is_told() -> None:
    points = [
        point(64, 1.0),
        point(1024, 2.0, 8),
        point(256, 4.0, 4)._replace(basis="extrapolated"),
    ]
    record = collapse_of("a", "b", "1 s", points, [1.1, 1.0, 4.0])
    assert record.mean_error == pytest.approx((0.1 + 0.5 + 0.0) / 3)
    assert (record.worst_error, record.worst_nbytes, record.worst_ranks) == (0.5, 1024, 8)
    assert (record.ranks, record.nbytes, record.points) == ((2, 4, 8), (64, 1024), 3)
    assert record.basis == "extrapolated"


def test_times_that_cannot_tell_two_numbers_apart_are_refused() -> None:
    with pytest.raises(InputError, match="give --bytes two ends"):
        least_relative([[1.0, 64.0]], [1e-6])
    with pytest.raises(InputError, match="one size on one number of ranks"):
        least_relative([[1.0, 64.0], [2.0, 128.0]], [1e-6, 2e-6])


def test_a_bandwidth_that_nothing_depends_on_is_called_a_bound() -> None:
    points = [point(m, 3e-6) for m in SIZES]
    (note,) = bounded("p2p", least_by_bytes(points), points)
    assert "no time of p2p depends on its bytes" in note and "0.1%" in note
    assert bounded("p2p", 2 * least_by_bytes(points), points) == ()


def test_a_part_that_is_given() -> None:
    fixed = [1e-3 * k for k in range(len(SIZES))]
    seconds = [2e-6 + 1e-9 * m + f for m, f in zip(SIZES, fixed, strict=True)]
    found = least_relative([[1.0, m] for m in SIZES], seconds, fixed=fixed)
    assert found == pytest.approx([2e-6, 1e-9], rel=1e-5)
