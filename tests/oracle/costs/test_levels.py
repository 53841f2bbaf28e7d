"""Levels, nodes and flows against the placement of every single rank (microbench/groups.py)."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calib.microbench.groups import layout, level_of, nodes_of
from calib.microbench.machine.placement import Placement
from calib.oracle.costs.levels import GroupLayout, Levels, ladder

layouts = st.builds(GroupLayout, st.integers(2, 6), st.integers(1, 7), st.integers(1, 9))


def placed(of: GroupLayout, each: int, per_rack: int) -> tuple[Placement, list[list[int]]]:
    """So many ranks as the groups need on nodes of `each`, in racks of `per_rack` nodes."""
    count = of.size * of.stride * -(-of.groups // of.stride)
    hosts = [f"h{rank // each}" for rank in range(count)]
    racks = [f"r{rank // (each * per_rack)}" for rank in range(count)]
    placement = Placement(hosts, [[0]] * count, each, oversubscribed=False, racks=racks)
    return placement, layout(placement, of.size, of.stride, of.groups)


@settings(max_examples=300, deadline=None)
@given(of=layouts, each=st.integers(1, 8), per_rack=st.integers(1, 4))
def test_of_every_rank(of: GroupLayout, each: int, per_rack: int) -> None:
    placement, groups = placed(of, each, per_rack)
    levels = Levels(each, per_rack)
    order = ("node", "rack", "system")
    slowest = max((level_of(placement, group) for group in groups), key=order.index)
    assert levels.names(of) == (slowest,)
    assert levels.shape(of) == max(
        (nodes_of(placement, group), max(Counter(placement.hosts[rank] for rank in group).values()))
        for group in groups
    )
    assert of.ranks == 1 + max(max(group) for group in groups)
    leaving = [
        sum({placement.hosts[r] for r in group} > {host} for group in groups)
        for host in set(placement.hosts)
    ]
    assert levels.flows(of) == max(leaving)


def test_unknown_racks_are_one_level() -> None:
    assert Levels(4, 0).names(GroupLayout(4)) == ("node",)
    assert (
        Levels(4, 0).names(GroupLayout(5))
        == Levels(4, 0).names(GroupLayout(4000))
        == ("system", "rack")
    )


@pytest.mark.parametrize(
    ("of", "flows"),
    [
        (GroupLayout(4, stride=2, groups=2), 2),  # data+filter 4 x 2: both rings leave every node
        (GroupLayout(4, stride=8, groups=8), 4),  # 4 x 8: a node has only four ranks
        (GroupLayout(2, stride=2, groups=2), 0),
        (GroupLayout(8), 1),
        (GroupLayout(8, groups=2), 1),  # each has nodes of its own
    ],
)
def test_flows_of_hybrids_on_nodes_of_four(of: GroupLayout, flows: int) -> None:
    assert Levels(4, 0).flows(of) == flows


def test_groups_of_one_node_share_its_memory() -> None:
    """Nodes of 8: four pairs on each, however many there are on other nodes; three are three."""
    levels = Levels(8, 0)
    assert [levels.together(GroupLayout(2, groups=k)) for k in (1, 3, 4, 64)] == [1, 3, 4, 4]
    assert levels.together(GroupLayout(2, stride=4, groups=4)) == 4


def test_what_crosses_nodes_stands_in_first() -> None:
    assert ladder(("node",)) == [("node",), ("system",), ("rack",)]
    assert ladder(("rack",)) == [("rack",), ("system",), ("node",)]
    assert ladder(("system", "rack")) == [("system", "rack"), ("node",)]
