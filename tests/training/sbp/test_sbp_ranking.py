"""The ranking's arithmetic, on tables whose answer is known."""

from __future__ import annotations

import pytest
from benchmarks.sbp_ranking import compare, halves, space, spread, swapped, tau, tau_interval


def test_tau_counts_pairs() -> None:
    """Of 4 items, 6 pairs; 1 swapped: (5 - 1) / 6."""
    first, second = [1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0]
    assert tau(first, second) == pytest.approx(4 / 6)
    assert swapped(first, second) == [(1, 2)]
    assert tau(first, first[::-1]) == pytest.approx(-1.0)
    assert tau_interval(first, [[v] * 3 for v in first], 0) == (1.0, 1.0)


def test_halves_are_even_and_odd_rounds() -> None:
    assert halves([[1.0, 3.0], [2.0, 2.0], [3.0, 1.0]]) == pytest.approx(-1.0)
    assert halves([[1.0, 1.1, 1.0], [2.0, 2.1, 2.0]]) == pytest.approx(1.0)


def test_space_holds_every_strategy() -> None:
    """6 triples of 4 ranks."""
    assert len(set(space(4, 3))) == 6**3
    assert all(a * b * c == 4 for a, b, c in (layer for chain in space(4, 2) for layer in chain))


def test_draw_is_spread_and_seeded() -> None:
    """1 to 2**10 in equal steps of the logarithm: one of each part."""
    times = [2 ** (i / 10) for i in range(101)]
    chosen = spread(times, 10, 5)
    assert chosen == spread(times, 10, 5) != spread(times, 10, 6)
    assert sorted(min(i // 10, 9) for i in chosen) == list(range(10))


def test_draw_fills_empty_parts() -> None:
    """All but one in the first part: as many as asked for all the same, none twice."""
    chosen = spread([*[1.0 + i * 1e-3 for i in range(30)], 100.0], 8, 0)
    assert len(set(chosen)) == 8 and 30 in chosen


def test_table_tells_ranks_and_swaps() -> None:
    lines = compare("x", [1.0, 2.0, 3.0], [[2.0, 2.0], [1.0, 1.0], [3.0, 3.0]], ["a", "b", "c"])
    assert "| a | 1000.0 | 2000.0 | 2000.0 to 2000.0 | -50.0% | 1 | 2 |" in lines
    assert lines[-1].startswith("swapped: a and b: predicted +100.0%, measured -50.0% apart")
    assert "mean 50.0%, worst 100.0%" in lines[-2]
