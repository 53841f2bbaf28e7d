"""Composed operations: halos, hierarchies, stand-ins; libraries; missing parameters."""

from __future__ import annotations

import math

import pytest
from tests.oracle.handmade import allreduce_fit, close
from tests.oracle.networks import line, network, straight

from calib.fitting.parameters.algorithms import steps_and_volume
from calib.foundation.collectives import Operation
from calib.foundation.errors import MissingParameter
from calib.microbench.collectives.operations import neighbours
from calib.oracle.cost import Cost
from calib.oracle.costs.collectives import COMPOSED_FACTOR, CollectiveCosts
from calib.oracle.layout.traffic import Message


def allreduce(costs: CollectiveCosts, ranks: int, nbytes: int) -> Cost:
    return costs.time(Message("allreduce", nbytes, ranks))


@pytest.mark.parametrize("grid", [(2,), (4,), (2, 2), (4, 2), (3, 3), (3, 1), (2, 3, 4)])
@pytest.mark.parametrize("name", ["p2p", "p2p_both"])
def test_a_halo_is_a_message_to_each_neighbour(grid: tuple[int, ...], name: str) -> None:
    """As many as the rank with most of them has, which microbench counts rank by rank."""
    p = math.prod(grid)
    most = max(len(neighbours(rank, grid)) for rank in range(p))
    cost = network(line(name), ranks_per_node=64).time(Message("halo", 65536, p, grid=grid))
    seconds = most * (1e-6 + 65536e-9)
    low, high = seconds * 0.9 / COMPOSED_FACTOR, seconds * 1.1 * COMPOSED_FACTOR
    assert close(cost, seconds, low, high)
    assert cost.basis == "extrapolated" and f"{most} {name}" in cost.notes[0]


def test_a_measured_halo_has_its_grid_in_its_name() -> None:
    """A grid of 4 x 1 is exchanged as one of 4 is; 2 x 2 is another of as many ranks."""
    fits = [line("halo", 4), line("halo 2x2", 4, alpha_s=5e-6), line("p2p")]
    costs = network(*fits, ranks_per_node=8)
    for grid, alpha_s in {(4,): 1e-6, (4, 1): 1e-6, (1, 4): 1e-6, (2, 2): 5e-6}.items():
        cost = costs.time(Message("halo", 65536, 4, grid=grid))
        assert cost.seconds == pytest.approx(alpha_s + 65536e-9, rel=1e-12)
        assert (cost.basis, cost.notes) == ("measured", ())


def test_a_halo_of_another_grid_goes_by_neighbours() -> None:
    """In 8 a rank has two as in 4: the same time; in 4 x 2 three, in 2 one."""
    costs = network(line("halo", 4), line("p2p", alpha_s=1.0), ranks_per_node=8)
    one = 1e-6 + 65536e-9
    for grid, share in {(8,): 1.0, (4, 2): 1.5, (2,): 0.5}.items():
        cost = costs.time(Message("halo", 65536, math.prod(grid), grid=grid))
        factor = max(share, 1 / share)
        seconds = share * one
        assert close(cost, seconds, seconds * 0.9 / factor, seconds * 1.1 * factor)
        assert cost.basis == "extrapolated"


def test_a_hierarchical_allreduce_is_one_inside_and_one_of_the_leaders() -> None:
    """8 ranks by leaders of 4, nodes of 4: 4 inside a node, 2 between nodes (formulas.md)."""
    shapes = {p: steps_and_volume("allreduce", p) for p in (2, 4)}
    fits = [
        line("allreduce", 4, "node", 1e-6, 1e-9, shapes[4]),
        line("allreduce", 2, "system", 9e-6, 5e-9, shapes[2]),
    ]
    costs = network(*fits, ranks_per_node=4)
    cost = costs.time(Message("hierarchical_allreduce", 65536, 8, inner=4))
    inside = 6 * (1e-6 + 65536e-9 / 4)
    leaders = 2 * (9e-6 + 65536 * 5e-9 / 2)
    assert costs.time(Message("allreduce", 65536, 2, stride=4)).seconds == pytest.approx(leaders)
    assert cost.seconds == pytest.approx(inside + leaders, rel=1e-12)
    assert cost.basis == "extrapolated" and "one of 2 leaders" in cost.notes[-1]
    measured = line("hierarchical_allreduce inner=4", 8, "system", alpha_s=3e-6)
    found = network(*fits, measured, ranks_per_node=4)
    cost = found.time(Message("hierarchical_allreduce", 65536, 8, inner=4))
    assert (cost.seconds, cost.basis) == (pytest.approx(3e-6 + 65536e-9), "measured")
    other = found.time(Message("hierarchical_allreduce", 65536, 8, inner=2))
    assert "hierarchical allreduce of 2 of 8 ranks was not measured" in other.notes[-1]


