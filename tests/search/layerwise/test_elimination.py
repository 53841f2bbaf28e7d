"""Elimination against all choices, on random graphs; undo; how many nodes are left."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calib.foundation.errors import InputError
from calib.search.layerwise import elimination
from calib.search.layerwise.elimination import Sums, min_plus, solve, solve_within
from calib.search.layerwise.enumeration import enumerated, lower_bound
from calib.search.request import Budget

ENDLESS = Budget(seconds=None)


@st.composite
def graphs(draw: st.DrawFn) -> Sums:
    """Up to 6 nodes with up to 3 choices; edges go forward, some of them twice."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    pairs = list(itertools.combinations(range(len(sizes)), 2))
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=9)) if pairs else []
    nodes = [random.random(n) for n in sizes]
    return Sums(nodes, [(i, j, random.random((sizes[i], sizes[j]))) for i, j in chosen])


def all_choices(graph: Sums) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(len(node)) for node in graph.nodes)))


@settings(max_examples=200, deadline=None)
@given(graphs())
def test_elimination_is_the_best_of_all_choices(graph: Sums) -> None:
    best = min(map(graph.of, all_choices(graph)))
    found = solve(graph)
    assert found.total == pytest.approx(best, rel=1e-12)
    assert graph.of(found.choices) == found.total  # undo gives a plan of that cost
    assert found.nodes_eliminated + found.left == len(graph.nodes)


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_depth_first_finds_the_same(graph: Sums) -> None:
    best = enumerated(graph, ENDLESS.started())
    assert best.complete and best.choices
    assert best.total == pytest.approx(solve(graph).total, rel=1e-12)
    assert lower_bound(graph) <= best.total * (1 + 1e-12)


@settings(max_examples=100, deadline=None)
@given(graphs(), st.floats(0, 1))
def test_within_a_limit(graph: Sums, tightness: float) -> None:
    """Depth-first is exact; the multiplier's plan fits, and its bound holds."""
    nodes, edges = graph
    random = np.random.default_rng(len(edges))
    nbytes = Sums(
        [random.integers(1, 50, len(node)).astype(float) for node in nodes],
        [(i, j, random.integers(0, 50, cost.shape).astype(float)) for i, j, cost in edges],
    )
    sums = {choices: nbytes.of(choices) for choices in all_choices(graph)}
    lightest = solve(nbytes).choices
    assert sums[lightest] == min(sums.values())
    limit = min(sums.values()) + tightness * (max(sums.values()) - min(sums.values()))
    best = min(graph.of(c) for c, n in sums.items() if n <= limit)
    exact = enumerated(graph, ENDLESS.started(), nbytes, limit, start=lightest)
    assert exact.total == pytest.approx(best, rel=1e-12)
    found, _ = solve_within(graph, nbytes, limit, ENDLESS.started())
    assert nbytes.of(found.choices) <= limit
    assert found.total == pytest.approx(graph.of(found.choices), rel=1e-12)
    assert found.bound <= best * (1 + 1e-9) and best <= found.total * (1 + 1e-12)


def test_a_budget_stops_with_the_best_so_far() -> None:
    random = np.random.default_rng(1)
    edges = [(i, i + 1, random.random((4, 4))) for i in range(11)]
    chain = Sums([random.random(4) for _ in range(12)], edges)
    spending = Budget(seconds=None, evaluations=1).started()
    best = enumerated(chain, spending)
    assert not best.complete and spending.evaluated == 1 and best.choices
    assert best.total == pytest.approx(chain.of(best.choices))


def test_min_plus_by_rows_is_that_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(2)
    into, own, out = random.random((5, 7)), random.random(7), random.random((7, 3))
    at_once = min_plus(into, own, out)
    monkeypatch.setattr(elimination, "AT_ONCE", 0)
    assert np.allclose(min_plus(into, own, out), at_once, rtol=1e-15)


def test_parallel_edges_and_modules_leave_two_nodes() -> None:
    """Figure 6: an Inception module between two nodes."""
    random = np.random.default_rng(3)
    pairs = [(0, 1), (0, 2), (2, 3), (0, 4), (4, 5), (5, 6), (1, 7), (3, 7), (6, 7), (0, 7)]
    nodes = [random.random(3) for _ in range(8)]
    found = solve(Sums(nodes, [(i, j, random.random((3, 3))) for i, j in pairs]))
    assert (found.left, found.nodes_eliminated, found.edges_eliminated) == (2, 6, 3)


def test_too_much_left_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elimination, "MOST_ENTRIES", 10)
    nodes = [np.zeros(4)] * 4
    edges = [(i, j, np.zeros((4, 4))) for i, j in itertools.combinations(range(4), 2)]
    with pytest.raises(InputError, match="degrees=powers"):
        solve(Sums(nodes, edges))
