"""A direct law at any size: through its points, bounded beyond, falling only where that is proven."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.isotonic import isotonic_regression

from calib.fitting.parameters.size_law import FALL, SizeLaw, falls, interpolate, risen

SIZES = [8 * 4**k for k in range(12)]
# 20 us + 1 ns/B, where the bytes take 99.9% of the largest size's time
LINE = SizeLaw.through(SIZES, [20e-6 + 1e-9 * m for m in SIZES], 20e-6, 1e-9)


@given(
    factor=st.floats(1e-9, 1e-3), power=st.floats(-1, 2), nbytes=st.floats(8.0, float(SIZES[-1]))
)
def test_interpolation_is_exact_on_power_laws(factor: float, power: float, nbytes: float) -> None:
    seconds = [factor * m**power for m in SIZES]
    assert interpolate(nbytes, SIZES, seconds) == pytest.approx(factor * nbytes**power, rel=1e-9)


@given(st.lists(st.floats(1e-6, 1.0), min_size=12, max_size=12), st.floats(1e-7, 1.0))
def test_it_goes_through_its_points_and_is_bounded_beyond(times: list[float], share: float) -> None:
    """Any rising times, any slope at the end: no jump, no fall, no flat end, no bandwidth invented."""
    seconds = sorted(times)
    slope = share * seconds[-1] / SIZES[-1]
    law = SizeLaw.through(SIZES, seconds, seconds[0] / 2, slope)
    assert [law.at(m) for m in SIZES] == pytest.approx(seconds)
    grid = np.geomspace(1, 100 * SIZES[-1], 400)
    found = np.array([law.at(m) for m in grid])
    assert (np.diff(found) >= -1e-12 * found[:-1]).all()
    beyond = grid > SIZES[-1]
    assert (np.diff(found[beyond]) >= 0.999 * slope * np.diff(grid[beyond])).all()
    assert found[0] >= seconds[0] / 2
    if share >= 0.8:
        fastest = max(m / t for m, t in zip(SIZES, seconds, strict=True))
        assert (grid[beyond] / found[beyond] <= fastest * (1 + 1e-9)).all()


def test_below_the_smallest_size_it_goes_straight_to_the_start() -> None:
    assert LINE.at(0) == pytest.approx(20e-6) and LINE.at(4) == pytest.approx(20e-6 + 4e-9)
    # a start that the noise of the fit puts above the smallest size's time would be a fall
    above = SizeLaw.through(SIZES, list(LINE.seconds), 30e-6, 1e-9)
    assert above.at(0) == above.at(8)


def test_beyond_the_largest_size_it_grows_by_the_slope() -> None:
    """Where start-up is most of the time, in proportion it would be 190% off (docs/fitting.md)."""
    short = SizeLaw.through(SIZES[:3], LINE.seconds[:3], 20e-6, 1e-9)
    assert short.at(1 << 30) == pytest.approx(20e-6 + 1e-9 * (1 << 30))
    # 99.9% of bytes: the bandwidth that was measured, 0.06% under that of the slope
    assert LINE.at(1 << 30) == pytest.approx(LINE.seconds[-1] / SIZES[-1] * (1 << 30))


@given(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=30))
def test_risen_is_isotonic_regression(seconds: list[float]) -> None:
    """Independent: scikit-learn's."""
    assert risen(seconds) == pytest.approx(isotonic_regression(seconds), rel=1e-9)


def test_falls_needs_intervals_that_do_not_meet() -> None:
    assert not falls([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert falls([1.0, FALL * 1.01, 3.0, 1.0], [1.0, 2.0, 4.0, 1.0])
    assert not falls([1.0, FALL * 0.99, 0.9], [1.0, 2.0, 1.0])
    assert falls([5.0, 9.0, 1.0], [5.0, 9.0, 1.0])  # of any larger size, not the next alone
