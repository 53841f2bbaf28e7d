"""Filter, channel and data+filter: layers that stay whole, split and concat."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import pytest
from tests.oracle.handmade import (
    LOOP_BYTE_S,
    LOOP_CALL_S,
    LOOP_TENSOR_S,
    machine,
    mlp,
    operations,
    seconds,
    tensor_loops,
)
from tests.oracle.simulated import Network, network, tables

from calib.foundation.division import Division
from calib.microbench.cases import TensorsCase
from calib.oracle.cost import Cost
from calib.oracle.costs.machine import Machine
from calib.oracle.costs.tensors import TensorCosts
from calib.oracle.model.layer import Layer
from calib.oracle.model.spec import ModelSpec
from calib.oracle.predict import project
from calib.oracle.strategies import strategy_named
from calib.planning.points import Point
from calib.planning.request import Request
from calib.planning.tensors import tensor_cases
from calib.training.models.specs import spec


def grouped(net: Network, name: str) -> ModelSpec:
    """The network with one convolution in two groups."""
    layers: list[Layer] = []
    for layer in net.model.layers:
        if layer.name == name:
            weight, bias = layer.shape.parameter_shapes
            shape = layer.shape.model_copy(
                update={
                    "attributes": layer.shape.attributes | {"groups": 2},
                    "parameter_shapes": ((weight[0], weight[1] // 2, *weight[2:]), bias),
                }
            )
            layers.append(layer.model_copy(update={"shape": shape}))
        else:
            layers.append(layer)
    return net.model.model_copy(update={"layers": tuple(layers)})


@pytest.mark.parametrize("strategy_name", ["filter", "channel"])
def test_grouped_convolutions_stay_whole(strategy_name: str) -> None:
    """They send nothing, and each rank runs and keeps all of them."""
    net = network([4, 8, 6], 2, [4])
    model, costs = grouped(net, "conv2"), tables(net)
    costs.wires = dict.fromkeys(costs.wires, (1.0, 0.0))
    division = Division(strategy_name, 2, 10)
    terms = strategy_named(strategy_name).paper(model, division, costs)
    # on 2 ranks an allgather has one step and an allreduce two: of conv1, conv3, fc1 less the exceptions
    steps = {"filter": 2 * 1 + 2 * 2, "channel": 2 * 2 + 1 * 1}[strategy_name]
    assert seconds(terms)["layerwise"] == pytest.approx(steps)
    whole = {"filter": ["conv2"], "channel": ["conv1", "conv2"]}[strategy_name]
    times = {x.name: costs.forward[x.name] / (1 if x.name in whole else 2) for x in net.weighted}
    others = sum(t for name, t in costs.forward.items() if name not in times)
    assert seconds(terms)["forward"] == pytest.approx(10 * (sum(times.values()) + others))
    weights = {"conv1": 4 * 27, "conv2": 8 * 2 * 9, "conv3": 6 * 8 * 9, "fc1": 4 * 24}
    biases = {"conv1": 4, "conv2": 8, "conv3": 6, "fc1": 4}
    kept = sum(
        n / (1 if name in whole else 2)
        + biases[name] / (1 if name in whole or strategy_name == "channel" else 2)
        for name, n in weights.items()
    )
    memory = strategy_named(strategy_name).memory(model, division, "sgd")
    assert memory["weights"] == 4 * kept


def test_equal_tensors_are_counted() -> None:
    """Three y of 4 items and one of 2, 8 samples: by the loops' law, two shards each, both ways."""
    found = project(mlp([4, 4, 4, 4, 2]), Division("filter", 2, 8), machine_of_loops().parameters)
    all_four = 4 * (LOOP_CALL_S + 2 * LOOP_TENSOR_S) + 4 * 8 * (3 * 4 + 2) * LOOP_BYTE_S
    assert found.phases["pack"].value == pytest.approx(2 * all_four)


def machine_of_loops() -> Machine:
    """The hand-made node with an allgather and loops of shards."""
    loops = tensor_loops("update", "concat", "split", "pack", "unpack", active=(2,))
    fits = operations("allreduce", "allgather")
    return Machine(machine(collectives=fits, tensor_loops=loops))


class Recorder(TensorCosts):
    """Counts what it is asked for."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine.parameters, 2)
        self.asked: dict[tuple[str, str, int], int] = {}

    def cutting(
        self,
        operation: Literal["concat", "split"],
        key: str,
        parts: int,
        nbytes: int,
        count: int = 1,
    ) -> Cost:
        about = (operation, key, parts)
        self.asked[about] = self.asked.get(about, 0) + count
        return super().cutting(operation, key, parts, nbytes, count)


@pytest.mark.parametrize("strategy_name", ["filter", "channel", "data+filter"])
def test_lists_are_those_that_are_measured(strategy_name: Any) -> None:
    """What `calib measure` runs for a residual network is what the prediction looks up."""
    model = spec("resnet50-mini")
    division = Division(strategy_name, 4, 16, inner=2 if strategy_name == "data+filter" else 1)
    request = Request(models=(model.name,), strategies=(strategy_name,), p=(4,), ranks=2)
    cases = tensor_cases(request, [Point(model, division, launch=2)])
    planned = Counter(
        (case.operation, case.key, case.parts)
        for case in cases
        if isinstance(case, TensorsCase) and case.operation in ("concat", "split")
    )
    loops = machine_of_loops()
    costs, recorder = loops.costs(2), Recorder(loops)
    costs.tensors = recorder
    strategy_named(strategy_name).measured(model, division, costs)
    assert planned and recorder.asked == planned
