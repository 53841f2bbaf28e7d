"""The partition by dynamic programming against trying all, and lines against NumPy's and SciPy's."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog

from calib.fitting.estimators.collectives.pieces import (
    LinePiece,
    huber_weights,
    least_absolute,
    lines,
    mean_error,
    partitions,
    polished,
    rising,
)
from calib.fitting.parameters.size_law import FALL

N = 9


def points(seed: int, n: int = N) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(sizes, times that rise by fits and starts, weights)."""
    generator = np.random.default_rng(seed)
    m = 2.0 ** np.arange(3, 3 + n)
    t = 1e-6 * np.exp(np.cumsum(generator.exponential(0.4, n)))
    return m, t, generator.uniform(0.5, 2.0, n)


def squared(pieces: list[LinePiece], m: np.ndarray, t: np.ndarray, weight: np.ndarray) -> float:
    fitted = np.concatenate(
        [p.intercept_s + p.slope_s_per_byte * m[p.first : p.last + 1] for p in pieces]
    )
    return float(weight @ (fitted / t - 1) ** 2)


def best_of_all(m, t, weight, k: int, falls: bool) -> float:
    """The least cost of any partition into k pieces of two points or more that is allowed."""
    best = np.inf
    for inner in itertools.combinations(range(2, len(m) - 1), k - 1):
        edges = [0, *inner, len(m)]
        if any(b - a < 2 for a, b in itertools.pairwise(edges)):
            continue
        pieces = []
        for first, end in itertools.pairwise(edges):
            part = slice(first, end)
            a, b = lines(m[part], t[None, part], weight[part] / t[part] ** 2, first == 0)
            pieces.append(LinePiece(first, end - 1, float(a[0]), float(b[0])))
        if rising(pieces, m, falls):
            best = min(best, squared(pieces, m, t, weight))
    return best


