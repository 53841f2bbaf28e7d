"""Filter and channel parallelism against rings simulated message by message and sums done by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracle.filters import HAND, by_hand, largest_p, simulated, split_of
from tests.oracle.handmade import linear, mlp, relu, seconds
from tests.oracle.simulated import Network, measured_parts, network, networks, tables

from calib.foundation.division import Division
from calib.oracle.layout.shards import why_impossible
from calib.oracle.model.layer import Layer
from calib.oracle.model.spec import tensors_key
from calib.oracle.predict import project
from calib.oracle.strategies import channel, filter
from calib.training.models.specs import spec

SOME = settings(max_examples=40, deadline=None)
MODULES = {"filter": filter, "channel": channel}
EITHER = pytest.mark.parametrize("name", MODULES)


@EITHER
@SOME
@given(net=networks(), batch=st.integers(1, 40), data=st.data())
def test_communication_is_that_of_rings(
    name: str, net: Network, batch: int, data: st.DataObject
) -> None:
    p = data.draw(st.integers(1, largest_p(name, net)))
    costs = tables(net)
    terms = MODULES[name].paper(net.model, Division(name, p, batch), costs)
    expected = simulated(name, net, p, batch, costs)
    assert seconds(terms)["layerwise"] == pytest.approx(expected, rel=1e-9)
    assert seconds(terms)["exchange"] == seconds(terms)["halo"] == seconds(terms)["pack"] == 0.0


@EITHER
@SOME
@given(net=networks(), batch=st.integers(1, 40), data=st.data())
def test_compute(name: str, net: Network, batch: int, data: st.DataObject) -> None:
    """Split layers by 1/p, the others, ReLU and the loss whole, all updates by 1/p."""
    p = data.draw(st.integers(1, largest_p(name, net)))
    costs = tables(net)
    terms = MODULES[name].paper(net.model, Division(name, p, batch), costs)
    split = {layer.name for layer in split_of(name, net)}
    for phase, each in (("forward", costs.forward), ("backward", costs.backward)):
        parts = [batch * t / (p if name in split else 1) for name, t in each.items()]
        assert seconds(terms)[phase] == pytest.approx(math.fsum(parts), rel=1e-9)
    assert seconds(terms)["update"] == pytest.approx(sum(costs.updates.values()) / p, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "p", "steps", "summed", "gathered"),
    [("filter", 2, 1, (16, 6), (16, 6)), ("channel", 3, 2, (6, 2), (6,))],
)
def test_by_hand(
    name: str, p: int, steps: int, summed: tuple[int, ...], gathered: tuple[int, ...]
) -> None:
    """conv 3 -> 4 on 2 x 2, FC 16 -> 6, 6 -> 2, B = 5: p - 1 steps an allgather, twice those to sum.

    Bytes of 1/p a step.
    """
    net = network([4], 2, [6, 2])
    costs = tables(net)
    costs.wires = {("node", "allgather"): (1.0, 0.01), ("node", "allreduce"): (100.0, 1.0)}
    terms = MODULES[name].paper(net.model, Division(name, p, 5), costs)
    expected = math.fsum(2 * steps * (100.0 + 4 * 5 * items / p * 1.0) for items in summed)
    expected += math.fsum(steps * (1.0 + 4 * 5 * items / p * 0.01) for items in gathered)
    assert seconds(terms)["layerwise"] == pytest.approx(expected, rel=1e-12)
    if name == "filter":
        causes = {(term.phase, term.cause) for term in terms}
        assert ("forward", "compute") in causes and ("forward", "redundant") in causes


def test_rounding_of_the_paper_is_not_ours() -> None:
    """3 (p-1) (alpha + B |y| delta beta / p) of every layer but the last: equal where all |x| = |y|."""
    net = network([], 1, [8, 8, 8, 8], channels=8)
    costs = tables(net)
    costs.wires = dict.fromkeys(costs.wires, (1e-6, 1e-9))
    terms = filter.paper(net.model, Division("filter", 4, 12), costs)
    paper = 3 * 3 * sum([1e-6 + 12 * 8 * 4 * 1e-9 / 4] * 3)
    assert seconds(terms)["layerwise"] == pytest.approx(paper, rel=1e-12)


def test_explanation_has_the_numbers_of_the_result() -> None:
    """Putting a term's values into its formula gives its seconds."""
    net = network([4, 8], 3, [6])
    for term in filter.paper(net.model, Division("filter", 3, 7), tables(net)):
        v = {name: float(value) for name, value in term.values.items()}
        if term.phase == "layerwise":
            (name,) = [name for name in v if name.startswith("sum|")]
            bare = v["n"] * v["alpha"] + v["B"] * v["delta"] * v["beta"] * v[name] / v["p"]
            turns = 2 if term.formula.startswith("2") else 1
            assert term.cost.seconds == pytest.approx(turns * (v["p"] - 1) * bare, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "p", "weights"),
    [
        ("filter", 2, 3 * 27 + 3 + 2 * 20 + 2),  # the rank with most has 3 filters and 2
        ("channel", 3, 5 * 27 + 5 + 4 * 7 + 4),  # conv whole; most have 7 channels, biases whole
    ],
)
def test_memory(name: str, p: int, weights: int) -> None:
    """conv 3 -> 5 on 2 x 2, FC 20 -> 4; momentum adds the weights once, Adam twice."""
    net, division = network([5], 2, [4]), Division(name, p, 10)
    items = (12 + 20) + (20 + 20) + (20 + 4) + (4 + 1)  # conv, ReLU, FC, loss
    for optimizer, times in (("sgd", 0), ("momentum", 1), ("adam", 2)):
        assert MODULES[name].memory(net.model, division, optimizer) == {
            "activations": 2 * 4 * 10 * items,
            "weights": 4 * weights,
            "gradients": 4 * weights,
            "optimizer": times * 4 * weights,
        }


