"""Filter parallelism against rings simulated message by message and sums done by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracle.handmade import linear, mlp, relu
from tests.oracle.phases import seconds
from tests.oracle.simulated import (
    Network,
    Tables,
    measured_parts,
    network,
    networks,
    ring_allgather,
    ring_allreduce,
    tables,
    wire,
)

from calib.fitting.parameters.file import Parameters
from calib.foundation.division import Division
from calib.oracle.layout.shards import why_impossible
from calib.oracle.model.spec import tensors_key
from calib.oracle.predict import project
from calib.oracle.strategies import filter as strategy
from calib.training.models.specs import spec

SOME = settings(max_examples=40, deadline=None)


def simulated(net: Network, p: int, batch: int, costs: Tables) -> float:
    """Forward: y of all but the last layer is gathered; backward: dL/dx of all but the first summed."""
    gather = wire(*costs.wires[costs.level(p), "allgather"])
    reduce = wire(*costs.wires[costs.level(p), "allreduce"])
    clocks = [0.0] * p
    for layer in net.weighted[:-1]:
        clocks = ring_allgather(p, 4.0 * batch * layer.y, gather, clocks)
    for layer in reversed(net.weighted[1:]):
        clocks = ring_allreduce(p, 4.0 * batch * layer.x, reduce, clocks)
    return max(clocks)


@SOME
@given(net=networks(), batch=st.integers(1, 40), data=st.data())
def test_communication_is_that_of_rings(net: Network, batch: int, data: st.DataObject) -> None:
    p = data.draw(st.integers(1, min(layer.filters for layer in net.weighted)))
    costs = tables(net)
    terms = strategy.paper(net.model, Division("filter", p, batch), costs)
    expected = simulated(net, p, batch, costs)
    assert seconds(terms, "layerwise") == pytest.approx(expected, rel=1e-9)
    assert seconds(terms, "exchange") == seconds(terms, "halo") == seconds(terms, "pack") == 0.0


@SOME
@given(net=networks(), batch=st.integers(1, 40), data=st.data())
def test_compute(net: Network, batch: int, data: st.DataObject) -> None:
    """Weighted layers by 1/p, ReLU and the loss whole, all updates by 1/p."""
    p = data.draw(st.integers(1, min(layer.filters for layer in net.weighted)))
    costs = tables(net)
    terms = strategy.paper(net.model, Division("filter", p, batch), costs)
    split = {layer.name for layer in net.weighted}
    for phase, each in (("forward", costs.forward), ("backward", costs.backward)):
        parts = [batch * t / (p if name in split else 1) for name, t in each.items()]
        assert seconds(terms, phase) == pytest.approx(math.fsum(parts), rel=1e-9)
    assert seconds(terms, "update") == pytest.approx(sum(costs.updates.values()) / p, rel=1e-9)


def test_by_hand() -> None:
    """conv 3 -> 4 on 2 x 2, FC 16 -> 6, 6 -> 2 on p = 2, B = 5: gathered 16 and 6 items, summed 16, 6.

    One step an allgather, two an allreduce; half the bytes a step.
    """
    net = network([4], 2, [6, 2])
    costs = tables(net)
    costs.wires = {("node", "allgather"): (1.0, 0.01), ("node", "allreduce"): (100.0, 1.0)}
    terms = strategy.paper(net.model, Division("filter", 2, 5), costs)
    gathered = 2 * 1.0 + 4 * 5 * (16 + 6) / 2 * 0.01
    summed = 2 * (2 * 100.0 + 4 * 5 * (16 + 6) / 2 * 1.0)
    assert seconds(terms, "layerwise") == pytest.approx(gathered + summed, rel=1e-12)
    causes = {(term.phase, term.cause) for term in terms}
    assert ("forward", "compute") in causes and ("forward", "redundant") in causes


def test_rounding_of_the_paper_is_not_ours() -> None:
    """3 (p-1) (alpha + B |y| delta beta / p) of every layer but the last: equal where all |x| = |y|."""
    net = network([], 1, [8, 8, 8, 8], channels=8)
    costs = tables(net)
    costs.wires = dict.fromkeys(costs.wires, (1e-6, 1e-9))
    terms = strategy.paper(net.model, Division("filter", 4, 12), costs)
    paper = 3 * 3 * sum([1e-6 + 12 * 8 * 4 * 1e-9 / 4] * 3)
    assert seconds(terms, "layerwise") == pytest.approx(paper, rel=1e-12)


def test_explanation_has_the_numbers_of_the_result() -> None:
    """Putting a term's values into its formula gives its seconds."""
    net = network([4, 8], 3, [6])
    for term in strategy.paper(net.model, Division("filter", 3, 7), tables(net)):
        v = {name: float(value) for name, value in term.values.items()}
        if term.phase == "layerwise":
            (name,) = [name for name in v if name.startswith("sum|")]
            bare = v["n"] * v["alpha"] + v["B"] * v["delta"] * v["beta"] * v[name] / v["p"]
            turns = 2 if term.formula.startswith("2") else 1
            assert term.cost.seconds == pytest.approx(turns * (v["p"] - 1) * bare, rel=1e-12)


