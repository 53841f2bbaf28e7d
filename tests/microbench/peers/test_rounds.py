"""Rounds of disjoint pairs: all of them once, or few that meet everybody."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from calib.microbench.peers.rounds import Round, all_rounds, in_rounds, quick_rounds, towards

NODES = st.integers(2, 65)


def _disjoint(rounds: list[Round]) -> bool:
    return all(max(Counter(n for pair in of for n in pair).values()) == 1 for of in rounds if of)


@given(NODES)
def test_all_rounds_have_every_pair_once(nodes: int) -> None:
    rounds = all_rounds(nodes)
    assert len(rounds) == nodes - 1 + nodes % 2
    assert _disjoint(rounds)
    assert sorted(pair for of in rounds for pair in of) == list(combinations(range(nodes), 2))


@given(NODES)
def test_quick_rounds_are_log2_and_let_every_node_take_part(nodes: int) -> None:
    rounds = quick_rounds(nodes)
    assert len(rounds) == math.ceil(math.log2(nodes))
    assert _disjoint(rounds)
    for of in rounds:
        assert len(of) == nodes // 2
    met = [pair for of in rounds for pair in of]
    assert all(0 <= one < other < nodes for one, other in met)
    if nodes & (nodes - 1) == 0:
        assert len(set(met)) == len(met), "of 2^k nodes none meets another twice"


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)).filter(lambda p: p[0] != p[1])))
def test_given_pairs_are_all_in_a_round(pairs: list[tuple[int, int]]) -> None:
    rounds = in_rounds(pairs)
    assert _disjoint(rounds)
    assert Counter(pair for of in rounds for pair in of) == Counter(
        {(min(pair), max(pair)) for pair in pairs}
    )


def test_suspects_meet_two_good_nodes_that_they_have_not_met() -> None:
    met = [(0, 1), (2, 3), (0, 2), (1, 3)]
    rounds = towards([1, 5], [0, 2, 4, 6], met)
    pairs = {pair for of in rounds for pair in of}
    assert _disjoint(rounds) and not pairs & set(met)
    for suspect in (1, 5):
        assert sum(suspect in pair for pair in pairs) == 2


def test_one_node_has_no_pair() -> None:
    assert all_rounds(1) == [] and quick_rounds(1) == [] and in_rounds([]) == []
