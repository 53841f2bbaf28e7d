"""Concurrent groups: phi by hand, on lines of chosen alpha and beta."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracle.handmade import LINE_FACTOR
from tests.oracle.networks import contention, line, network, straight, structural

from calib.oracle.cost import Cost
from calib.oracle.costs.collectives import CollectiveCosts
from calib.oracle.layout.traffic import Message

M = 65536
START, BYTES = 6e-6, 1.5 * M * 1e-9  # of an allreduce on 4: 6 alpha + 1.5 m beta
ACROSS = line("allreduce", 4, "system", shape=(6.0, 1.5))
INSIDE = line("allreduce", 2, "node", shape=(2.0, 1.0))


def shards(costs: CollectiveCosts, p2: int, nbytes: int = M) -> Cost:
    """The segmented allreduce of data+filter 4 x p2: p2 rings of 4, p2 apart."""
    return costs.time(Message("allreduce", nbytes, 4, stride=p2, groups=p2))


@pytest.mark.parametrize(
    ("p2", "links", "phi"), [(2, 1, 2), (4, 1, 4), (4, 2, 2), (4, 3, 4 / 3), (2, 4, 1), (8, 1, 4)]
)
def test_flows_over_links(p2: int, links: int, phi: float) -> None:
    """formulas.md: phi = p2 / n on the bytes alone; nodes of 4 have no more than 4 flows."""
    costs = network(ACROSS, ranks_per_node=4, links_per_node=links)
    cost = shards(costs, p2)
    assert cost.seconds == pytest.approx(START + phi * BYTES)
    # a link may be alone, or all flows may share one
    flows = min(p2, 4)
    assert {name: (down, up) for name, down, up in cost.errors}["contention"] == pytest.approx(
        ((phi - 1) * BYTES, (flows - phi) * BYTES)
    )
    assert cost.basis == "extrapolated"
    assert any(f"{flows} flows leave a node by {links}" in note for note in cost.notes)


def test_unknown_links_are_one_and_that_is_said() -> None:
    cost = shards(network(ACROSS, ranks_per_node=4), 4)
    assert cost.seconds == pytest.approx(START + 4 * BYTES)
    assert any("links are unknown" in note for note in cost.notes)
    assert ("contention", pytest.approx(3 * BYTES), pytest.approx(0)) in cost.errors


@pytest.mark.parametrize(
    "message",
    [
        Message("allreduce", M, 4, stride=4),
        Message("allreduce", M, 8, groups=2),  # each on nodes of its own
    ],
)
def test_who_meets_nobody_has_no_contention(message: Message) -> None:
    alone = Message("allreduce", M, message.group_size, stride=message.stride)
    records = [contention({1: 1.0, 4: 4.0}, ranks=4, stride=4)]
    fits = [ACROSS, line("allreduce", 8, "system", shape=(14.0, 1.75))]
    costs = network(*fits, ranks_per_node=4, links_per_node=1, contention=records)
    assert costs.time(message) == costs.time(alone)


@settings(max_examples=60)
@given(
    p=st.integers(2, 16),
    stride=st.integers(1, 16),
    nbytes=st.integers(1, 10**7),
    each=st.integers(1, 8),
)
def test_one_group_has_none_and_several_take_no_less(
    p: int, stride: int, nbytes: int, each: int
) -> None:
    records = [contention({1: 1.0, 2: 1.5}), contention({1: 1.0, 2: 1.2}, level="node")]
    with_records, without = (
        network(ACROSS, INSIDE, ranks_per_node=each, contention=found) for found in (records, [])
    )
    alone = Message("allreduce", nbytes, p, stride)
    assert with_records.time(alone) == without.time(alone)
    several = Message("allreduce", nbytes, p, stride, groups=stride)
    for costs in (with_records, without):
        assert costs.time(several).seconds >= costs.time(alone).seconds


def test_a_measured_layout_has_its_own_phi() -> None:
    """Two rings of 4, 2 apart, were measured: phi = 1.5 +- 5%, whatever links the cluster has."""
    record = contention({1: 1.0, 2: 1.5}, ranks=4, stride=2)
    other = contention({1: 1.0, 2: 9.0}, ranks=2, stride=2)
    costs = network(ACROSS, links_per_node=1, contention=[other, record])
    cost = shards(costs, 2)
    assert cost.seconds == pytest.approx(START + 1.5 * BYTES)
    assert cost.basis == "interpolated" and cost.notes == ()
    margin = pytest.approx(0.075 * BYTES)
    assert ("contention", margin, margin) in cost.errors
    # the error of one group alone grows with the time: 10% of it
    assert cost.errors[0][2] == pytest.approx(0.1 * cost.seconds)


@pytest.mark.parametrize(("groups", "phi"), [(2, 1.5), (4, 1.7), (8, 1.7)])
def test_groups_on_other_nodes_count_as_they_were_measured(groups: int, phi: float) -> None:
    """Rings of 4, 2 apart, fill 8 ranks by two: more of them meet no others; 4 were measured."""
    record = contention({1: 1.0, 2: 1.5, 4: 1.7}, ranks=4, stride=2)
    message = Message("allreduce", M, 4, stride=2, groups=groups)
    cost = network(ACROSS, contention=[record]).time(message)
    assert cost.seconds == pytest.approx(START + phi * BYTES)
    # of another layout, only the two that meet on a node
    near = contention({1: 1.0, 2: 1.5, 4: 1.7}, ranks=4, stride=4)
    cost = network(ACROSS, contention=[near]).time(message)
    assert cost.seconds == pytest.approx(START + 1.5 * BYTES)


def test_phi_is_never_below_one() -> None:
    """What several groups seemed to gain is noise."""
    record = contention({1: 1.0, 2: 0.8}, ranks=4, stride=2)
    assert shards(network(ACROSS, contention=[record]), 2).seconds == pytest.approx(START + BYTES)


def test_the_record_of_the_level_comes_first() -> None:
    """Racks of two nodes: 2 of 4 ranks 2 apart leave the rack, whatever was measured inside one."""
    records = [
        contention({1: 1.0, 2: 7.0}, level="rack", ranks=4, stride=2),
        contention({1: 1.0, 2: 1.5}, level="system", ranks=2, stride=1),
    ]
    costs = network(ACROSS, nodes_per_rack=2, contention=records)
    assert shards(costs, 2).seconds == pytest.approx(START + 1.5 * BYTES)


def test_contention_is_on_what_a_structural_law_sends() -> None:
    """6 alpha, and 1.5 m beta of the ring on 4, of which phi = 2."""
    fits = [straight(p, "system", nodes=p) for p in (2, 8)]
    law = structural((2, 8), nodes=[2, 8], level="system")
    costs = network(*fits, structural=[law], links_per_node=1)
    sent = 1.5e6 * 1e-9
    assert shards(costs, 2, 10**6).seconds == pytest.approx(6 * 1e-6 + 2 * sent, rel=2e-3)


def test_the_nearest_layout_stands_in_and_is_told() -> None:
    """Of pairs 1 and 8 apart, that of 8 is nearer to 4 apart; 4 flows are what counts.

    Rings over four nodes were not measured, pairs over two were: phi from 1 (2 / 2, less 5%) to 4.
    """
    records = [contention({1: 1.0, 4: 3.0}, stride=1), contention({1: 1.0, 4: 2.0}, stride=8)]
    cost = shards(network(ACROSS, ranks_per_node=4, contention=records), 4)
    assert cost.seconds == pytest.approx(START + 2.0 * BYTES)
    assert cost.basis == "extrapolated"
    assert ("contention", pytest.approx(BYTES), pytest.approx(2 * BYTES)) in cost.errors
    assert any("that of 4 groups of 2 8 apart in allreduce" in note for note in cost.notes)


def test_beyond_the_measured_groups_is_an_extrapolation() -> None:
    """1 and 2 groups give 1 and 1.5; four on the same steps 2.5."""
    record = contention({1: 1.0, 2: 1.5}, ranks=4, stride=4)
    cost = shards(network(ACROSS, ranks_per_node=4, contention=[record]), 4)
    assert cost.seconds == pytest.approx(START + 2.5 * BYTES)
    assert cost.basis == "extrapolated"


def test_a_node_is_no_network() -> None:
    """The records of a node say nothing of its links, and the other way round."""
    records = [contention({1: 1.0, 4: 7.0}, level="node")]
    costs = network(ACROSS, INSIDE, ranks_per_node=4, links_per_node=4, contention=records)
    assert shards(costs, 4).seconds == pytest.approx(START + BYTES)
    pairs = costs.time(Message("allreduce", M, 2, groups=2))
    # k = 1 .. 4 is 1 .. 7 in steps: two groups are at 3
    assert pairs.seconds == pytest.approx(2e-6 + 3 * M * 1e-9)


def test_groups_per_node_share_its_memory() -> None:
    """Eight pairs on four nodes of 4 ranks are two a node; without a record they may share it all."""
    record = contention({1: 1.0, 2: 1.25, 8: 5.0}, level="node", ranks=3)
    for groups in (2, 8):
        costs = network(INSIDE, ranks_per_node=4, contention=[record])
        cost = costs.time(Message("allreduce", M, 2, groups=groups))
        assert cost.seconds == pytest.approx(2e-6 + 1.25 * M * 1e-9)
    cost = network(INSIDE, ranks_per_node=4).time(Message("allreduce", M, 2, groups=8))
    assert cost.seconds == pytest.approx(2e-6 + M * 1e-9)
    assert ("contention", 0.0, pytest.approx(M * 1e-9)) in cost.errors
    assert cost.basis == "extrapolated" and any("up to 2 times" in note for note in cost.notes)


def test_another_operation_takes_the_allreduces_phi() -> None:
    gather = line("allgather", 2, "node", shape=(1.0, 0.5))
    records = [contention({1: 1.0, 2: 2.0}, level="node")]
    message = Message("allgather", M, 2, groups=2)
    cost = network(gather, ranks_per_node=4, contention=records).time(message)
    assert cost.seconds == pytest.approx(1e-6 + 2 * 0.5 * M * 1e-9)
    assert cost.basis == "extrapolated" and "in allreduce" in cost.notes[0]
    own = contention({1: 1.0, 2: 1.5}, level="node", operation="allgather")
    cost = network(gather, ranks_per_node=4, contention=[*records, own]).time(message)
    assert cost.seconds == pytest.approx(1e-6 + 1.5 * 0.5 * M * 1e-9)
    assert (cost.basis, cost.notes) == ("interpolated", ())


def test_records_of_another_library_say_nothing() -> None:
    records = [contention({1: 1.0, 4: 9.0}, library="nccl", device="cuda")]
    costs = network(ACROSS, ranks_per_node=4, links_per_node=4, contention=records)
    assert shards(costs, 4).seconds == pytest.approx(START + BYTES)


def test_the_small_message_is_all_start_up() -> None:
    """Of one that took less than the line's start-up no byte is left to contend."""
    costs = network(ACROSS, ranks_per_node=4, links_per_node=1)
    alone = costs.time(Message("allreduce", 4, 4, stride=4))
    assert shards(costs, 4, 4).seconds == pytest.approx(alone.seconds + 3 * 1.5 * 4 * 1e-9)