def test_memory() -> None:
    """conv 3 -> 5 on 2 x 2, FC 20 -> 4, p = 2: the PE with most has 3 filters and 2; momentum adds 1."""
    net = network([5], 2, [4])
    division = Division("filter", 2, 10)
    weights = 4 * (3 * 27 + 3 + 2 * 20 + 2)
    items = (12 + 20) + (20 + 20) + (20 + 4) + (4 + 1)  # conv, ReLU, FC, loss
    assert strategy.memory(net.model, division, "momentum") == {
        "activations": 2 * 4 * 10 * items,
        "weights": weights,
        "gradients": weights,
        "optimizer": weights,
    }
    assert strategy.memory(net.model, division, "sgd")["optimizer"] == 0
    assert strategy.memory(net.model, division, "adam")["optimizer"] == 2 * weights


def test_whole_layers_keep_their_weights() -> None:
    """Of ResNet-50 on 2 PEs: half of the convolutions' and the FC's weights, batch norms whole."""
    model = spec("resnet50")
    norms = sum(x.shape.parameter_items for x in model.layers if x.shape.kind == "batch_norm")
    half = 4 * ((model.parameter_items - norms) // 2 + norms)
    assert strategy.memory(model, Division("filter", 2, 8), "sgd")["weights"] == half


@pytest.mark.parametrize("name", ["vgg16", "resnet50"])
def test_stops_at_64(name: str) -> None:
    """ParaDL section 5.3.4: VGG16 and ResNet-50 have a layer of 64 filters."""
    model = spec(name)
    limit = strategy.limit(model, Division("filter", 2, 64))
    assert limit.pes == 64 and "64" in limit.why
    assert why_impossible(model, Division("filter", 64, 64)) == []
    (why,) = why_impossible(model, Division("filter", 65, 64))
    assert "at most 64" in why


# FC 3 -> 4, ReLU, FC 4 -> 5 and the loss, 8 samples, on 2 PEs: the larger part has 2 and 3 filters
HAND = mlp([3, 4, 5])
PARTS = [
    (linear("fc1", "input", 3, 2, first=True), 1e-5, 2e-5),
    (relu("relu1", "fc1", 4), 3e-6, 4e-6),
    (linear("fc2", "relu1", 4, 3), 5e-5, 6e-5),
    (HAND.layers[-1], 7e-6, 8e-6),
]
WEIGHTS = tensors_key(((2, 3), (2,), (3, 4), (3,)))
# y of fc1 and of fc2, and their gradients, in two
CUT, LAST = (f"{tensors_key(((8, n),))}/2" for n in (4, 5))
LISTS = {
    "update": {WEIGHTS: 9e-6},
    "concat": {CUT: 1.1e-6, LAST: 1.3e-6},
    "split": {CUT: 1.2e-6, LAST: 1.7e-6},
}
SENT = [
    ("allgather", "node", 4 * 8 * 4, 3e-5),
    ("allgather", "node", 4 * 8 * 5, 4e-5),
    ("allreduce", "node", 4 * 8 * 4, 7e-5),
]


def by_hand(**changes: object) -> Parameters:
    return measured_parts(PARTS, LISTS, SENT, 8, **changes)


def test_measured_by_hand() -> None:
    """Every part was measured as it runs, so the sum is measured, and its interval is their 10%."""
    found = project(HAND, Division("filter", 2, 8), by_hand())
    expected = {
        "forward": 1e-5 + 3e-6 + 5e-5 + 7e-6,
        "backward": 2e-5 + 4e-6 + 6e-5 + 8e-6,
        "halo": 0.0,
        "layerwise": 3e-5 + 4e-5 + 7e-5,
        "pack": 1.1e-6 + 1.2e-6 + 1.3e-6 + 1.7e-6,
        "exchange": 0.0,
        "update": 9e-6,
    }
    assert {name: phase.seconds for name, phase in found.phases.items()} == pytest.approx(expected)
    assert found.total is not None and found.total.basis == "measured"
    whole = sum(expected.values())
    assert (found.total.seconds, found.total.low, found.total.high) == pytest.approx(
        (whole, 0.9 * whole, 1.1 * whole)
    )


def test_what_every_pe_does_again() -> None:
    """ReLU, loss, split and concat are redundant; the layers that are split are not."""
    found = project(HAND, Division("filter", 2, 8), by_hand(), explain=True)
    (again,) = [b for b in found.bottlenecks if b.name.startswith("computation redundancy")]
    assert found.total is not None and again.share == pytest.approx(
        (3e-6 + 7e-6 + 4e-6 + 8e-6 + 1.1e-6 + 1.2e-6 + 1.3e-6 + 1.7e-6) / found.total.seconds
    )


def test_without_loops_of_shards() -> None:
    """Left out, said, and no longer called measured."""
    loops = [loop for loop in by_hand().tensor_loops if loop.operation == "update"]
    found = project(HAND, Division("filter", 2, 8), by_hand(tensor_loops=loops))
    assert found.phases["pack"].seconds == 0.0
    assert found.phases["pack"].basis == "extrapolated"
    for operation in ("concat", "split"):
        (note,) = [note for note in found.notes if note.startswith(f"no {operation} of shards")]
        assert "calib plan --models MODEL" in note


def test_more_pes_than_filters() -> None:
    """An answer with the reason and the limit, and no numbers."""
    found = project(HAND, Division("filter", 5, 10), by_hand())
    assert not found.feasible and found.total is None and found.phases == {}
    assert found.limit.pes == 4 and "fc1" in found.limit.why
    assert len(found.limits) == 1 and "fc1 has only 4 filters" in found.limits[0]
