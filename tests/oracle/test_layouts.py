"""A measurement is valid for its own nodes and ranks per node only.

The H100 logs (10 nodes of 1, 2 and 4 ranks) gave 40 ms for 8 + 2 ranks, and 7 ms for 9 and 11.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.helpers.published import DATA, needs_data
from tests.oracle.handmade import LINE_FACTOR
from tests.oracle.networks import contention, line, network, straight, structural

from calib.fitting.fit import fit_runs
from calib.foundation.collectives import Operation
from calib.microbench.groups import layout, nodes_of
from calib.microbench.importers import read_file
from calib.microbench.importers.machine import cluster_of, write_run
from calib.microbench.importers.said import Flags
from calib.microbench.machine.placement import Placement
from calib.oracle.costs.collective_laws import LAYOUT_FACTOR
from calib.oracle.costs.collectives import CollectiveCosts
from calib.oracle.layout.traffic import Message

LOGS = (
    "nccl-tests/xx_h100_10n10g_5coll.txt",
    "nccl-scale/xx_h100_10n20g_5coll.txt",
    "nccl-tests/xx_h100_10n40g_5coll.txt",
    "nccl-tests/xx_h100_1n8g_5coll.txt",
)
M = 65536  # a point of handmade fits


def ring(p: int, nbytes: float) -> float:
    """2 (p-1) (alpha + m beta / p) of straight laws."""
    return 2 * (p - 1) * (1e-6 + nbytes * 1e-9 / p)


@settings(max_examples=300, deadline=None)
@given(
    p=st.integers(2, 12),
    stride=st.integers(1, 9),
    each=st.integers(1, 8),
    nodes=st.integers(2, 12),
    fullest=st.integers(1, 8),
)
def test_measured_is_what_lies_as_it_lay(
    p: int, stride: int, each: int, nodes: int, fullest: int
) -> None:
    """Measured if p, nodes and ranks on a node are the same, else extrapolated."""
    assume(-(-p // nodes) <= fullest <= p - nodes + 1)
    count = p * stride
    hosts = [f"h{rank // each}" for rank in range(count)]
    placement = Placement(hosts, [[0]] * count, each, oversubscribed=False, racks=[""] * count)
    (group,) = layout(placement, p, stride, 1)
    held = [hosts[rank] for rank in group]
    lies = (nodes_of(placement, group), max(map(held.count, held)))
    fit = line("allreduce", p, "system", nodes=nodes, ranks_per_node=fullest)
    cost = network(fit, ranks_per_node=each).time(Message("allreduce", M, p, stride))
    assert (cost.basis == "measured") == (lies == (nodes, fullest))
    assert cost.basis in ("measured", "extrapolated")


def test_ten_nodes_of_one_are_not_eight_and_two() -> None:
    """Ten nodes of one rank, scaled to 8 + 2: less sure by 2.3 doublings of nodes and 3 of ranks."""
    fit = straight(10, "system", nodes=10, ranks_per_node=1)
    costs = network(fit, ranks_per_node=8)
    assert costs.time(Message("allreduce", M, 10, stride=8)).basis == "measured"
    cost = costs.time(Message("allreduce", M, 10))
    assert cost.high / cost.seconds > math.exp(1.96 * 2 * math.sqrt(0.07**2 + 0.1**2 * 5.3))
    assert cost.low <= ring(10, M) <= cost.high
    assert cost.notes == (
        "allreduce on 10 ranks of 2 nodes was not measured: scaled from 10 on 10 nodes, by ring",
    )


def test_five_and_five_are_not_eight_and_two() -> None:
    """Both are ten ranks on two nodes."""
    fit = line("allreduce", 10, "system", nodes=2, ranks_per_node=5)
    message = Message("allreduce", M, 10)
    assert network(fit, ranks_per_node=5).time(message).basis == "measured"
    assert network(fit, ranks_per_node=8).time(message).basis == "extrapolated"


def test_each_layout_of_one_p_has_its_own_law() -> None:
    fits = [
        line("allreduce", 8, "system", alpha_s=alpha_s, nodes=nodes, ranks_per_node=each)
        for alpha_s, nodes, each in ((1e-6, 2, 4), (2e-6, 4, 2), (3e-6, 8, 1))
    ]
    costs = network(*fits, ranks_per_node=4)
    for stride, alpha_s in ((1, 1e-6), (2, 2e-6), (4, 3e-6)):
        cost = costs.time(Message("allreduce", M, 8, stride))
        assert cost.seconds == pytest.approx(alpha_s + M * 1e-9)
        assert cost.basis == "measured"


@pytest.mark.parametrize(
    ("p", "stride", "basis"),
    [
        (12, 1, "interpolated"),  # 3 nodes of 4, between 2 and 4
        (11, 1, "extrapolated"),  # 4 + 4 + 3
        (6, 2, "extrapolated"),  # 3 nodes of 2: no ranks of a node but 4
        (32, 1, "extrapolated"),  # 8 nodes
    ],
)
def test_a_structural_law_interpolates_between_layouts(p: int, stride: int, basis: str) -> None:
    """Less sure for each doubling of nodes, and of ranks on a node, from what was measured."""
    law = structural((8, 16), level="system", nodes=[2, 4], ranks_per_node=[4, 4])
    fits = [straight(q, "system", nodes=q // 4, ranks_per_node=4) for q in (8, 16)]
    costs = network(*fits, structural=[law], ranks_per_node=4)
    cost = costs.time(Message("allreduce", M, p, stride))
    assert cost.basis == basis
    between = costs.time(Message("allreduce", M, 12))
    assert cost.high / cost.seconds >= 0.999 * between.high / between.seconds
    if stride == 1:
        assert cost.seconds == pytest.approx(ring(p, M), rel=2e-3)


def test_a_law_of_one_number_of_nodes_says_less_of_others() -> None:
    law = structural((10, 20), level="system", nodes=[10, 10], ranks_per_node=[1, 2])
    fits = [straight(10 * each, "system", nodes=10, ranks_per_node=each) for each in (1, 2)]
    costs = network(*fits, structural=[law], ranks_per_node=8)
    near = costs.time(Message("allreduce", M, 11, stride=8))
    assert near.seconds == pytest.approx(ring(11, M), rel=0.05)
    factors = [
        cost.high / cost.seconds
        for cost in (near, *(costs.time(Message("allreduce", M, p, 2)) for p in (40, 80, 320)))
    ]
    assert factors == sorted(factors) and factors[0] < 1.25 < factors[-1]


def test_operations_without_a_model_are_no_measurement_elsewhere() -> None:
    fit = line("halo", 4, "system", nodes=4, ranks_per_node=1)
    costs = network(fit, ranks_per_node=4)
    there = costs.time(Message("halo", M, 4, stride=4, grid=(4,)))
    assert there.basis == "measured"
    beside = network(fit, ranks_per_node=3).time(Message("halo", M, 4, grid=(4,)))
    assert beside.basis == "extrapolated" and "on 4 nodes" in beside.notes[0]
    assert beside.seconds == there.seconds
    assert beside.high == pytest.approx(there.high * LAYOUT_FACTOR**1.585, rel=1e-3)  # 3 for 1


def test_alpha_and_beta_of_another_layout_are_told() -> None:
    """The paper's form, too."""
    fit = line("allreduce", 10, "system", shape=(18.0, 1.8), nodes=10, ranks_per_node=1)
    link = network(fit, ranks_per_node=8).link(10, "allreduce")
    assert link.basis == "extrapolated" and link.notes == (
        "alpha and beta of allreduce are those of 10 ranks on 10 nodes",
    )
    assert link.beta_s_per_byte.high == pytest.approx(1.1e-9 * LINE_FACTOR * 8)
    same = network(fit, ranks_per_node=1).link(10, "allreduce")
    assert (same.basis, same.notes) == ("interpolated", ())


