"""Identities for all strategies and both forms: one rank is serial, one-sided hybrids, units.

On hand-made machines and random small networks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.sequence_models import TOKENS, Gpt
from tests.oracle.handmade import POINTS, allreduce_fit, law, machine, tensor_loops
from tests.oracle.simulated import Network, Tables, Weighted, cuttable, networks, tables

from calib.fitting.parameters.collectives import CollectiveFit
from calib.fitting.parameters.file import Parameters
from calib.foundation.division import STRATEGIES, Division
from calib.oracle.costs.machine import Machine
from calib.oracle.layout.shards import fitted, why_impossible
from calib.oracle.predict import project
from calib.oracle.projection import Form, Projection
from calib.oracle.strategies import strategy_named
from calib.oracle.terms import by_phase
from calib.oracle.trace.tracing import trace

SOME = settings(max_examples=15, deadline=None)
NET = cuttable()
GPT = trace(Gpt(), (TOKENS,), "gpt", "cross_entropy")
WEIGHTED = [
    Weighted(of.name, of.shape.input_items, of.shape.output_items, of.own_parameter_items, 0, 0, 0)
    for of in GPT.layers
    if of.own_parameters
]
ATTENDING = Network(GPT, tuple(WEIGHTED))
BETWEEN_PES = ("halo", "layerwise", "exchange")


def net_of(strategy: str) -> Network:
    """A network that the strategy can divide."""
    return ATTENDING if strategy == "sequence" else NET


# one division of each strategy that its network can have
DIVISIONS = {
    "serial": Division("serial", 1, 24),
    "data": Division("data", 4, 24),
    "fully_sharded": Division("fully_sharded", 4, 24),
    "spatial": Division("spatial", 4, 24),
    "pipeline": Division("pipeline", 3, 24, segments=4),
    "filter": Division("filter", 4, 24),
    "channel": Division("channel", 4, 24),
    "tensor": Division("tensor", 2, 24),
    "sequence": Division("sequence", 4, 24),
    "data+filter": Division("data+filter", 6, 24, inner=2),
    "data+spatial": Division("data+spatial", 8, 24, inner=2),
}
assert set(DIVISIONS) == set(STRATEGIES)


OPERATIONS = ("allreduce", "allgather", "reduce_scatter", "p2p", "halo", "all_to_all")


def fits(scale: float = 1.0) -> list[CollectiveFit]:
    """Operations on 2 ranks of a node and on 4 of several, each slower than the one before."""
    found = []
    for k, operation in enumerate(OPERATIONS):
        for level, ranks, slower in (("node", 2, 1.0), ("rack", 4, 3.0)):
            by = scale * slower * (1 + 0.2 * k)
            points = [(m, by * t) for m, t in POINTS]
            fit = allreduce_fit(ranks, level, by * 3e-6, by * 2e-10, points)
            found.append(fit.model_copy(update={"operation": operation}))
    return found


def calibrated(scale: float = 1.0) -> Parameters:
    """A machine that knows all passes and what an iteration adds to the sum of its parts."""
    phases = ("forward", "backward", "pack", "exchange", "unpack", "update")
    return machine(
        collectives=fits(scale),
        tensor_loops=tensor_loops("update", "pack", "unpack", "concat", "split"),
        composition=[law(name, n, 1e-7, 1e-12) for n in (1, 2) for name in phases],
    )


MACHINE = Machine(calibrated())


def answer(net: Network, division: Division, form: Form, of: Machine = MACHINE) -> Projection:
    return project(net.model, division, of, form)


def assert_same(first: Projection, second: Projection) -> None:
    """To the last bit: seconds, intervals and bases of all phases and the total; bytes of all parts."""
    assert first.total is not None
    assert first.phases == second.phases
    assert first.total == second.total
    assert first.bytes_by_part == second.bytes_by_part


@pytest.mark.parametrize("form", get_args(Form))
@pytest.mark.parametrize("strategy", STRATEGIES)
@SOME
@given(net=networks(), batch=st.integers(1, 30), segments=st.integers(1, 4))
def test_one_rank_is_serial(
    strategy: str, form: Form, net: Network, batch: int, segments: int
) -> None:
    whole = batch * segments
    serial = answer(net, Division("serial", 1, whole), form)
    assert_same(answer(net, Division(strategy, 1, whole, segments=segments), form), serial)


@pytest.mark.parametrize("form", get_args(Form))
@pytest.mark.parametrize(
    ("hybrid", "kind"), [("data+filter", "filter"), ("data+spatial", "spatial")]
)
@SOME
@given(net=networks(), each=st.integers(1, 8), p=st.sampled_from([2, 3, 4, 6, 8]))
def test_hybrid_of_one_kind(
    hybrid: str, kind: str, form: Form, net: Network, each: int, p: int
) -> None:
    """p2 = 1 is data; p1 = 1 is the other kind, or is impossible as that is."""
    data = answer(net, Division("data", p, each * p), form)
    assert_same(answer(net, Division(hybrid, p, each * p, inner=1), form), data)
    alone, group = Division(kind, p, each), Division(hybrid, p, each, inner=p)
    impossible = why_impossible(net.model, fitted(net.model, alone))
    if impossible:
        found = answer(net, group, form)
        assert not found.feasible and found.total is None
    else:
        assert_same(answer(net, group, form), answer(net, alone, form))


def communication(strategy: str, costs: Tables) -> float:
    """Seconds between ranks of the paper form."""
    division = fitted(costs.model, DIVISIONS[strategy])
    assert why_impossible(costs.model, division) == []
    phases = by_phase(strategy_named(strategy).paper(costs.model, division, costs))
    return sum(cost.seconds for name, cost in phases.items() if name in BETWEEN_PES)


def scaled(costs: Tables, alpha: float, beta: float) -> Tables:
    wires = {key: (a * alpha, b * beta) for key, (a, b) in costs.wires.items()}
    return replace(costs, wires=wires)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_alpha_and_beta(strategy: str) -> None:
    """Communication is linear in alpha and in beta, and has some of both."""
    costs = tables(net_of(strategy), node=2, links=1)
    both = communication(strategy, costs)
    starts = communication(strategy, scaled(costs, 1, 0))
    bytes_sent = communication(strategy, scaled(costs, 0, 1))
    if strategy == "serial":
        assert both == starts == bytes_sent == 0.0
        return
    assert starts > 0 and bytes_sent > 0
    assert communication(strategy, scaled(costs, 2, 1)) == pytest.approx(both + starts, rel=1e-12)
    assert communication(strategy, scaled(costs, 1, 2)) == pytest.approx(
        both + bytes_sent, rel=1e-12
    )


@pytest.mark.parametrize("execution", ["float64", "bfloat16"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_delta(strategy: str, execution: str) -> None:
    """Items of twice the bytes are twice beta; of half, half."""
    factor = {"float64": 2, "bfloat16": 0.5}[execution]
    net = net_of(strategy)
    expected = communication(strategy, scaled(tables(net, node=2), 1, factor))
    other = replace(net, model=net.model.run_as(execution))
    assert communication(strategy, tables(other, node=2)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_delta_of_autocast(strategy: str) -> None:
    """Activations of 2 bytes, gradients of 4, and so the weights that fully_sharded gathers."""
    net = net_of(strategy)
    whole, half, mixed = (
        by_phase(
            strategy_named(strategy).paper(
                of.model, fitted(of.model, DIVISIONS[strategy]), tables(of, node=2)
            )
        )
        for of in (
            net,
            replace(net, model=net.model.run_as("bfloat16")),
            replace(net, model=net.model.run_as("bfloat16-mixed")),
        )
    )
    assert mixed["exchange"] == whole["exchange"]
    items = whole if strategy == "fully_sharded" else half
    assert (mixed["halo"], mixed["layerwise"]) == (items["halo"], items["layerwise"])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_compute_is_linear_in_its_times(strategy: str) -> None:
    """Twice FW is twice the forward, and so on; updates likewise."""
    net = net_of(strategy)
    costs = tables(net)
    twice = replace(
        costs,
        forward={k: 2 * v for k, v in costs.forward.items()},
        updates={k: 2 * v for k, v in costs.updates.items()},
    )
    division = fitted(net.model, DIVISIONS[strategy])
    paper = strategy_named(strategy).paper
    before, after = (by_phase(paper(net.model, division, of)) for of in (costs, twice))
    for phase, factor in (("forward", 2.0), ("backward", 1.0), ("update", 2.0)):
        old = {str(name): cost.seconds for name, cost in before.items()}[phase]
        new = {str(name): cost.seconds for name, cost in after.items()}[phase]
        assert old > 0 and new == pytest.approx(factor * old, rel=1e-12)


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "pipeline"])
def test_measured_network_of_half_the_speed(strategy: str) -> None:
    """All times between ranks double.

    Not of a pipeline, whose stages wait for compute and network.
    """
    parameters = calibrated().model_copy(update={"composition": []})
    slow = parameters.model_copy(update={"collectives": fits(2.0)})
    before, after = (
        answer(net_of(strategy), DIVISIONS[strategy], "measured", Machine(p)).phases
        for p in (parameters, slow)
    )
    for phase in before:
        factor = 2.0 if phase in BETWEEN_PES else 1.0
        assert after[phase].value == pytest.approx(factor * before[phase].value, rel=1e-9)
    sent = sum(before[phase].value for phase in BETWEEN_PES)
    assert (sent > 0) == (strategy != "serial")
