"""What a rested link takes at once: planted token buckets are found again, and nothing else is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.rows import as_samples, sample

from calib.fitting.parameters.collectives import Burst
from calib.fitting.sections.bursts import bucket, with_bursts
from calib.fitting.sections.collectives import collective_fits
from calib.foundation.records import Estimate
from calib.microbench.records.samples import Sample

ALPHA_S, BETA, COLD_S = 1e-4, 2.7e-8, 4e-4
IN_A_ROW = [2**k for k in range(3, 25)]
AFTER_WORK = [2**k for k in (13, 15, 17, 19, 21)]


def sent(nbytes: int, burst: float = 0.0, share: float = 0.0, cold: float = 0.0) -> float:
    """Seconds of a message, `cold` s longer, through a bucket of `burst` bytes that is full."""
    return ALPHA_S + cold + BETA * (nbytes - share * min(nbytes, burst))


def rows(noise: float, burst: float, share: float, **fields: Any) -> list[Sample]:
    """Two launches of ten repetitions of every size, in a row and after work."""
    dice = np.random.default_rng(7)
    about = {"operation": "p2p_both", "level": "system", "nodes": 2, **fields}
    return [
        sample(
            nbytes=m,
            launch=launch,
            repetition=i,
            cold=cold,
            seconds=sent(m, *(burst, share, COLD_S) if cold else ())
            * math.exp(noise * dice.normal()),
            **about,
        )
        for cold, sizes in ((False, IN_A_ROW), (True, AFTER_WORK))
        for m in sizes
        for launch in range(2)
        for i in range(10)
    ]


def found(rows: list[Sample]) -> Burst | None:
    samples = as_samples(rows)
    fits, _ = collective_fits(samples, seed=1)
    (fit,) = with_bursts(fits, samples, seed=1)
    return fit.burst


@settings(max_examples=30, deadline=None)
@given(st.floats(1.5 * 2**15, 0.9 * 2**21), st.floats(0.3, 1.0), st.floats(0, COLD_S))
def test_a_bucket_without_noise(burst: float, share: float, cold: float) -> None:
    """Bytes and share are those planted; two sizes below tell the share from what is cold."""
    sizes = np.array(AFTER_WORK, dtype=float)
    in_a_row = np.array([sent(m) for m in AFTER_WORK])
    after = np.array([sent(m, burst, share, cold) for m in AFTER_WORK])
    nbytes, part = bucket(sizes, in_a_row, after, BETA)
    assert nbytes == pytest.approx(burst, rel=1e-2)
    assert part == pytest.approx(share, rel=1e-2)


@pytest.mark.parametrize(("burst", "share"), [(131072.0, 0.9), (750e3, 0.95)])
def test_a_shaper_is_found_in_noise(burst: float, share: float) -> None:
    law = found(rows(0.02, burst, share))
    assert law is not None
    assert law.nbytes.low <= law.nbytes.value <= law.nbytes.high
    assert law.nbytes.value == pytest.approx(burst, rel=0.1)
    assert law.share == pytest.approx(share, abs=0.05)


@pytest.mark.parametrize(
    ("burst", "share", "fields"),
    [
        (0.0, 0.0, {}),
        (131072.0, 0.05, {}),  # as little as caches are
        (131072.0, -0.3, {}),  # slower, as from cold caches
        (131072.0, 0.9, {"level": "node", "nodes": 1}),
        (131072.0, 0.9, {"operation": "p2p"}),
    ],
)
def test_where_nothing_passes_at_once(burst: float, share: float, fields: dict[str, Any]) -> None:
    assert found(rows(0.02, burst, share, **fields)) is None


@given(st.floats(0, 1e7), st.floats(0, 1.0), st.floats(1e3, 1e6), st.floats(0.1, 1.0))
def test_no_more_is_saved_than_rested_or_was_sent(
    nbytes: float, rested: float, most: float, share: float
) -> None:
    """share min(beta m, beta burst, t), with the interval of the burst."""
    law = Burst(nbytes=Estimate(value=most, low=most / 2, high=most * 2), share=share)
    saved = law.saved(BETA, nbytes, rested)
    assert saved.value == pytest.approx(share * min(BETA * nbytes, BETA * most, rested))
    assert saved.low <= saved.value <= saved.high <= share * min(BETA * nbytes, rested)
