"""alpha and beta: the two ends of a sweep come back, and their intervals cover."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.coverage import Design, made_rows
from benchmarks.fitting import fit_of, rows_of
from benchmarks.sweeps import INTERCEPTS, NOISES, SLOPES, median_noise
from hypothesis import given, settings
from hypothesis import strategies as st

from calib.fitting.estimators.collectives.ends import LEAST_SHARE, end_estimates, ends
from calib.fitting.regression import hockney_line
from calib.fitting.sections.collectives import collective_fits
from calib.microbench.records.samples import Samples

SIZES = 2.0 ** np.arange(3, 27)


@settings(max_examples=60)
@given(
    border=st.integers(3, 20),
    start=st.floats(1e-6, 1e-3),
    jump=st.floats(1.0, 10.0),
    early=st.floats(1e-11, 1e-8),
    late=st.floats(1e-11, 1e-8),
)
def test_both_ends_of_two_pieces_come_back(
    border: int, start: float, jump: float, early: float, late: float
) -> None:
    """Whatever lies between: the first line's time of no bytes, and the last line's slope."""
    first, last = start + early * SIZES, jump * (start + early * SIZES[border]) + late * SIZES
    seconds = np.where(np.arange(24) < border, first, last)
    intercepts, slopes = ends(SIZES, seconds, seconds[None])
    assert intercepts[0] == pytest.approx(start, rel=1e-6)
    least = LEAST_SHARE * seconds[-1] / SIZES[-1]
    assert slopes[0] == pytest.approx(max(late, least), rel=1e-6)


def test_a_link_that_is_fast_for_small_messages_only() -> None:
    """The issue's: 64 MiB at 27.8 ns/B (true 27.9); one line by relative errors says a tenth of it.

    A bucket of 4 MiB at 1 ns/B, as a shaped network between virtual machines has it.
    """
    bucket = 2.0**22
    seconds = 60e-6 + 1e-9 * np.minimum(SIZES, bucket) + 27.9e-9 * np.maximum(SIZES - bucket, 0)
    fit = fit_of(SIZES, seconds)
    _, slope = hockney_line(SIZES, seconds)
    assert slope < 5e-9
    assert fit.beta_s_per_byte.value == pytest.approx(27.9e-9, rel=1e-3)
    assert fit.beta_s_per_byte.covers(27.9e-9)
    assert fit.alpha_s.value == pytest.approx(30e-6, rel=0.01) and fit.alpha_s.covers(30e-6)
    assert fit.seconds(2 * SIZES[-1]) == pytest.approx(seconds[-1] + 27.9e-9 * SIZES[-1], rel=0.07)


@pytest.mark.parametrize("step", [2.0, 4.0, 8.0])
def test_a_line_of_any_step_of_sizes(step: float) -> None:
    """Sizes rounded to 40 ranks, too: within 1% a factor of 4 is one."""
    sizes = np.unique(np.round(step ** np.arange(3, 12) / 40) * 40)
    sizes = sizes[sizes > 0]
    seconds = 20e-6 + 1e-9 * sizes
    intercepts, slopes = ends(sizes, seconds, np.stack([seconds, 2 * seconds]))
    assert intercepts == pytest.approx([20e-6, 40e-6])
    assert slopes == pytest.approx([1e-9, 2e-9])


def test_times_that_do_not_grow_have_no_zero_slope() -> None:
    seconds = np.full(4, 20e-6)
    _, slopes = ends(SIZES[:4], seconds, seconds[None])
    assert slopes == pytest.approx([LEAST_SHARE * 20e-6 / 64])
    two = end_estimates(SIZES[:2], seconds[:2], [seconds[None, :2]], np.empty((0, 2)))
    assert two[0].value == pytest.approx(20e-6)


def test_a_bend_within_an_end_is_in_the_interval() -> None:
    """The last step costs twice what the one before it does."""
    seconds = 20e-6 + 1e-9 * SIZES + 1e-9 * np.maximum(SIZES - SIZES[-2], 0)
    intercept, slope = end_estimates(SIZES, seconds, [seconds[None]], np.empty((0, 24)))
    assert 1e-9 < slope.value < slope.high == pytest.approx(2e-9)
    assert intercept.low == pytest.approx(intercept.high) == pytest.approx(20e-6)


SEEDS = 40
# four standard errors below 95%
LEAST = 0.95 - 4 * np.sqrt(0.95 * 0.05 / SEEDS)


@pytest.mark.parametrize(
    "design",
    [
        *(Design(24, *rows, kind) for rows in ((3, 20), (1, 20)) for kind in NOISES),
        Design(24, 1, 1, NOISES[0]),
        Design(24, 3, 20, NOISES[0], 0.02),
    ],
    ids=lambda design: design.name,
)
def test_intervals_cover(design: Design) -> None:
    """Three pieces with jumps; alpha is of the first, beta of the last, and both of the median noise."""
    typical, held = median_noise(design.noise), np.zeros(2)
    for seed in range(SEEDS):
        sizes, seconds, launch = made_rows(design, seed)
        repetition = np.arange(len(sizes)) % design.repetitions
        rows = Samples(rows_of("p2p", sizes, seconds, launch, repetition))
        (fit,), _ = collective_fits(rows, seed)
        held += [
            fit.alpha_s.covers(INTERCEPTS[0] * typical),
            fit.beta_s_per_byte.covers(SLOPES[-1] * typical),
        ]
    print(f"{design.name}: alpha {held[0] / SEEDS:.0%}, beta {held[1] / SEEDS:.0%} covered")
    assert held.min() >= LEAST * SEEDS
