"""Steps and volumes: the table of formulas.md, counted messages, and the two levels of a hierarchy."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from calib.fitting.parameters.algorithms import (
    ALGORITHMS,
    GroupShape,
    Links,
    choices_of,
    shape_of,
    steps_and_volume,
)
from calib.foundation.errors import InputError

GATHERING = ["allgather", "allgatherv", "reduce_scatter", "all_to_all"]


@pytest.mark.parametrize("p", [2, 3, 4, 7, 16, 128])
def test_the_defaults_are_those_of_formulas_md(p: int) -> None:
    """Golden: shared/design/formulas.md, "Collectives"."""
    assert shape_of("allreduce", "ring", p) == (2 * (p - 1), 2 * (p - 1) / p)
    for operation in GATHERING:
        assert shape_of(operation, "ring", p) == (p - 1, (p - 1) / p)
    rounds = math.ceil(math.log2(p))
    assert shape_of("broadcast", "binomial tree", p) == (rounds, rounds)
    for operation, menu in ALGORITHMS.items():
        assert steps_and_volume(operation, p) == shape_of(operation, next(iter(menu)), p)


def test_a_tree_of_many_chunks() -> None:
    """formulas.md: 2 (log2 p + k) (alpha + m beta / 2k); with k chunks of no latency, m beta is left."""
    p, m, alpha, beta, k = 16, 2**30, 1e-6, 1e-10, 10**6
    steps, volume = shape_of("allreduce", "tree", p)
    pipelined = 2 * (math.log2(p) + k) * m * beta / (2 * k)
    assert volume * m * beta == pytest.approx(pipelined, rel=1e-4)
    assert steps * alpha == pytest.approx(2 * math.log2(p) * alpha)


@pytest.mark.parametrize("p", [2, 4, 8, 32])
def test_recursive_doubling_by_counting(p: int) -> None:
    """Every round each rank exchanges all of what it has; in a gather that doubles (Thakur 2005)."""
    rounds, held, sent = 0, 1, 0.0
    while held < p:
        sent += held / p
        held *= 2
        rounds += 1
    assert shape_of("allreduce", "recursive doubling", p) == (rounds, rounds)
    for operation in GATHERING[:-1]:
        assert shape_of(operation, "recursive doubling", p) == (rounds, pytest.approx(sent))


@pytest.mark.parametrize("p", [2, 4, 8, 64])
def test_bruck_by_counting(p: int) -> None:
    """In step k every rank sends on the blocks that have bit k of their distance: half of them."""
    rounds = p.bit_length() - 1
    blocks = sum(bool(block >> k & 1) for k in range(rounds) for block in range(p))
    assert shape_of("all_to_all", "Bruck", p) == (rounds, pytest.approx(blocks / p))
    assert shape_of("all_to_all", "Bruck", 64) == (6.0, 3.0)
    assert shape_of("all_to_all", "Bruck", 9)[0] == 4.0


@pytest.mark.parametrize("p", [2, 4, 8, 32])
def test_a_reduce_in_two_halves_by_counting(p: int) -> None:
    """Rabenseifner: halves of halves are exchanged; then the root gathers, what it has doubling."""
    steps, sent, held = 0, 0.0, 1.0
    while held * p > 1:
        held /= 2
        sent, steps = sent + held, steps + 1
    while held < 1:
        sent, steps, held = sent + held, steps + 1, held * 2
    assert shape_of("reduce", "reduce-scatter and gather", p) == (steps, pytest.approx(sent))
    assert shape_of("reduce", "reduce-scatter and gather", 64) == (12.0, 2 * 63 / 64)


@pytest.mark.parametrize("p", [2, 4, 8, 32])
def test_broadcasts_by_counting(p: int) -> None:
    """van de Geijn: a binomial scatter of (p-1)/p m in log2 p steps, then a ring of p - 1."""
    assert shape_of("broadcast", "scatter and allgather", p) == (
        math.log2(p) + p - 1,
        pytest.approx(2 * (p - 1) / p),
    )
    assert shape_of("broadcast", "chain", p) == (p - 1, 1.0)


def test_one_rank_sends_nothing() -> None:
    for operation, menu in ALGORITHMS.items():
        for name in menu:
            if name not in ("overlapped calls", "one message"):
                steps, volume = shape_of(operation, name, 1)
                assert steps == 0.0, (operation, name)
                assert volume == 0.0 or name in ("chain", "rings", "tree"), (operation, name)


def test_more_ranks_never_cost_less() -> None:
    for operation, menu in ALGORITHMS.items():
        for name in menu:
            shapes = [shape_of(operation, name, p) for p in range(1, 65)]
            for fewer, more in pairwise(shapes):
                assert more[0] >= fewer[0] and more[1] >= fewer[1]


def test_messages_on_nodes() -> None:
    """16 ranks on 4 nodes: rings share the buffer among the links, each rank's messages share the links.

    A tree takes two steps from node to node, and a tenth of one for each rank of a node but the first.
    """
    shape = GroupShape(16, 4, 4)
    ring, tree = ALGORITHMS["allreduce"]["rings"], ALGORITHMS["allreduce"]["tree"]
    assert (ring.steps(shape), ring.volume(shape)) == (30.0, 1.875)
    assert [ring.message(shape, Links(x)) for x in (0.0, 0.5, 1.0)] == [1 / 16, 1 / 32, 1 / 64]
    assert tree.steps(shape) == pytest.approx(2 * (2 + 0.3))
    assert tree.message(shape, Links(1.0)) == pytest.approx((2 * 2.3) ** -0.5)
    exchange = ALGORITHMS["all_to_all"]["ring"]
    assert exchange.steps(shape) == 12.0  # the other 3 ranks of the node take no time beside these
    assert [exchange.message(shape, Links(x)) for x in (0.0, 0.5, 1.0)] == [4 / 16, 2 / 16, 1 / 16]
    assert exchange.steps(GroupShape(4, 1, 4)) == 3.0


def test_messages_over_a_backbone_of_four_links() -> None:
    """16 nodes that all send have a quarter of one each; those of a binomial tree 1, 1, 1, 1/2."""
    links = Links(1.0, 4.0)
    ring, tree = ALGORITHMS["allgather"]["ring"], ALGORITHMS["broadcast"]["binomial tree"]
    for nodes, shared in ((2, 1.0), (4, 1.0), (16, 4.0)):
        shape = GroupShape(nodes, nodes, 1)
        assert ring.message(shape, links) == pytest.approx(shared / nodes)
        assert ring.message(shape, Links(1.0)) == pytest.approx(1 / nodes)
        assert tree.message(shape, links) == pytest.approx(1.25 if nodes == 16 else 1.0)
    assert ring.message(GroupShape(8, 1, 8), links) == pytest.approx(1 / 8)
    # four ranks with a link each: two nodes would have 8, and have 4
    rings = ALGORITHMS["allgather"]["rings"]
    assert rings.message(GroupShape(8, 2, 4), links) == pytest.approx(1 / 8 / 2)


def test_halves_are_exchanged_in_the_node_first() -> None:
    """8 ranks a node: 3 doublings inside leave each rank m/8, and 8 of these go between nodes."""
    shape = GroupShape(32, 4, 8)
    halving = ALGORITHMS["allreduce"]["recursive halving and doubling"]
    assert halving.steps(shape) == pytest.approx(2 * (2 + 0.3))
    per_node = halving.message(shape, Links(0.0)) * halving.steps(shape)
    assert per_node == pytest.approx(2 * (1 / 2 + 1 / 4))
    doubling = ALGORITHMS["allreduce"]["recursive doubling"]
    assert doubling.message(shape, Links(0.0)) == pytest.approx(8.0)


def test_what_a_library_may_do_is_in_its_menu() -> None:
    for operation, menu in ALGORITHMS.items():
        for library in ("nccl", "torch_nccl", "mpi", "torch_gloo"):
            choices = choices_of(operation, library)
            assert {name for choice in choices for name in choice} <= set(menu)
    assert choices_of("allreduce", "nccl") == (("rings", "tree"),)


def test_a_run_that_was_forced_to_an_algorithm_costs_that_one() -> None:
    """On 8 ranks a ring sends 2 (8 - 1) messages in a row, a tree 3 up and 3 down."""
    of_detail = {
        detail: steps_and_volume(f"allreduce {detail}".strip(), 8)[0]
        for detail in (
            "",
            "algorithm=ring",
            "algorithm=tree",
            "algorithm=tree protocol=ll",
            "protocol=ll",
            "algorithm=several",
            "algorithm=nvls protocol=ll",
        )
    }
    assert list(of_detail.values()) == [14, 14, 6, 6, 14, 14, 14]
    assert steps_and_volume("allreduce algorithm=tree", 8) == shape_of("allreduce", "tree", 8)


def test_names_that_are_not_there() -> None:
    with pytest.raises(KeyError):
        shape_of("allreduce", "magic", 4)
    with pytest.raises(KeyError):
        shape_of("p2p", "ring", 4)


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


@pytest.mark.parametrize("inner", ["0", "16", "-2", "x", ""])
def test_a_hierarchy_that_the_ranks_do_not_have(inner: str) -> None:
    """A file from elsewhere may name one: it has no cost model, and divides by nothing."""
    with pytest.raises(InputError, match="no cost model"):
        steps_and_volume(f"hierarchical_allreduce inner={inner}", 2)
