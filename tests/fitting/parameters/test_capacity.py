"""The least time of a collective by what links carry, against bytes that are counted rank by rank."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calib.fitting.parameters.algorithms import GroupShape
from calib.fitting.parameters.capacity import LINKS, RACKS, SENT, SHARED, Capacity, Parts

SIZES = st.integers(1, 6), st.integers(2, 6)  # ranks on a node, nodes


def crossing(p: int, each: int, blocks: dict[tuple[int, int], float]) -> tuple[float, float]:
    """Bytes that enter or leave the busiest node each way, and those between any two nodes.

    `blocks`: sender, receiver -> bytes.
    """
    ways: dict[tuple[str, int], float] = {}
    every = 0.0
    for (sender, receiver), nbytes in blocks.items():
        here, there = sender // each, receiver // each
        if here != there:
            every += nbytes
            for way in (("out", here), ("in", there)):
                ways[way] = ways.get(way, 0.0) + nbytes
    return max(ways.values()), every


@given(*SIZES)
def test_all_to_all_sends_what_is_for_other_nodes(each: int, nodes: int) -> None:
    p = each * nodes
    blocks = {(i, j): 1 / p for i in range(p) for j in range(p) if i != j}
    assert SENT["all_to_all"](Parts(p, nodes, each)) == pytest.approx(crossing(p, each, blocks))


@given(*SIZES, st.sampled_from(["allgather", "reduce_scatter"]))
def test_gathering_by_a_ring_of_nodes_is_the_least(each: int, nodes: int, operation: str) -> None:
    """A node passes every block on but the next one's: n - 1 of n."""
    p = each * nodes
    last = {(i * each + each - 1, (i + 1) * each % p): (nodes - 1) / nodes for i in range(nodes)}
    assert SENT[operation](Parts(p, nodes, each)) == pytest.approx(crossing(p, each, last))
    one, every = SENT["allreduce"](Parts(p, nodes, each))
    assert (one / 2, every / 2) == pytest.approx(crossing(p, each, last))


@given(*SIZES)
def test_a_chain_of_nodes_is_the_least_broadcast(each: int, nodes: int) -> None:
    chain = {(i * each, (i + 1) * each): 1.0 for i in range(nodes - 1)}
    for operation in ("broadcast", "reduce"):
        assert SENT[operation](Parts(each * nodes, nodes, each)) == crossing(0, each, chain)


@given(*SIZES)
def test_a_root_gathers_from_other_nodes(each: int, nodes: int) -> None:
    p = each * nodes
    blocks = {(i, 0): 1 / p for i in range(1, p)}
    for operation in ("gather", "scatter"):
        assert SENT[operation](Parts(p, nodes, each)) == pytest.approx(crossing(p, each, blocks))


@given(*SIZES)
def test_messages_to_the_next_rank(each: int, nodes: int) -> None:
    p = each * nodes
    blocks = {(i, (i + 1) % p): 1.0 for i in range(p)}
    assert SENT["sendrecv"](Parts(p, nodes, each)) == crossing(p, each, blocks)


WIDE = Capacity(link_bandwidth=1e9, links_per_node=4)
SHAPE = GroupShape(64, 16, 4)


@pytest.mark.parametrize(
    ("capacity", "operation", "packed", "seconds", "by"),
    [
        (WIDE, "allreduce", True, 2 * 15 / 16 / 4, LINKS),
        (WIDE, "broadcast", True, 1 / 4, LINKS),
        (WIDE, "all_to_all", True, 4 * 60 / 64 / 4, LINKS),
        # 30 times the buffer over one link's worth
        (WIDE._replace(shared_links=1.0), "allreduce", True, 30.0, SHARED),
        # four racks of four nodes, each behind one link: 2 (4-1)/4, and 16 ranks' blocks for 48 others
        (WIDE._replace(nodes_per_rack=4, rack_links=0.5), "allreduce", True, 3.0, RACKS),
        (WIDE._replace(nodes_per_rack=4, rack_links=1.0), "all_to_all", True, 12.0, RACKS),
        # nodes that are not next to one another may each be in a rack of their own
        (WIDE._replace(nodes_per_rack=4, rack_links=1.0), "all_to_all", False, 15 / 16, LINKS),
        (WIDE._replace(nodes_per_rack=16, rack_links=0.01), "allreduce", True, 15 / 32, LINKS),
        (Capacity(links_per_node=4), "allreduce", True, 0.0, ""),
        (WIDE, "halo", True, 0.0, ""),
    ],
)
def test_the_narrowest_capacity_bounds(
    capacity: Capacity, operation: str, packed: bool, seconds: float, by: str
) -> None:
    found = capacity.least(operation, SHAPE, 1e9, packed)
    assert (found.seconds, found.by) == (pytest.approx(seconds), by)


def test_one_node_sends_over_no_link() -> None:
    assert WIDE.least("allreduce", GroupShape(4, 1, 4), 1e9, True).seconds == 0.0
