"""Collectives asked for by themselves: layouts, bandwidths, intervals, algorithms."""

from __future__ import annotations

from typing import Any

import pytest
from tests.oracle.handmade import INTERPOLATION_FACTOR, LINE_FACTOR, machine
from tests.oracle.networks import SIZES, line, straight, structural

from calib.fitting.parameters.algorithms import GroupShape
from calib.fitting.parameters.collectives import CollectivePoint
from calib.foundation.errors import InputError, MissingParameter
from calib.foundation.records import Estimate
from calib.oracle.costs.asked import ONE_RUN, Collectives


def asked(*fits: Any, **changes: Any) -> Collectives:
    return Collectives(machine(collectives=list(fits), **changes))


def test_layouts_follow_from_what_is_given() -> None:
    of = asked(ranks_per_node=8)
    assert of.shape(128) == GroupShape(128, 16, 8)
    assert of.shape(4) == GroupShape(4, 1, 4)
    assert of.shape(128, 32) == GroupShape(128, 32, 4)
    assert of.shape(16, ranks_per_node=4) == GroupShape(16, 4, 4)
    assert of.shape(10, 2, 8) == GroupShape(10, 2, 8)  # 8 + 2
    for given, said in (
        ((1,), "2 ranks or more"),
        ((9, 4), "9 ranks, 3 on a node, fill 3 nodes, not 4"),
        ((16, 2, 4), "fill 4 nodes, not 2"),
    ):
        with pytest.raises(InputError, match=said):
            of.shape(*given)


def test_a_measured_size_with_the_bandwidths_of_nccl_tests() -> None:
    of = asked(line("allreduce", 4), ranks_per_node=4)
    found = of.time("allreduce", SIZES[0], of.shape(4))
    seconds = 1e-6 + 1e-9 * SIZES[0]
    assert found.seconds.numbers == pytest.approx((seconds, 0.9 * seconds, 1.1 * seconds))
    assert found.cost.basis == "measured" and found.algorithm == ""
    assert found.algbw == pytest.approx(SIZES[0] / seconds)
    assert found.busbw == pytest.approx(1.5 * SIZES[0] / seconds)  # 2 (n - 1) / n
    between = of.time("allreduce", SIZES[0] * 2, of.shape(4))
    beyond = of.time("allreduce", SIZES[-1] * 2, of.shape(4))
    assert (between.cost.basis, beyond.cost.basis) == ("interpolated", "extrapolated")


def test_the_nodes_that_are_asked_for_choose_the_law() -> None:
    """p = 4 on one node, on two and on four: three laws, whatever a node of the machine holds."""
    fits = [
        line("allreduce", 4, level, alpha_s=alpha, nodes=nodes, ranks_per_node=each)
        for level, alpha, nodes, each in (
            ("node", 1e-6, 1, 4),
            ("system", 2e-6, 2, 2),
            ("system", 3e-6, 4, 1),
        )
    ]
    of = asked(*fits, ranks_per_node=8)
    starts = [
        of.time("allreduce", SIZES[0], of.shape(4, nodes)).cost.seconds - 1e-9 * SIZES[0]
        for nodes in (1, 2, 4)
    ]
    assert starts == pytest.approx([1e-6, 2e-6, 3e-6])


def test_a_size_of_one_run_lies_within_the_scatter_of_its_law() -> None:
    once = [CollectivePoint(nbytes=m, seconds=Estimate.exactly(1e-3), n=1) for m in SIZES]
    of = asked(line("allreduce", points=once))
    found = of.time("allreduce", SIZES[0], of.shape(2))
    factor = max(LINE_FACTOR, INTERPOLATION_FACTOR)
    assert found.seconds.numbers == pytest.approx((1e-3, 1e-3 / factor, 1e-3 * factor))
    assert found.cost.basis == "measured" and found.cost.notes == (ONE_RUN,)


def test_the_algorithm_is_that_of_the_law_of_several_p() -> None:
    fits = [straight(p) for p in (2, 4, 8)]
    of = asked(*fits, structural=[structural()], ranks_per_node=8)
    measured = of.time("allreduce", SIZES[0], of.shape(4))
    other = of.time("allreduce", 1000, of.shape(6))
    assert (measured.algorithm, measured.cost.basis) == ("ring", "measured")
    assert (other.algorithm, other.cost.basis) == ("ring", "interpolated")
    assert other.cost.seconds == pytest.approx(10 * (1e-6 + 1e-9 * 1000 / 6), rel=2e-3)


def test_a_message_is_between_two_ranks_on_as_many_nodes() -> None:
    of = asked(line("p2p"), line("p2p", level="system", alpha_s=5e-6), ranks_per_node=8)
    inside, between = (of.time("p2p", SIZES[0], of.shape(p)) for p in (8, 64))
    assert (inside.shape, between.shape) == (GroupShape(2, 1, 2), GroupShape(2, 2, 1))
    assert between.cost.seconds - inside.cost.seconds == pytest.approx(4e-6)


def test_a_sendrecv_is_among_all_ranks() -> None:
    of = asked(line("sendrecv", 8, nodes=1, ranks_per_node=8), ranks_per_node=8)
    found = of.time("sendrecv", SIZES[0], of.shape(8))
    assert (found.shape, found.cost.basis) == (GroupShape(8, 1, 8), "measured")
    assert found.busbw == found.algbw


def test_a_hierarchical_allreduce_is_by_node() -> None:
    fits = (line("allreduce", 2), line("allreduce", 2, "system", nodes=2, ranks_per_node=1))
    of = asked(*fits, ranks_per_node=2)
    found = of.time("hierarchical_allreduce", SIZES[0], of.shape(4))
    assert found.cost.seconds == pytest.approx(2 * (1e-6 + 1e-9 * SIZES[0]))


def test_what_was_measured_and_what_is_unknown() -> None:
    of = asked(line("allreduce"), line("halo"), line("reduce algorithm=ring"), line("gather"))
    assert of.measured == ["allreduce", "gather"]
    assert of.time("reduce algorithm=ring", SIZES[0], of.shape(2)).cost.basis == "measured"
    with pytest.raises(InputError, match="unknown operation 'allsum'; known: all_to_all"):
        of.time("allsum", 8, of.shape(2))
    with pytest.raises(MissingParameter, match="hold no all to all"):
        of.time("all_to_all", 8, of.shape(2))