def test_phi_of_the_very_layout_is_the_surest() -> None:
    fit = line("allreduce", 4, "system", nodes=4, ranks_per_node=1)
    rings = contention({1: 1.0, 4: 2.0}, ranks=4, stride=4)
    cost = network(fit, ranks_per_node=4, contention=[rings]).time(
        Message("allreduce", M, 4, stride=4, groups=4)
    )
    assert cost.basis == "interpolated"


@pytest.fixture(scope="module")
def h100(tmp_path_factory: pytest.TempPathFactory) -> CollectiveCosts:
    paths = [DATA / name for name in LOGS]
    run = tmp_path_factory.mktemp("h100") / "run"
    records, found = zip(*(read_file(path, Flags()) for path in paths), strict=True)
    write_run(run, records, found, cluster_of(found, "h100"), "test")
    return CollectiveCosts(fit_runs([run]))


@needs_data
@pytest.mark.parametrize("operation", ["allreduce", "allgather", "reduce_scatter", "all_to_all"])
def test_no_p_stands_out_of_its_neighbours(h100: CollectiveCosts, operation: Operation) -> None:
    """1 GiB on 9, 10 and 11 H100 of nodes of 8, and on as many nodes of 1, 2 and 4."""
    for stride in (1, 2, 4, 8):
        # up to two nodes the first one fills; from there on only a node more may come
        first = 9 if stride == 1 else 2 * (8 // stride) + 1
        times = {
            p: h100.time(Message(operation, 1 << 30, p, stride))
            for p in range(first, 96 // stride + 1)
        }
        bases = {p for p, cost in times.items() if cost.basis != "extrapolated"}
        assert bases == ({80 // stride} if stride > 1 else set())
        for p in range(first, 96 // stride):
            # of 17 ranks on nodes of 8, one sends to 16 others by its own link; of 16, each to 8
            most = 0.9 if operation == "all_to_all" else 0.45
            assert times[p + 1].seconds / times[p].seconds == pytest.approx(1, abs=most)