def test_a_hierarchy_pays_for_its_groups_and_not_for_its_one_ring_of_leaders() -> None:
    fits = [INSIDE, line("allreduce", 2, "system", 9e-6, 5e-9, (2.0, 1.0))]
    record = contention({1: 1.0, 2: 2.0}, level="node")
    costs = network(*fits, ranks_per_node=4, links_per_node=1, contention=[record])
    cost = costs.time(Message("hierarchical_allreduce", M, 4, inner=2))
    # one node: two groups of 2 at once inside it, then leaders 2 apart inside it as well
    assert cost.seconds == pytest.approx((2e-6 + 2 * M * 1e-9) + (2e-6 + M * 1e-9))


# the paper's phi, alpha and beta


@pytest.mark.parametrize(
    ("links", "flows", "span", "phi"),
    [(2, 4, 16, 2.0), (2, 1, 16, 1.0), (0, 4, 16, 4.0), (2, 4, 4, 1.0), (1, 99, 400, 4.0)],
)
def test_the_papers_phi(links: int, flows: float, span: int, phi: float) -> None:
    """p2 / n between nodes, 1 inside one; a node of 4 has no more than 4 flows."""
    costs = network(ACROSS, ranks_per_node=4, links_per_node=links)
    assert costs.contention_of(flows, span).factor.value == phi


