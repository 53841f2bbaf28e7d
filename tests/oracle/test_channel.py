"""Channel parallelism against rings simulated message by message and sums done by hand."""

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

from calib.foundation.division import Division
from calib.oracle.layout.shards import why_impossible
from calib.oracle.model.layer import Layer
from calib.oracle.model.spec import tensors_key
from calib.oracle.predict import project
from calib.oracle.strategies import channel as strategy
from calib.training.models.specs import spec

SOME = settings(max_examples=40, deadline=None)


def largest_p(net: Network) -> int:
    return min(layer.channels for layer in net.weighted[1:])


def simulated(net: Network, p: int, batch: int, costs: Tables) -> float:
    """Forward: y of all but the first layer is summed; backward: dL/dx of all but two is gathered."""
    gather = wire(*costs.wires[costs.level(p), "allgather"])
    reduce = wire(*costs.wires[costs.level(p), "allreduce"])
    clocks = [0.0] * p
    for layer in net.weighted[1:]:
        clocks = ring_allreduce(p, 4.0 * batch * layer.y, reduce, clocks)
    for layer in reversed(net.weighted[2:]):
        clocks = ring_allgather(p, 4.0 * batch * layer.x, gather, clocks)
    return max(clocks)


@SOME
@given(net=networks(), batch=st.integers(1, 40), data=st.data())
def test_communication_is_that_of_rings(net: Network, batch: int, data: st.DataObject) -> None:
    p = data.draw(st.integers(1, largest_p(net)))
    costs = tables(net)
    terms = strategy.paper(net.model, Division("channel", p, batch), costs)
    expected = simulated(net, p, batch, costs)
    assert seconds(terms, "layerwise") == pytest.approx(expected, rel=1e-9)
    assert seconds(terms, "exchange") == seconds(terms, "halo") == seconds(terms, "pack") == 0.0


@SOME
@given(net=networks(), batch=st.integers(1, 40), data=st.data())
def test_compute(net: Network, batch: int, data: st.DataObject) -> None:
    """Weighted layers from the second by 1/p, the first and ReLU and loss whole, updates by 1/p."""
    p = data.draw(st.integers(1, largest_p(net)))
    costs = tables(net)
    terms = strategy.paper(net.model, Division("channel", p, batch), costs)
    split = {layer.name for layer in net.weighted[1:]}
    for phase, each in (("forward", costs.forward), ("backward", costs.backward)):
        parts = [batch * t / (p if name in split else 1) for name, t in each.items()]
        assert seconds(terms, phase) == pytest.approx(math.fsum(parts), rel=1e-9)
    assert seconds(terms, "update") == pytest.approx(sum(costs.updates.values()) / p, rel=1e-9)


def test_by_hand() -> None:
    """conv 3 -> 4 on 2 x 2, FC 16 -> 6, 6 -> 2 on p = 3, B = 5: summed 6 and 2 items, gathered 6.

    Two steps an allgather, four an allreduce; a third of the bytes a step.
    """
    net = network([4], 2, [6, 2])
    costs = tables(net)
    costs.wires = {("node", "allgather"): (1.0, 0.01), ("node", "allreduce"): (100.0, 1.0)}
    terms = strategy.paper(net.model, Division("channel", 3, 5), costs)
    summed = 2 * 4 * 100.0 + 4 * (4 * 5 * (6 + 2) / 3) * 1.0
    gathered = 2 * 1.0 + 2 * (4 * 5 * 6 / 3) * 0.01
    assert seconds(terms, "layerwise") == pytest.approx(gathered + summed, rel=1e-12)


def test_of_two_layers_nothing_is_gathered() -> None:
    """The second weighted layer is the first that is split: what is before it has its whole dL/dx."""
    net = network([4], 2, [6])
    terms = strategy.paper(net.model, Division("channel", 4, 5), tables(net))
    whats = [term.what for term in terms if term.phase == "layerwise"]
    assert whats == ["allreduce of y, of 1 layers"]


def test_memory() -> None:
    """conv 3 -> 5 on 2 x 2 whole; FC 20 -> 4, p = 3: the PE with most has 7 channels, biases whole."""
    net = network([5], 2, [4])
    weights = 4 * (5 * 27 + 5 + 4 * 7 + 4)
    items = (12 + 20) + (20 + 20) + (20 + 4) + (4 + 1)  # conv, ReLU, FC, loss
    assert strategy.memory(net.model, Division("channel", 3, 10), "adam") == {
        "activations": 2 * 4 * 10 * items,
        "weights": weights,
        "gradients": weights,
        "optimizer": 2 * weights,
    }


@pytest.mark.parametrize(("name", "most"), [("vgg16", 64), ("resnet50", 64)])
def test_starts_at_the_second_layer(name: str, most: int) -> None:
    """The 3 channels of an image are no limit: the second convolution reads 64."""
    model = spec(name)
    assert model.input_shape[0] == 3
    limit = strategy.limit(model, Division("channel", 2, 64))
    assert limit.pes == most and "channels" in limit.why
    assert why_impossible(model, Division("channel", most, 64)) == []
    (why,) = why_impossible(model, Division("channel", most + 1, 64))
    assert f"at most {most}" in why


def test_one_weighted_layer_cannot_be_split() -> None:
    net = network([], 1, [6], channels=8)
    assert strategy.limit(net.model, Division("channel", 2, 4)).pes == 1
    (why,) = why_impossible(net.model, Division("channel", 2, 4))
    assert "no layer that channel could split" in why


def test_measured_by_hand() -> None:
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
    assert {name: phase.seconds for name, phase in found.phases.items()} == pytest.approx(expected)
    assert found.total is not None and found.total.basis == "measured"


def without_bias(layer: Layer) -> Layer:
    """The part of a layer before its sum."""
    shape = layer.shape.model_copy(update={"parameter_shapes": layer.shape.parameter_shapes[:1]})
    return layer.model_copy(update={"shape": shape})