@pytest.mark.parametrize("inner", [1, 8])
def test_a_hierarchy_of_one_group_or_of_leaders_only_is_an_allreduce(inner: int) -> None:
    costs = network(allreduce_fit(), ranks_per_node=8)
    cost = costs.time(Message("hierarchical_allreduce", 4000, 8, inner=inner))
    assert cost == allreduce(costs, 8, 4000)


@pytest.mark.parametrize(
    ("asked", "measured"),
    [("reduce_scatter", "allgather"), ("allgather", "reduce_scatter"), ("allgatherv", "allgather")],
)
@pytest.mark.parametrize("p", [4, 12])
def test_operations_of_the_same_steps_stand_in(asked: Operation, measured: str, p: int) -> None:
    """(p-1) (alpha + m beta / p), of the p that was measured and of another."""
    fit = straight(4).model_copy(update={"operation": measured})
    message = Message(asked, 65520 if p == 12 else 65536, p)
    cost = network(fit, ranks_per_node=64).time(message)
    # the hand-made sweep is of an allreduce, twice as many steps
    ring = 2 * (p - 1) * (1e-6 + 1e-9 * message.nbytes / p)
    assert cost.seconds == pytest.approx(ring, rel=2e-3)
    assert cost.high >= COMPOSED_FACTOR * cost.seconds and cost.basis == "extrapolated"
    assert any(f"no {asked} was measured: taken from {measured}" in n for n in cost.notes)


def test_a_mirror_at_its_level_comes_before_the_operation_at_another() -> None:
    fits = [line("reduce_scatter", 4), line("allgather", 4, "system", alpha_s=7e-6)]
    costs = network(*fits, ranks_per_node=2)
    cost = costs.time(Message("reduce_scatter", 65536, 4))
    assert cost.seconds == pytest.approx(7e-6 + 65536e-9)


# libraries, what is missing


def test_the_first_library_at_home_stands_in_for_mpi() -> None:
    fits = [
        line("allreduce", library="torch_gloo", alpha_s=4e-6),
        line("allreduce", library="nccl", device="cuda", alpha_s=2e-6),
        line("allreduce", library="mpi", device="cuda", alpha_s=8e-6),  # not where MPI is at home
    ]
    cost = allreduce(network(*fits), 2, 65536)
    assert cost.seconds == pytest.approx(2e-6 + 65536e-9)
    assert cost.notes == ("no mpi was measured: operations are those of nccl",)
    cost = allreduce(network(*fits, line("allreduce")), 2, 65536)
    assert (cost.seconds, cost.notes) == (pytest.approx(1e-6 + 65536e-9), ())


def test_p2p_does_not_stand_in_for_allreduce() -> None:
    p2p = allreduce_fit().model_copy(update={"operation": "p2p"})
    with pytest.raises(
        MissingParameter, match=r"no allreduce inside a node.*measure it on 2 ranks"
    ):
        allreduce(network(p2p), 2, 8)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (Message("halo", 8, 2, grid=(2,)), ("no halo inside a node", "on 2 ranks")),
        (Message("allgather", 8, 4), ("no allgather between nodes", "calibrate on two nodes")),
        (Message("hierarchical_allreduce", 8, 4, inner=2), ("no allreduce inside", "on 2 ranks")),
        (Message("p2p", 8, 2), ("no p2p inside a node", "on 2 ranks")),
    ],
)
def test_what_is_missing_is_named(message: Message, words: tuple[str, ...]) -> None:
    with pytest.raises(MissingParameter) as error:
        network(line("broadcast")).time(message)
    assert "\n" not in str(error.value) and all(word in str(error.value) for word in words)
