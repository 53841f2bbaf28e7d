"""The collectives of a strategy by hand, and the placement of its blocks."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from tests.helpers.sbp import collectives_of

from calib.foundation.errors import InputError
from calib.search.links import LinkGroup
from calib.search.sbp.states import ProductLayer, State
from calib.training.sbp.operations import DoneCollective, operations
from calib.training.sbp.placement import place

M, K, N = 1024, 512, 256


def test_data_parallelism_sums_gradients_only() -> None:
    """An allreduce of each whole weight, the last layer's first."""
    assert operations(M, (K, N, K), [(4, 1, 1)] * 2, 4) == [
        DoneCollective("allreduce", N * K * 4, 4),
        DoneCollective("allreduce", K * N * 4, 4),
    ]


def test_the_search_prices_what_is_done() -> None:
    """All strategies of two layers on 4 devices: the same operations, bytes and groups as it has."""
    degrees = [(a, b, 4 // a // b) for a in (1, 2, 4) for b in (1, 2, 4) if 4 % (a * b) == 0]
    layers = [
        ProductLayer("0", "linear", K, N, K * N, K, N, reads_data=True),
        ProductLayer("1", "linear", N, K, K * N, N, K),
    ]
    for chain in itertools.product(degrees, repeat=2):
        states = [State(*(LinkGroup(d, 1) for d in of)) for of in chain]
        wanted = Counter(
            (c.operation, round(c.nbytes), c.group.size)
            for c in collectives_of(layers, states, M)
            if c.group.size > 1
        )
        assert Counter(operations(M, (K, N, K), chain, 4)) == wanted, chain


def test_columns_then_sums_is_megatron() -> None:
    """S1 of W, then S0: one reduce-scatter forward and its allgather backward, none between."""
    assert operations(M, (K, N, K), [(1, 4, 1), (1, 1, 4)], 4) == [
        DoneCollective("reduce_scatter", M * K * 4, 4),
        DoneCollective("allgather", M * K * 4, 4),
    ]


def test_all_kinds_of_a_chain() -> None:
    """2 x 1 x 2, then 1 x 2 x 2: bytes of formulas.md, with local blocks in the all-to-all."""
    first, second = (2, 1, 2), (1, 2, 2)
    change = DoneCollective("all_to_all", M * N * 4 // 4, 2)
    assert operations(M, (K, N, K), [first, second], 4) == [
        DoneCollective("reduce_scatter", M * N * 4 // 2, 2),
        change,
        DoneCollective("allgather", M * N * 4 // 2, 2),
        DoneCollective("reduce_scatter", M * K * 4 // 2, 2),
        DoneCollective("allgather", M * K * 4 // 2, 2),
        DoneCollective("reduce_scatter", M * N * 4 // 2, 2),
        change,
        DoneCollective("allgather", M * N * 4 // 2, 2),
        DoneCollective("allreduce", K * N * 4 // 2, 2),
    ]


TRIPLES = [(4, 1, 1), (1, 4, 1), (1, 1, 4), (2, 2, 1), (2, 1, 2), (1, 2, 2)]


@pytest.mark.parametrize("chain", list(itertools.product(TRIPLES, repeat=2)))
def test_every_rank_is_somewhere_once(chain: list[tuple[int, int, int]]) -> None:
    for placed in place(chain):
        p1, p2, p3 = placed.degrees
        assert sorted(placed.coordinates) == list(
            itertools.product(range(p1), range(p2), range(p3))
        )
        for groups, members in ((placed.rows, p1), (placed.columns, p2), (placed.sums, p3)):
            assert {len(group) for group in groups} == {members}
            assert sorted(itertools.chain(*groups)) == list(range(4))


def test_what_cannot_be_placed() -> None:
    with pytest.raises(InputError, match="layer 1 is on 2 ranks, the first on 4"):
        place([(4, 1, 1), (2, 1, 1)])
    with pytest.raises(InputError, match="2 row blocks cannot become 3"):
        place([(2, 3, 1), (3, 2, 1)])
    with pytest.raises(InputError, match="three degrees"):
        place([])
