"""Hockney's law: exact on exact data, steps and volume against a ring that really sends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calib.fitting.hockney import HockneyLine, interpolation_error
from calib.fitting.parameters.algorithms import steps_and_volume
from calib.fitting.parameters.collectives import interpolate
from calib.foundation.errors import InputError

SIZES = [8 * 4**k for k in range(12)]


@given(
    alpha=st.floats(1e-7, 1e-3),
    beta=st.floats(1e-12, 1e-8),
    ranks=st.integers(2, 64),
    operation=st.sampled_from(["allreduce", "p2p"]),
)
def test_alpha_and_beta_of_a_noiseless_collective(
    alpha: float, beta: float, ranks: int, operation: str
) -> None:
    """formulas.md: allreduce 2 (p-1) (alpha + m beta / p), p2p alpha + m beta."""
    sizes = np.array([*SIZES, 2**28, 2**32], dtype=float)
    times = (
        alpha + sizes * beta
        if operation == "p2p"
        else 2 * (ranks - 1) * (alpha + sizes * beta / ranks)
    )
    line = HockneyLine().fit(sizes, times)
    steps, volume = steps_and_volume(operation, ranks)
    assert line.intercept_ / steps == pytest.approx(alpha, rel=1e-6)
    assert line.slope_ / volume == pytest.approx(beta, rel=1e-6)
    assert line.predict(sizes) == pytest.approx(times, rel=1e-9)


def ring_allreduce(vectors: list[np.ndarray]) -> tuple[list[np.ndarray], int, int]:
    """The ring algorithm with real messages: results, rounds, items that one rank sent."""
    p = len(vectors)
    parts = [np.array_split(vector.copy(), p) for vector in vectors]
    rounds = sent = 0
    for phase in ("reduce-scatter", "allgather"):
        for step in range(p - 1):
            shift = 0 if phase == "reduce-scatter" else 1
            outbox = [parts[r][(r - step + shift) % p].copy() for r in range(p)]
            for r in range(p):
                index = (r - step + shift) % p
                to = parts[(r + 1) % p]
                to[index] = to[index] + outbox[r] if shift == 0 else outbox[r]
            rounds, sent = rounds + 1, sent + outbox[0].size
    return [np.concatenate(part) for part in parts], rounds, sent


@pytest.mark.parametrize("ranks", range(2, 65))
def test_steps_and_volume_of_a_ring(ranks: int) -> None:
    vectors = [np.arange(3 * ranks) + float(rank) for rank in range(ranks)]
    found, rounds, sent = ring_allreduce(vectors)
    assert all(np.array_equal(vector, sum(vectors)) for vector in found)
    steps, volume = steps_and_volume("allreduce", ranks)
    assert steps == rounds == 2 * (ranks - 1)
    assert volume == pytest.approx(sent / (3 * ranks)) == pytest.approx(2 * (ranks - 1) / ranks)
    assert steps_and_volume("p2p", ranks) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("operation", "ranks", "expected"),
    [
        ("p2p_both", 2, (1, 1)),
        ("halo", 7, (1, 1)),
        ("halo 2x3", 6, (1, 1)),
        ("allgather", 8, (7, 7 / 8)),
        ("allgatherv", 3, (2, 2 / 3)),
        ("reduce_scatter", 8, (7, 7 / 8)),
        ("all_to_all", 5, (4, 4 / 5)),
        ("broadcast", 2, (1, 1)),
        ("broadcast", 5, (3, 3)),
        ("broadcast", 8, (3, 3)),
        # AR(4, W) inside and AR(2, W) between: 6 + 2 steps, 6/4 + 2/2 of W
        ("hierarchical_allreduce inner=4", 8, (8, 2.5)),
        ("hierarchical_allreduce inner=1", 8, (14, 14 / 8)),
    ],
)
def test_steps_and_volume_of_the_table(
    operation: str, ranks: int, expected: tuple[float, float]
) -> None:
    """formulas.md, "Collectives"."""
    assert steps_and_volume(operation, ranks) == pytest.approx(expected)


@pytest.mark.parametrize(
    "operation",
    ["gossip", *(f"hierarchical_allreduce inner={q}" for q in ("", "0", "x", "-2", "²"))],
)
def test_an_operation_without_a_cost_model_is_refused(operation: str) -> None:
    with pytest.raises(InputError, match=f"no cost model for the operation '{operation}'"):
        steps_and_volume(operation, 4)


def test_a_message_of_no_bytes_is_refused() -> None:
    with pytest.raises(InputError, match="no bytes"):
        HockneyLine().fit([0, 8], [1.0, 2.0])
    with pytest.raises(InputError, match="NaN"):
        HockneyLine().fit([8, 16], [1.0, float("nan")])


def test_a_line_through_falling_times_is_flat() -> None:
    line = HockneyLine().fit([8, 8000], [2e-6, 1e-6])
    assert line.slope_ == 0.0 and 1e-6 < line.intercept_ < 2e-6


@given(
    factor=st.floats(1e-9, 1e-3), power=st.floats(-1, 2), nbytes=st.floats(8.0, float(SIZES[-1]))
)
def test_interpolation_is_exact_on_power_laws(factor: float, power: float, nbytes: float) -> None:
    seconds = [factor * m**power for m in SIZES]
    assert interpolate(nbytes, SIZES, seconds) == pytest.approx(factor * nbytes**power, rel=1e-9)
    assert interpolation_error(SIZES, seconds) == pytest.approx(1.0, rel=1e-9)


def test_interpolation_passes_through_its_points() -> None:
    seconds = np.random.default_rng(0).uniform(1, 2, len(SIZES)).tolist()
    found = [interpolate(m, SIZES, seconds) for m in SIZES]
    assert found == pytest.approx(seconds, rel=1e-12)


def test_interpolation_error_is_that_of_the_inner_sizes() -> None:
    """Between 1 and 100 lies 10 (the geometric mean of sizes): sqrt(1 * 4) = 2 against 3."""
    assert interpolation_error([1, 10, 100], [1.0, 3.0, 4.0]) == pytest.approx(1.5)
    assert interpolation_error([1, 10], [1.0, 3.0]) == 2.0