@pytest.mark.parametrize("falls", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_the_best_of_all_partitions_is_found(seed: int, falls: bool) -> None:
    m, t, weight = points(seed)
    if falls:
        t[4:] *= 0.3
    found = partitions(m, t, weight, 4, falls=falls)
    costs = {len(pieces): squared(pieces, m, t, weight) for pieces in found}
    for k in range(1, 5):
        expected = best_of_all(m, t, weight, k, falls)
        assert costs.get(k, np.inf) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("exact", [False, True])
def test_pieces_cover_all_points_and_rise(seed: int, exact: bool) -> None:
    m, t, weight = points(seed, 20)
    t = t[np.random.default_rng(seed).permutation(len(t))]  # not even rising
    for pieces in partitions(m, t, weight, 6, exact=exact):
        assert pieces[0].first == 0 and pieces[-1].last == len(m) - 1
        assert all(b.first == a.last + 1 for a, b in itertools.pairwise(pieces))
        assert all(piece.last > piece.first for piece in pieces)
        assert rising(pieces, m, falls=False)


@pytest.mark.parametrize("seed", range(6))
def test_least_absolute_errors_by_linear_programming(seed: int) -> None:
    """Independent: minimise sum w e, e >= |(a + b m)/t - 1|, b >= 0, in SciPy's HiGHS."""
    m, t, weight = points(seed)
    t = t * np.random.default_rng([2, seed]).choice([1.0, 3.0], len(t), p=[0.8, 0.2])
    rows = np.column_stack([1e-6 / t, (m / m[-1]) * 1e-3 / t])
    above = np.hstack([rows, -np.eye(N)])
    below = np.hstack([-rows, -np.eye(N)])
    solved = linprog(
        np.concatenate([[0.0, 0.0], weight]),
        np.vstack([above, below]),
        np.concatenate([np.ones(N), -np.ones(N)]),
        bounds=[(None, None), (0, None)] + [(0, None)] * N,
    )
    cost, intercept, slope = least_absolute(m, t, weight, from_zero=False)
    found = weight @ np.abs((intercept + slope * m) / t - 1)
    assert cost == pytest.approx(found)
    # the estimator also wants a positive time at the first size
    if solved.x[0] * 1e-6 + solved.x[1] * 1e-3 / m[-1] * m[0] > 0:
        assert cost == pytest.approx(solved.fun, rel=1e-6)
    assert cost >= solved.fun * (1 - 1e-9)


def test_lines_are_weighted_least_squares() -> None:
    m, t, weight = points(0)
    many = np.stack([t, 2 * t, t[::-1]])
    a, b = lines(m, many, weight, from_zero=False)
    design = np.column_stack([np.ones(N), m]) * np.sqrt(weight)[:, None]
    for row, times in enumerate(many[:2]):
        expected = np.linalg.lstsq(design, times * np.sqrt(weight), rcond=None)[0]
        assert [a[row], b[row]] == pytest.approx(expected.tolist(), rel=1e-8)
    assert b[2] == 0.0 and a[2] == pytest.approx(np.average(t[::-1], weights=weight))


def test_a_first_line_does_not_begin_below_nothing() -> None:
    m = np.array([8.0, 16.0, 32.0, 64.0])
    a, b = lines(m, (1e-9 * m**1.5)[None], np.ones(4), from_zero=True)
    assert a[0] == 0.0 and b[0] == pytest.approx(1e-9 * (m @ m**1.5) / (m @ m))
    cost, intercept, _ = least_absolute(m, 1e-9 * m**1.5, np.ones(4), from_zero=True)
    assert intercept >= 0 and cost > 0


def test_huber_keeps_what_is_near_and_bounds_what_is_far() -> None:
    residual = np.array([-0.01, 0.01, 0.01, -0.01, 0.5])
    weight = huber_weights(residual)
    scale = 1.345 * 1.4826 * 0.01
    assert weight == pytest.approx([1, 1, 1, 1, scale / 0.5])
    assert huber_weights(np.zeros(3)).tolist() == [1, 1, 1]


def test_polishing_ends_where_huber_weights_no_longer_change() -> None:
    """The estimating equations: sum of w psi(r) / t and of w psi(r) m / t are zero."""
    m = 2.0 ** np.arange(3, 15)
    t = 5e-6 + 1e-9 * m
    t = t * (1 + 0.02 * np.random.default_rng(0).standard_normal(12))
    t[5] *= 1.5
    (piece,) = polished([LinePiece(0, 11, float(t[0]), 0.0)], m, t, np.ones(12))
    residual = (piece.intercept_s + piece.slope_s_per_byte * m) / t - 1
    psi = huber_weights(residual) * residual / t
    assert abs(psi.sum()) < 1e-4 * np.abs(psi).sum()
    assert abs((psi * m).sum()) < 1e-4 * np.abs(psi * m).sum()
    assert piece.slope_s_per_byte == pytest.approx(1e-9, rel=0.2)
    two = [LinePiece(0, 1, 1e-6, 1e-9), LinePiece(2, 11, float(t[0]), 0.0)]
    assert polished(two, m, t, np.ones(12))[0] == two[0]  # nothing is left to weigh of two points


def test_rising_allows_only_falls_that_are_no_noise() -> None:
    m = np.array([1.0, 2.0, 3.0, 4.0])
    left, small = LinePiece(0, 1, 1.0, 0.0), LinePiece(2, 3, 1.0 / 1.02, 0.0)
    large = LinePiece(2, 3, 1.0 / (FALL * 1.01), 0.0)
    assert not rising([left, small], m, falls=False) and not rising([left, small], m, falls=True)
    assert not rising([left, large], m, falls=False) and rising([left, large], m, falls=True)
    assert rising([large, LinePiece(2, 3, 2.0, 0.0)], m, falls=False)


def test_mean_error_is_weighted() -> None:
    m, t = np.array([1.0, 2.0]), np.array([1.0, 2.0])
    assert mean_error([LinePiece(0, 1, 1.0, 0.0)], m, t, np.array([1.0, 3.0])) == pytest.approx(
        0.375
    )
