"""Parallax's Table 3 against messages counted one by one; exchange times against closed forms."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calib.foundation.errors import InputError
from calib.oracle.costs.machine import Machine
from calib.search.links import Links
from calib.search.nominal import NOMINAL, nominal
from calib.search.request import Budget, Devices
from calib.search.variables.choosing import Choosing, by_rule, possible
from calib.search.variables.exchange import Aggregation, VariableExchange
from calib.search.variables.models import (
    Variable,
    Variables,
    allgatherv_bytes,
    allreduce_bytes,
    server_bytes,
    together,
    uniform_a,
)

few = settings(max_examples=60, deadline=None)
machines = st.integers(1, 9)
words = st.floats(1, 1e9)
fractions = st.floats(0.01, 1)


def by_server(w: float, n: int, a: float, owners: list[int]) -> dict[int, float]:
    """Bytes in and out of each machine: every worker pulls from each owner, then pushes to it."""
    moved: dict[int, float] = defaultdict(float)
    for owner in owners:
        for _, worker in product(("pull", "push"), range(n)):
            if worker != owner:
                moved[owner] += a * w
                moved[worker] += a * w
    return moved


def by_ring(piece: float, n: int, steps: int) -> dict[int, float]:
    """In each step every machine sends a piece to the next one."""
    moved: dict[int, float] = defaultdict(float)
    for _, sender in product(range(steps), range(n)):
        if n > 1:
            moved[sender] += piece
            moved[(sender + 1) % n] += piece
    return moved


@few
@given(words, machines, fractions)
def test_one_variable_is_its_owners(w: float, n: int, a: float) -> None:
    assert server_bytes(w, n, a) == pytest.approx(by_server(w, n, a, [0])[0])
    assert server_bytes(w, n) == pytest.approx(by_server(w, n, 1.0, [0])[0])


@few
@given(words, machines, fractions, st.integers(1, 4))
def test_balanced_variables_move_alike_everywhere(w: float, n: int, a: float, each: int) -> None:
    moved = by_server(w, n, a, list(range(n)) * each)
    for machine in range(n):
        one = server_bytes(w, n, a, balanced=True)
        assert moved[machine] == pytest.approx(n * each * one)


@few
@given(words, machines, fractions)
def test_rings_are_steps_of_pieces(w: float, n: int, a: float) -> None:
    reduced, gathered = by_ring(w / n, n, 2 * (n - 1)), by_ring(a * w, n, n - 1)
    for machine in range(n):
        assert reduced[machine] == pytest.approx(allreduce_bytes(w, n))
        assert gathered[machine] == pytest.approx(allgatherv_bytes(w, n, a))


@pytest.mark.parametrize("a", [0.0, -0.1, 1.1, math.nan])
def test_a_is_a_fraction(a: float) -> None:
    with pytest.raises(InputError, match="no fraction of elements"):
        Variables("v", (SPARSE,)).with_a(a)


def exchange(
    nodes: int = 8, per_node: int = 6, aggregation: Aggregation = "local"
) -> VariableExchange:
    devices = Devices(nodes, per_node)
    found = nominal("titan-xp").model_copy(update={"ranks_per_node": per_node})
    return VariableExchange(Links(Machine(found), devices, "paper"), aggregation)


OF = NOMINAL["titan-xp"]
ALPHA, BETA = OF.system_alpha_s, 1 / OF.system_bytes_per_s
NODE_ALPHA, NODE_BETA = OF.node_alpha_s, 1 / OF.node_bytes_per_s
DENSE = Variable("dense", 1 << 20, 8)
SPARSE = Variable("sparse", 1 << 20, 8, sparse=True, a=0.125)
W = DENSE.nbytes


def test_rings_over_all_devices() -> None:
    found = exchange()
    assert found.allreduce(W).seconds == pytest.approx(2 * 47 * (ALPHA + W / 48 * BETA))
    assert found.allgatherv(SPARSE).seconds == pytest.approx(47 * (ALPHA + 0.125 * W * BETA))


@pytest.mark.parametrize("partitions", [1, 8, 16])
@pytest.mark.parametrize("aggregation", ["local", "none"])
def test_servers_are_bound_by_the_owner(aggregation: Aggregation, partitions: int) -> None:
    """Half of the owner's 2 a w (N-1) is out, then half in, one after the other."""
    found = exchange(aggregation=aggregation)
    clients, share = (7, 1 - 0.875**6) if aggregation == "local" else (42, 0.125)
    assert (found.clients, found.share(SPARSE)) == (clients, pytest.approx(share))
    owned = max(1, partitions // 8)
    wanted = owned * 2 * clients * (ALPHA + share * W / partitions * BETA)
    assert found.servers([SPARSE], partitions).seconds == pytest.approx(wanted, rel=1e-6)
    dense = 2 * clients * (ALPHA + W * BETA)
    assert found.servers([DENSE], partitions).seconds == pytest.approx(dense)
    even = Variable("even", 1 << 20, 8, even=True)
    balanced = 2 * clients * (ALPHA + W / 8 * BETA)
    assert found.servers([even], 1).seconds == pytest.approx(balanced)


def test_time_on_the_link_is_that_of_the_bytes() -> None:
    """One worker on each machine: seconds without start-ups are the table's bytes, by direction."""
    found = exchange(8, 1)
    links = (found.servers([DENSE], 1).seconds - 14 * ALPHA) / BETA
    assert links == pytest.approx(server_bytes(W, 8))
    ring = 2 * (found.allreduce(W).seconds - 14 * ALPHA) / BETA
    assert ring == pytest.approx(allreduce_bytes(W, 8))
    gathered = 2 * (found.allgatherv(SPARSE).seconds - 7 * ALPHA) / BETA
    assert gathered == pytest.approx(allgatherv_bytes(W, 8, 0.125))
    eight = [DENSE] * 8
    balanced = 2 * (found.servers(eight, 1).seconds - 14 * ALPHA) / BETA
    assert balanced == pytest.approx(8 * server_bytes(W, 8, balanced=True))


def test_workers_of_a_machine_meet_before() -> None:
    found = exchange()
    inside = 2 * 5 * (NODE_ALPHA + W / 6 * NODE_BETA)
    assert found.inside(DENSE).seconds == pytest.approx(inside)
    rows = 5 * (NODE_ALPHA + 0.125 * W * NODE_BETA)
    back = 3 * (NODE_ALPHA + (1 - 0.875**6) * W * NODE_BETA)
    assert found.inside(SPARSE).seconds == pytest.approx(rows + back, rel=1e-6)
    assert exchange(aggregation="none").inside(DENSE).seconds == 0
    assert exchange(8, 1).inside(DENSE).seconds == 0


def test_one_machine_has_a_server_on_each_device() -> None:
    found = exchange(1, 4)
    assert (found.machines, found.workers, found.clients) == (4, 1, 3)
    wanted = 2 * 3 * (NODE_ALPHA + W * NODE_BETA)
    assert found.servers([DENSE], 1).seconds == pytest.approx(wanted)


def test_distinct_rows() -> None:
    """Exact: 3 draws of 4 rows hit 4 (1 - (3/4)^3) of them, counted over all 64."""
    hits = sum(len({*draws}) for draws in product(range(4), repeat=3)) / 64 / 4
    assert uniform_a(4, 3) == pytest.approx(hits)
    assert uniform_a(1, 3) == together(1.0, 5) == 1.0
    assert together(0.25, 2) == pytest.approx(0.4375)


variables = st.lists(
    st.builds(
        lambda rows, width, sparse, a: Variable("v", rows, width, sparse, a if sparse else 1.0),
        st.integers(1, 1 << 16),
        st.integers(1, 512),
        st.booleans(),
        fractions,
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=40, deadline=None)
@given(
    variables,
    st.sampled_from([(2, 2), (8, 6), (4, 1)]),
    st.sampled_from(["local", "none"]),
    st.sampled_from([1, 8, 32]),
)
def test_hybrid_is_brute_force(
    of: list[Variable], shape: tuple[int, int], aggregation: Aggregation, partitions: int
) -> None:
    """Of many variables it climbs from several starts, which ends near that; the bound is below."""
    found = exchange(*shape, aggregation)
    choosing = Choosing(found, of, partitions, "momentum", 0, Budget(None).started())
    best = choosing.hybrid()
    seconds = {c: choosing.seconds(c) for c in product(*(possible(v) for v in of))}
    least = min(seconds.values())
    assert choosing.bound() <= least * (1 + 1e-9)
    assert seconds[best] == least
    climbed = choosing.climbed(min(choosing.starts(), key=choosing.seconds))
    assert least <= seconds[climbed] <= min(1.1 * least, seconds[by_rule(of)])


def test_the_threshold_is_where_the_costs_cross() -> None:
    """A sparse variable alone goes from server to allreduce at the a where its times are equal."""
    found = exchange(8, 1)
    for a in (0.05, 0.3, 0.6, 0.9, 0.97, 1.0):
        of = Variable("v", 1 << 20, 8, True, a)
        choosing = Choosing(found, [of], 8, "momentum", 0, Budget(None).started())
        served = 14 * (ALPHA + a * of.nbytes / 8 * BETA)
        gathered = 7 * (ALPHA + a * of.nbytes * BETA)
        ring = 14 * (ALPHA + of.nbytes / 8 * BETA)
        times = {"server": served, "allgatherv": gathered, "allreduce": ring}
        assert times[choosing.hybrid()[0]] == pytest.approx(min(times.values()))
    # with six workers on a machine, whose rows together are nearly all, allreduce is faster before 1
    six = exchange()
    of = Variable("v", 1 << 20, 8, True, 0.5)
    choosing = Choosing(six, [of], 8, "momentum", 0, Budget(None).started())
    assert choosing.hybrid() == ("allreduce",)