def test_whole_layers_keep_their_weights() -> None:
    """Of ResNet-50 on 2 ranks: half of the convolutions' and the FC's weights, batch norms whole."""
    model = spec("resnet50")
    norms = sum(x.shape.parameter_items for x in model.layers if x.shape.kind == "batch_norm")
    half = 4 * ((model.parameter_items - norms) // 2 + norms)
    assert filter.memory(model, Division("filter", 2, 8), "sgd")["weights"] == half


@EITHER
@pytest.mark.parametrize("model_name", ["vgg16", "resnet50"])
def test_stops_at_64(name: str, model_name: str) -> None:
    """ParaDL section 5.3.4: both have a layer of 64 filters, and the second convolution reads 64.

    The 3 channels of an image are no limit.
    """
    model = spec(model_name)
    assert model.input_shape[0] == 3
    limit = MODULES[name].limit(model, Division(name, 2, 64))
    assert limit.ranks == 64 and ("64" if name == "filter" else "channels") in limit.why
    assert why_impossible(model, Division(name, 64, 64)) == []
    (why,) = why_impossible(model, Division(name, 65, 64))
    assert "at most 64" in why


def test_of_two_layers_nothing_is_gathered() -> None:
    """The second weighted layer is the first that is split: what is before it has its whole dL/dx."""
    net = network([4], 2, [6])
    terms = channel.paper(net.model, Division("channel", 4, 5), tables(net))
    whats = [term.what for term in terms if term.phase == "layerwise"]
    assert whats == ["allreduce of y, of 1 layers"]


def test_one_weighted_layer_cannot_be_split() -> None:
    net = network([], 1, [6], channels=8)
    assert channel.limit(net.model, Division("channel", 2, 4)).ranks == 1
    (why,) = why_impossible(net.model, Division("channel", 2, 4))
    assert "no layer that channel could split" in why


def test_filter_measured_by_hand() -> None:
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
    assert {name: phase.value for name, phase in found.phases.items()} == pytest.approx(expected)
    assert found.total is not None and found.total.basis == "measured"
    whole = sum(expected.values())
    assert (found.total.value, found.total.low, found.total.high) == pytest.approx(
        (whole, 0.9 * whole, 1.1 * whole)
    )


def test_what_every_rank_does_again() -> None:
    """ReLU, loss, split and concat are redundant; the layers that are split are not."""
    found = project(HAND, Division("filter", 2, 8), by_hand(), explain=True)
    (again,) = [b for b in found.bottlenecks if b.name.startswith("computation redundancy")]
    assert found.total is not None and again.share == pytest.approx(
        (3e-6 + 7e-6 + 4e-6 + 8e-6 + 1.1e-6 + 1.2e-6 + 1.3e-6 + 1.7e-6) / found.total.value
    )


def test_without_loops_of_shards() -> None:
    """Left out, said, and no longer called measured."""
    loops = [loop for loop in by_hand().tensor_loops if loop.operation == "update"]
    found = project(HAND, Division("filter", 2, 8), by_hand(tensor_loops=loops))
    assert found.phases["pack"].value == 0.0
    assert found.phases["pack"].basis == "extrapolated"
    for operation in ("concat", "split"):
        assert f"no {operation} of shards was measured: it is left out" in found.notes


def test_more_ranks_than_filters() -> None:
    """An answer with the reason and the limit, and no numbers."""
    found = project(HAND, Division("filter", 5, 10), by_hand())
    assert not found.feasible and found.total is None and found.phases == {}
    assert found.limit.ranks == 4 and "fc1" in found.limit.why
    assert len(found.limits) == 1 and "fc1 has only 4 filters" in found.limits[0]


def test_channel_measured_by_hand() -> None:
    """FC 3 -> 4 whole, FC 4 -> 5 with 2 channels, FC 5 -> 2 with 3, 8 samples; biases are whole.

    y of both is summed up and dL/dx of both joined: the weights of fc1 need that of fc2.
    """
    model = mlp([3, 4, 5, 2])
    whole, first, second = (model.layers[k] for k in (0, 2, 4))
    parts = [
        (whole, 1e-5, 2e-5),
        (relu("relu1", "fc1", 4), 3e-6, 4e-6),
        (without_bias(linear("fc2", "relu1", 2, 5)), 5e-5, 6e-5),
        (relu("relu2", "fc2", 5), 3.3e-6, 4.4e-6),
        (without_bias(linear("fc3", "relu2", 3, 2)), 5.5e-5, 6.6e-5),
        (model.layers[-1], 7e-6, 8e-6),
    ]
    weights = tensors_key(((4, 3), (4,), (5, 2), (5,), (2, 3), (2,)))
    x_of_2, x_of_3 = (
        f"{tensors_key(((8, layer.shape.input_items),))}/2" for layer in (first, second)
    )
    lists = {
        "update": {weights: 9e-6},
        "split": {x_of_2: 1e-6, x_of_3: 2e-6},
        "concat": {x_of_2: 3e-6, x_of_3: 4e-6},
    }
    sent = [
        ("allreduce", "node", 4 * 8 * 5, 3e-5),
        ("allreduce", "node", 4 * 8 * 2, 2e-5),
        ("allgather", "node", 4 * 8 * 4, 6e-5),
        ("allgather", "node", 4 * 8 * 5, 7e-5),
    ]
    found = project(model, Division("channel", 2, 8), measured_parts(parts, lists, sent, 8))
    expected = {
        "forward": 1e-5 + 3e-6 + 5e-5 + 3.3e-6 + 5.5e-5 + 7e-6,
        "backward": 2e-5 + 4e-6 + 6e-5 + 4.4e-6 + 6.6e-5 + 8e-6,
        "halo": 0.0,
        "layerwise": 3e-5 + 2e-5 + 6e-5 + 7e-5,
        "pack": 1e-6 + 2e-6 + 3e-6 + 4e-6,
        "exchange": 0.0,
        "update": 9e-6,
    }
    assert {name: phase.value for name, phase in found.phases.items()} == pytest.approx(expected)
    assert found.total is not None and found.total.basis == "measured"


def without_bias(layer: Layer) -> Layer:
    """The part of a layer before its sum."""
    shape = layer.shape.model_copy(update={"parameter_shapes": layer.shape.parameter_shapes[:1]})
    return layer.model_copy(update={"shape": shape})