def test_links_that_nobody_states_are_those_that_were_measured() -> None:
    records = [contention({1: 1.0, 4: 2.0}, stride=4), contention({1: 1.0, 4: 9.0}, level="node")]
    costs = network(ACROSS, ranks_per_node=4, contention=records)
    assert costs.contention_of(4, 16).factor.value == 2.0
    known = network(ACROSS, ranks_per_node=4, links_per_node=1, contention=records)
    assert known.contention_of(4, 16).factor.value == 4.0


def test_a_link_is_alpha_and_beta_of_the_level() -> None:
    far = line("allreduce", 8, "system", 9e-6, 5e-9, (14.0, 1.75))
    costs = network(INSIDE, far, ranks_per_node=4)
    near, across = costs.link(2, "allreduce"), costs.link(8, "allreduce")
    assert (near.level, near.alpha_s.value, near.beta_s_per_byte.value) == ("node", 1e-6, 1e-9)
    assert (across.level, across.alpha_s.value) == ("system", 9e-6)
    assert across.beta_s_per_byte.value == far.beta_s_per_byte.value
    # the line is right up to a factor, also on the p that it was fitted to
    assert across.beta_s_per_byte.high == pytest.approx(LINE_FACTOR * far.beta_s_per_byte.high)
    assert across.alpha_s.low == pytest.approx(far.alpha_s.low / LINE_FACTOR)
    assert (near.basis, across.basis, near.notes) == ("interpolated", "interpolated", ())
    # the ring of formulas.md on it
    assert across.allreduce(8, M).seconds == pytest.approx(14 * (9e-6 + 5e-9 * M / 8))


