"""What is special to other p: which algorithm, nodes, what is left out, and between the sizes."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import lsq_linear
from tests.fitting.estimators.examples.structural_hockney import (
    FLAT,
    LEVELS,
    NODE,
    NODES,
    SIZES,
    seconds,
)

from calib.fitting.estimators.collectives.structural_hockney import StructuralHockney
from calib.fitting.parameters.algorithms import ALGORITHMS
from calib.foundation.errors import InputError


def fit(x: np.ndarray, y: np.ndarray, operation: str = "allreduce") -> StructuralHockney:
    return StructuralHockney(operation, n_bootstraps=20).fit(x, y)


def flat(operation: str, algorithm: str, x: np.ndarray) -> np.ndarray:
    """Base 8 us, alpha 2 us, beta 0.1 ns/B through steps and volume, p by p."""
    shape = ALGORITHMS[operation][algorithm]
    result: np.ndarray = np.array(
        [8e-6 + shape(p)[0] * 2e-6 + shape(p)[1] * m * 1e-10 for m, p, _ in x.tolist()]
    )
    return result


@pytest.mark.parametrize(
    ("operation", "algorithm"),
    [(operation, name) for operation, menu in ALGORITHMS.items() for name in menu],
)
def test_the_algorithm_that_made_the_times_is_chosen(operation: str, algorithm: str) -> None:
    """And gives times of p = 64 that nothing measured; several names may be of one law."""
    model = fit(NODE, flat(operation, algorithm, NODE), operation)
    mine = ALGORITHMS[operation][algorithm]
    for band in model.bands_:
        chosen = ALGORITHMS[operation][band.algorithm]
        assert [chosen(p) for p in (2, 16, 64)] == [mine(p) for p in (2, 16, 64)]
        assert not band.hierarchical and band.score < 1e-9
        assert band.coefficients == pytest.approx([8e-6, 0.0, 2e-6, 1e-10], rel=1e-6)
    far = np.array([[m, 64.0, 1.0] for m in SIZES])
    assert model._seconds(far) == pytest.approx(flat(operation, algorithm, far), rel=1e-6)


def test_noise_does_not_hide_the_algorithm_of_large_p() -> None:
    """2% noise; at 1 KiB a ring of 64 has 126 steps where recursive doubling has 6, and a tree 12."""
    generator = np.random.default_rng(0)
    for algorithm in ("ring", "recursive doubling"):
        x = np.array([[m, p, 1.0] for p in (4.0, 8.0, 16.0, 32.0, 64.0) for m in SIZES])
        y = flat("allreduce", algorithm, x) * (1 + 0.02 * generator.standard_normal(len(x)))
        assert (fit(x, y).bands_[0].algorithm == "ring") == (algorithm == "ring")


def test_nodes_and_ranks_have_alphas_and_betas_of_their_own() -> None:
    """A ring inside nodes of four, and one between: 8 to 64 ranks give those of 128."""
    model = fit(NODES, seconds(NODES, "ring", True, LEVELS))
    assert all(band.hierarchical and band.algorithm == "ring" for band in model.bands_)
    for band in model.bands_:
        assert band.coefficients == pytest.approx(LEVELS, rel=1e-6)
    far = np.array([[m, 128.0, 32.0] for m in SIZES])
    assert model._seconds(far) == pytest.approx(seconds(far, "ring", True, LEVELS), rel=1e-6)
    assert model.validated_ and model.held_out_error_ < 1e-9
    assert model.error_factor_ == pytest.approx(1.0)


def test_with_two_p_nothing_can_be_left_out() -> None:
    x = NODE[NODE[:, 1] < 8]
    model = fit(x, seconds(x, "ring", False, FLAT))
    assert model.ranks_.tolist() == [2, 4]
    assert not model.validated_ and math.isnan(model.held_out_error_)
    assert model.predict(x) == pytest.approx(seconds(x, "ring", False, FLAT), rel=1e-6)


def test_the_error_of_the_largest_p_is_that_of_a_fit_without_it() -> None:
    """Independent: the same estimator fitted without p = 16, scored on it."""
    generator = np.random.default_rng(1)
    y = seconds(NODE, "ring", False, FLAT) * (1 + 0.05 * generator.standard_normal(len(NODE)))
    model, last = fit(NODE, y), NODE[:, 1] == 16
    predicted = []
    for size, band in zip(SIZES, model.bands_, strict=True):
        near = np.abs(np.log2(NODE[:, 0] / size)) <= 2 * (1 + 1e-9)
        rows = near & ~last
        alone = StructuralHockney("allreduce", n_bootstraps=2)
        design = alone._design(NODE, band.algorithm, band.hierarchical)
        scaled = design[rows] / y[rows, None]
        scale = np.where(scaled.max(axis=0) > 0, scaled.max(axis=0), 1.0)
        found = lsq_linear(scaled / scale, np.ones(rows.sum()), (0, np.inf), "bvls", 1e-14).x
        predicted.append(design[last & (NODE[:, 0] == size)] @ (found / scale))
    expected = np.mean(np.abs(np.concatenate(predicted) / y[last] - 1))
    assert model.held_out_error_ == pytest.approx(expected, rel=1e-4)


def test_between_two_sizes_it_goes_straight_in_log_log() -> None:
    model = fit(NODE, seconds(NODE, "ring", False, FLAT))
    ends = model.predict([[SIZES[2], 8, 1], [SIZES[3], 8, 1]])
    middle = model.predict([[math.sqrt(SIZES[2] * SIZES[3]), 8, 1]])
    assert middle[0] == pytest.approx(math.sqrt(ends[0] * ends[1]))
    between = model.predict([[SIZES[2], 11, 1]])  # a p between those measured
    assert ends[0] < between[0] < model.predict([[SIZES[2], 16, 1]])[0]


def test_every_doubling_of_p_beyond_costs_the_held_out_error_again() -> None:
    generator = np.random.default_rng(2)
    y = seconds(NODE, "ring", False, FLAT) * (1 + 0.05 * generator.standard_normal(len(NODE)))
    model = fit(NODE, y)
    factor = max(model.error_factor_, 1.05)
    widths = []
    for p in (16.0, 32.0, 64.0, 128.0):
        low, high = model.predict_interval(np.array([[SIZES[4], p, 1.0]]))
        widths.append(high[0] / low[0])
    assert all(later > earlier * factor for earlier, later in pairwise(widths))


def test_below_the_range_it_is_as_unsure_as_above() -> None:
    """One decade of bytes and one doubling of p cost the same factor either way; noiseless rows."""
    x = NODE * [1.0, 2.0, 1.0]  # from p = 4 to 32
    model = fit(x, seconds(x, "ring", False, FLAT))
    ends = [[SIZES[0] / 10, 8, 1], [SIZES[-1] * 10, 8, 1], [SIZES[4], 2, 1], [SIZES[4], 64, 1]]
    for row in ends:
        low, high = model.predict_interval([row])
        assert high[0] / low[0] == pytest.approx(1.05**2, rel=1e-6)
    both = model.predict_interval([[SIZES[0] / 100, 2, 1]])
    assert both[1][0] / both[0][0] == pytest.approx(1.05**6, rel=1e-6)


def held(launches: int, between: float, noise: float, seeds: int) -> float:
    """Share of the points whose law the intervals hold, five repetitions a launch."""
    x, result = NODE[NODE[:, 0] < SIZES[4]], []
    true = seconds(x, "ring", False, FLAT)
    for seed in range(seeds):
        generator = np.random.default_rng([11, seed])
        speed = np.exp(between * generator.standard_normal(launches))
        launch = np.tile(np.repeat(np.arange(launches), 5), len(x))
        factor = speed[launch] * (1 + noise * generator.standard_normal(len(launch)))
        y = np.repeat(true, 5 * launches) * factor
        model = StructuralHockney("allreduce", n_bootstraps=50)
        model.fit(np.repeat(x, 5 * launches, axis=0), y, groups=launch)
        low, high = model.predict_interval(x)
        result.append((low <= true) & (true <= high))
    return float(np.mean(result))


def test_intervals_hold_how_launches_differ() -> None:
    """Launches 5% apart, repetitions 1%: residuals of the medians alone covered 1 to 14%."""
    for launches in (2, 3):
        assert held(launches, 0.05, 0.01, 60) >= 0.88


def test_intervals_of_launches_that_are_alike_are_of_their_repetitions() -> None:
    """Covers, and a tenth as wide as Lord's factor for two launches would have it."""
    assert held(2, 0.0, 0.02, 60) >= 0.88
    x = NODE
    generator = np.random.default_rng(4)
    y = np.repeat(seconds(x, "ring", False, FLAT), 20) * (
        1 + 0.02 * generator.standard_normal(20 * len(x))
    )
    launch = np.tile(np.repeat([0, 1], 10), len(x))
    low, high = (
        StructuralHockney("allreduce")
        .fit(np.repeat(x, 20, axis=0), y, groups=launch)
        .predict_interval(x)
    )
    assert np.median(high / low) < 1.03


