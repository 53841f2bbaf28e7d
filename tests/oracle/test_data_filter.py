"""Data+filter against rings inside groups and between them, simulated message by message."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracle.filters import HAND, LISTS, PARTS, SENT, WEIGHTS, largest_p, simulated
from tests.oracle.handmade import seconds
from tests.oracle.simulated import (
    INTERCEPT_S,
    Network,
    measured_parts,
    network,
    networks,
    ring_allreduce,
    shared_wire,
    tables,
)

from calib.foundation.division import Division
from calib.oracle.layout.shards import why_impossible
from calib.oracle.predict import project
from calib.oracle.strategies import data_filter as strategy
from calib.oracle.strategies import filter as filter_strategy
from calib.training.models.specs import spec

SOME = settings(max_examples=40, deadline=None)


@SOME
@given(net=networks(), each=st.integers(1, 8), p1=st.integers(1, 6), data=st.data())
def test_communication_is_that_of_rings(
    net: Network, each: int, p1: int, data: st.DataObject
) -> None:
    """Filter's rings with B/p1 samples; then p2 rings of p1 ranks at once on the links of a node.

    A node is smaller than a group here, so each ring of the exchange leaves it.
    """
    p2 = data.draw(st.integers(1, largest_p("filter", net)))
    links = data.draw(st.sampled_from([n for n in (1, 2, 3) if p2 % n == 0]))
    node = data.draw(st.sampled_from([1, 4]))
    p, costs = p1 * p2, tables(net, node=node, links=links)
    terms = strategy.paper(net.model, Division("data+filter", p, each * p1, inner=p2), costs)
    inside = simulated("filter", net, p2, each, costs)
    assert seconds(terms)["layerwise"] == pytest.approx(inside, rel=1e-9)
    alpha, beta = costs.wires[costs.level(p), "allreduce"]
    flows = p2 if p > node else 1
    link = shared_wire(alpha, beta, flows, links if flows > 1 else 1)
    exchange = max(ring_allreduce(p1, 4.0 * net.parameters / p2, link))
    assert seconds(terms)["exchange"] == pytest.approx(exchange, rel=1e-9)


@SOME
@given(net=networks(), each=st.integers(1, 8), p1=st.integers(1, 6), data=st.data())
def test_compute(net: Network, each: int, p1: int, data: st.DataObject) -> None:
    """Weighted layers by 1/p, the others by 1/p1, updates by 1/p2."""
    p2 = data.draw(st.integers(1, largest_p("filter", net)))
    batch, costs = each * p1, tables(net)
    division = Division("data+filter", p1 * p2, batch, inner=p2)
    terms = strategy.paper(net.model, division, costs)
    split = {layer.name for layer in net.weighted}
    for phase, times in (("forward", costs.forward), ("backward", costs.backward)):
        parts = [batch * t / (p1 * p2 if n in split else p1) for n, t in times.items()]
        assert seconds(terms)[phase] == pytest.approx(math.fsum(parts), rel=1e-9)
    assert seconds(terms)["update"] == pytest.approx(sum(costs.updates.values()) / p2, rel=1e-9)


def test_by_hand() -> None:
    """p = 3 x 2, B = 12, W = 8 items: 2 x 2 steps of 32 / 6 bytes on a link that two rings share."""
    net = network([], 1, [2], channels=3)  # 6 weights and 2 biases
    costs = tables(net, node=2)
    costs.wires = {("rack", "allreduce"): (10.0, 1.0), ("node", "allgather"): (1.0, 1.0)}
    terms = strategy.paper(net.model, Division("data+filter", 6, 12, inner=2), costs)
    assert seconds(terms)["exchange"] == pytest.approx(4 * (10.0 + 32 / 6 * 2), rel=1e-12)
    assert seconds(terms)["layerwise"] == 0.0  # one layer is the first and the last
    (term,) = [term for term in terms if term.phase == "exchange"]
    assert (term.values["phi"], term.values["W"], term.values["p"]) == (2.0, 16, 3)  # of a ring


def test_memory() -> None:
    """Filter's bytes of B/p1 samples, and a buffer of the rank's gradients between groups."""
    net = network([5], 2, [4])
    within = filter_strategy.memory(net.model, Division("filter", 2, 4), "momentum")
    hybrid = Division("data+filter", 6, 12, inner=2)
    weights = 4 * (3 * 27 + 3 + 2 * 20 + 2)
    assert strategy.memory(net.model, hybrid, "momentum") == {**within, "exchange": weights}


@pytest.mark.parametrize("name", ["vgg16", "resnet50"])
def test_limit_is_a_sample_and_a_filter_each(name: str) -> None:
    """p <= B min F_l, ParaDL Table 3; p2 alone at most min F_l."""
    model = spec(name)
    limit = strategy.limit(model, Division("data+filter", 4, 32, inner=2))
    assert limit.ranks == 32 * 64
    assert why_impossible(model, Division("data+filter", 32 * 64, 32, inner=64)) == []
    assert "at most 64" in why_impossible(model, Division("data+filter", 128, 32, inner=128))[0]
    assert why_impossible(model, Division("data+filter", 128, 32, inner=2)) != []


@pytest.mark.parametrize(("links", "exchange"), [(1, 2e-5 + (2e-5 - INTERCEPT_S)), (2, 2e-5)])
def test_measured_by_hand(links: int, exchange: float) -> None:
    """Filter's machine twice: a group in each node, and two rings of 2 ranks between the nodes.

    Each exchanges 2 x 3 + 2 + 3 x 4 + 3 gradients; on one link the bytes take twice as long, not the
    start-up.
    """
    weights = {WEIGHTS: 5e-6}
    machine = measured_parts(
        PARTS,
        {**LISTS, "pack": weights, "unpack": weights},
        [*SENT, ("allreduce", "rack", 4 * 23, 2e-5)],
        8,
        links_per_node=links,
    )
    alone = project(HAND, Division("filter", 2, 8), machine)
    found = project(HAND, Division("data+filter", 4, 16, inner=2), machine)
    same = ("forward", "backward", "halo", "layerwise", "update")
    assert {name: found.phases[name] for name in same} == {
        name: alone.phases[name] for name in same
    }
    assert found.phases["pack"].value == pytest.approx(alone.phases["pack"].value + 1e-5)
    assert found.phases["exchange"].value == pytest.approx(exchange)
    assert found.batch_per_rank == 4
