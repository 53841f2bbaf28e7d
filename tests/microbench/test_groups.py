"""Which ranks form a group: orders, layouts, levels."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calib.foundation.errors import InputError
from calib.microbench.groups import fits, layout, level_of, machine_order, nodes_of
from calib.microbench.machine.placement import Placement


def placement(hosts: list[str], racks: list[str] | None = None) -> Placement:
    return Placement(
        hosts=hosts,
        cores=[[0]] * len(hosts),
        ranks_per_node=max(map(hosts.count, hosts)),
        oversubscribed=False,
        racks=racks or [],
    )


# two racks of two nodes of two ranks, dealt round robin as `srun -m cyclic` does
CYCLIC = placement(["a", "c", "b", "d"] * 2, ["r1", "r2", "r1", "r2"] * 2)
BLOCK = placement(["a", "a", "b", "b", "c", "c", "d", "d"], ["r1"] * 4 + ["r2"] * 4)


def test_order_is_by_rack_node_and_rank() -> None:
    assert machine_order(CYCLIC) == [0, 4, 2, 6, 1, 5, 3, 7]
    assert machine_order(BLOCK) == list(range(8))


@pytest.mark.parametrize(
    ("size", "stride", "count", "groups"),
    [
        (2, 1, 1, [[0, 1]]),
        (2, 1, 4, [[0, 1], [2, 3], [4, 5], [6, 7]]),
        (4, 1, 2, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (2, 2, 2, [[0, 2], [1, 3]]),  # one rank of each of two nodes, both share the link
        (2, 2, 3, [[0, 2], [1, 3], [4, 6]]),
        (4, 2, 2, [[0, 2, 4, 6], [1, 3, 5, 7]]),  # data+filter 4 x 2: the segmented allreduce
        (2, 4, 4, [[0, 4], [1, 5], [2, 6], [3, 7]]),
        (8, 1, 1, [list(range(8))]),
    ],
)
def test_layouts(size: int, stride: int, count: int, groups: list[list[int]]) -> None:
    assert layout(BLOCK, size, stride, count) == groups
    order = machine_order(CYCLIC)
    assert layout(CYCLIC, size, stride, count) == [[order[r] for r in g] for g in groups]
    assert fits(8, size, stride, count)


def test_levels_and_nodes() -> None:
    assert level_of(BLOCK, [0, 1]) == "node" and nodes_of(BLOCK, [0, 1]) == 1
    assert level_of(BLOCK, [0, 2]) == "rack" and nodes_of(BLOCK, [0, 2]) == 2
    assert level_of(BLOCK, [0, 4]) == "system"
    assert level_of(BLOCK, list(range(8))) == "system" and nodes_of(BLOCK, list(range(8))) == 4
    assert level_of(placement(["a", "b"]), [0, 1]) == "system", "no rack is known"
    assert level_of(CYCLIC, [0, 2]) == "rack" and level_of(CYCLIC, [0, 1]) == "system"


@given(st.integers(1, 24), st.integers(2, 8), st.integers(1, 8), st.integers(1, 12))
def test_groups_are_disjoint_or_refused(ranks: int, size: int, stride: int, count: int) -> None:
    """`fits` says exactly when a layout exists; then its groups are disjoint, of the right size."""
    machine = placement([f"n{r // 4}" for r in range(ranks)])
    if not fits(ranks, size, stride, count):
        with pytest.raises(InputError, match="do not fit"):
            layout(machine, size, stride, count)
        return
    groups = layout(machine, size, stride, count)
    assert [len(group) for group in groups] == [size] * count
    members = [rank for group in groups for rank in group]
    assert len(set(members)) == len(members) and set(members) <= set(range(ranks))
    steps = {b - a for group in groups for a, b in pairwise(group)}
    assert steps == {stride}