def test_three_launches_a_tenth_apart_by_hand() -> None:
    """Noiseless 0.9, 1 and 1.1: Lord's 1.304 times the range of 0.2 either way, or more."""
    x, true = NODE, seconds(NODE, "ring", False, FLAT)
    y = np.concatenate([speed * true for speed in (0.9, 1.0, 1.1) for _ in range(3)])
    launch = np.repeat([0, 1, 2], 3 * len(x))
    model = StructuralHockney("allreduce", n_bootstraps=20).fit(
        np.tile(x, (9, 1)), y, groups=launch
    )
    low, high = model.predict_interval(x)
    assert low / true == pytest.approx(np.full(len(x), 1 - 0.2608), rel=1e-4)
    assert high / true == pytest.approx(np.full(len(x), 1.2608), rel=1e-4)
    for band in model.bands_:
        ends = band.interval()
        assert (ends[0] <= 0.7393 * FLAT).all() and (ends[1] >= 1.2607 * FLAT).all()
    assert model.error_factor_ == pytest.approx(1.2608, rel=1e-4)


def test_one_number_each_has_the_width_that_its_residuals_have_freedom_for() -> None:
    """One launch, one repetition, 2% of noise, three p: 87% were covered without Student's t."""
    x, result = NODE[NODE[:, 1] < 16], []
    true = seconds(x, "ring", False, FLAT)
    for seed in range(60):
        generator = np.random.default_rng([12, seed])
        y = true * (1 + 0.02 * generator.standard_normal(len(x)))
        low, high = StructuralHockney("allreduce", n_bootstraps=50).fit(x, y).predict_interval(x)
        result.append((low <= true) & (true <= high))
    assert 0.91 <= np.mean(result) <= 0.99


def test_the_nearest_sizes_share_a_law_and_no_others_do() -> None:
    """A size 20 times too slow spoils its neighbours' bands, and no further ones."""
    true = seconds(NODE, "ring", False, FLAT)
    planted = np.where(NODE[:, 0] == SIZES[4], 20.0, 1.0) * true
    model = fit(NODE, planted)
    far = np.abs(np.log2(NODE[:, 0] / SIZES[4])) > 3
    assert model.predict(NODE[far]) == pytest.approx(true[far], rel=1e-6)


@pytest.mark.parametrize(
    ("operation", "x", "reason"),
    [
        ("p2p", [[8, 2, 1]], "no cost model"),
        ("allreduce", [[8, 1, 1]], "ranks from 2"),
        ("allreduce", [[0, 2, 1]], "bytes over 0"),
        ("allreduce", [[8, 2]], "bytes over 0"),
        ("allreduce", [[8, 2, 3]], "at least one node"),
        ("allreduce", [[8, 2, 0]], "at least one node"),
    ],
)
def test_what_it_refuses(operation: str, x: list[list[float]], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        StructuralHockney(operation).fit(x, [1e-6] * len(x))