def test_a_link_of_another_p_is_wider() -> None:
    """From 8 to 80 ranks a decade: the line's error twice."""
    far = line("allreduce", 8, "system", shape=(14.0, 1.75))
    link = network(far, ranks_per_node=4).link(80, "allreduce")
    assert link.basis == "extrapolated" and "those of 8 ranks" in link.notes[0]
    assert link.alpha_s.high == pytest.approx(1.1e-6 * 1.5**2)
    assert link.beta_s_per_byte.low == pytest.approx(0.9e-9 / 1.5**2)
    between = [far, line("allreduce", 128, "system", shape=(254.0, 254 / 128))]
    assert network(*between, ranks_per_node=4).link(80, "allreduce").basis == "interpolated"


@pytest.mark.parametrize("operation", ["p2p", "halo"])
def test_a_link_between_neighbours_is_that_of_p2p(operation: str) -> None:
    fits = [line("p2p", alpha_s=2e-6), line("halo", alpha_s=4e-6), INSIDE]
    link = network(*fits).link(2, operation)
    assert (link.alpha_s.value, link.basis, link.notes) == (2e-6, "interpolated", ())
    link = network(INSIDE).link(2, operation)
    assert (link.alpha_s.value, link.basis) == (1e-6, "extrapolated")
    assert "those of allreduce" in link.notes[0]


def test_a_link_of_another_level_is_a_guess() -> None:
    link = network(INSIDE, line("p2p"), ranks_per_node=2).link(4, "p2p")
    assert (link.level, link.basis) == ("system", "extrapolated")
    assert link.alpha_s.high == pytest.approx(16.5e-6) and link.alpha_s.low == pytest.approx(0.6e-7)
    assert "no link between nodes was measured" in link.notes[0]


def test_the_paper_form_sees_groups_that_the_end_of_a_node_cuts() -> None:
    """Groups of 3 on nodes of 4: ranks 3, 4, 5 are on two nodes, though 3 ranks have room on one."""
    fits = (INSIDE, line("allreduce", 4, "rack", 1e-6, 9e-9, (6.0, 1.5)))
    costs = network(*fits, ranks_per_node=4)
    assert costs.link(3, "allreduce", 2).beta_s_per_byte.value == pytest.approx(9e-9)
    for span, groups in ((3, 1), (2, 6), (4, 3)):
        assert costs.link(span, "allreduce", groups).beta_s_per_byte.value == 1e-9
