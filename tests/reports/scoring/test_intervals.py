"""reports.scoring.intervals: the interval score against its integral, and what chance explains."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, norm
from tests.reports.records import at_speed, point

from calib.foundation.statistics import binomial_at_most
from calib.reports.scoring.intervals import interval_score, interval_summary


def test_by_hand() -> None:
    """Gneiting and Raftery 2007, equation 43, of logarithms: u - l + (2 / alpha) (l - x) or (x - u)."""
    e = math.e
    assert interval_score(1.0, e, e**0.5) == pytest.approx(1.0)
    assert interval_score(1.0, e, e**1.1) == pytest.approx(1.0 + 40 * 0.1)
    assert interval_score(1.0, e, e**-0.1, 0.9) == pytest.approx(1.0 + 20 * 0.1)
    assert interval_score(0.0, 1.0, 0.5) == math.inf


@given(st.floats(1e-6, 1e3), st.floats(1.01, 3), st.floats(0.1, 10), st.floats(1e-3, 1e3))
def test_the_unit_does_not_matter(low: float, factor: float, off: float, unit: float) -> None:
    one = interval_score(low, factor * low, off * low)
    assert interval_score(unit * low, unit * factor * low, unit * off * low) == pytest.approx(one)


@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_it_is_proper(confidence: float) -> None:
    """Of lognormal times, the quantiles have the least expected score of all factors and shifts."""
    times = np.exp(0.2 * norm.ppf((np.arange(20000) + 0.5) / 20000))
    z = norm.ppf((1 + confidence) / 2)

    def expected(shift: float, width: float) -> float:
        low, high = math.exp(shift - width), math.exp(shift + width)
        return float(np.mean([interval_score(low, high, x, confidence) for x in times[::20]]))

    best = expected(0.0, 0.2 * z)
    for shift, width in ((0.0, 0.7), (0.0, 1.4), (0.1, 1.0), (-0.1, 1.0)):
        assert expected(shift, width * 0.2 * z) > best


@given(st.integers(0, 40), st.floats(0.01, 0.99))
def test_the_binomial_is_scipys(n: int, share: float) -> None:
    for k in range(n + 1):
        assert binomial_at_most(k, n, share) == pytest.approx(binom.cdf(k, n, share), abs=1e-12)


def test_a_summary_by_hand() -> None:
    """+-10% around 1 s: 1.05 s is held by both, 1.09 s by the wide one (8.4% is narrow), 2 s by none."""
    points = [point(1.0, x, p=p) for p, x in ((2, 1.05), (3, 1.09), (4, 2.0))]
    of = interval_summary(points)
    assert of is not None
    assert (of.coverage, of.coverage_90) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    narrow = 0.1 * norm.ppf(0.95) / norm.ppf(0.975)
    assert (of.half_width, of.half_width_90) == (pytest.approx(0.1), pytest.approx(narrow))
    width = math.log(1.1 / 0.9)
    assert of.score == pytest.approx(width + 40 * math.log(2 / 1.1) / 3)
    assert (of.works, of.works_held) == (3, 2)
    assert interval_summary([]) is None


@pytest.mark.parametrize(
    ("works", "held", "too_few"),
    [(4, 0, False), (5, 3, False), (5, 2, True), (9, 7, False), (9, 6, True), (20, 16, False)],
)
def test_what_chance_explains(works: int, held: int, too_few: bool) -> None:
    """At 1%: P(X <= 3 of 5) = 2.3%, P(X <= 2 of 5) = 0.1%; P(X <= 7 of 9) = 7%, P(X <= 6) = 0.8%."""
    points = [point(1.0, 1.0 if p < held else 2.0, p=p + 2) for p in range(works)]
    of = interval_summary(points)
    assert of is not None and of.works_held == held
    assert of.too_few == too_few
    assert too_few == (works >= 5 and binom.cdf(held, works, 0.95) < 0.01)


def test_the_same_work_again_is_no_other_evidence() -> None:
    """Twenty runs of one work share one prediction: the newest says what it is worth."""
    days = [f"2026-11-{day:02d}T03:00:00Z" for day in range(1, 21)]
    of = interval_summary([point(1.0, 2.0, started=day) for day in days])
    assert of is not None and (of.works, of.coverage, of.too_few) == (1, 0.0, False)


def test_at_the_speed_of_the_calibration() -> None:
    points = [at_speed(1.0, 2.0, 1.0), point(1.0, 2.0, p=4)]
    as_it_is, quiet = interval_summary(points), interval_summary(points, at_speed=True)
    assert as_it_is is not None and as_it_is.coverage == 0.0
    assert quiet is not None and quiet.coverage == 0.5
