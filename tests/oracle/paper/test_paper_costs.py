"""Per-sample times of the `paper` form from a parameter file, against the laws by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.oracle.handmade import (
    CALL_S,
    LOOP_BYTE_S,
    LOOP_CALL_S,
    LOOP_TENSOR_S,
    S_PER_BYTE,
    S_PER_FLOP,
    estimate,
    machine,
    mlp,
    tensor_loop,
    work_model,
)

from calib.foundation.division import Division
from calib.foundation.layers import Direction
from calib.oracle.cost import NOTHING, Cost
from calib.oracle.costs.machine import Machine
from calib.oracle.layout.shards import split_layers
from calib.oracle.layout.workload import Select, workload
from calib.oracle.model.spec import ModelSpec
from calib.oracle.paper.costs import FittedPaperCosts, paper_costs, profile_batch

# fc1 16 -> 16, relu1, fc2 16 -> 16, relu2, fc3 16 -> 4, loss; fc1 computes no dL/dx
NET = mlp([16, 16, 16, 4])
WEIGHTS = {"fc1": 272, "fc2": 272, "fc3": 68}


def by_hand(model: ModelSpec, batch: int, scale: float) -> list[float]:
    """Seconds per sample: a call, operations, and bytes of inputs, output and weights, each once."""
    times = []
    for layer in model.layers:
        shape = layer.shape
        (inputs,) = shape.input_shapes
        if shape.kind == "linear":
            flops = 2 * batch * inputs[0] * shape.output_shape[0]
        else:
            flops = batch * inputs[0]
        items = batch * (inputs[0] + shape.output_items) + WEIGHTS.get(layer.name, 0)
        seconds = CALL_S + flops * S_PER_FLOP + 4 * items * S_PER_BYTE
        times.append(scale * seconds / batch)
    return times


def paper(division: Division, **changes: Any) -> FittedPaperCosts:
    """The costs of NET."""
    return paper_costs(Machine(machine(**changes)), NET, division, "momentum")


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize(("direction", "scale"), [("forward", 1.0), ("backward", 2.0)])
def test_times_per_sample_at_the_profile_batch(
    batch: int, direction: Direction, scale: float
) -> None:
    """A call costs the same at any batch: per sample it is less at a larger one."""
    found = paper(Division("filter", 4, 4 * batch)).each(direction)
    assert [cost.seconds for cost in found] == pytest.approx(by_hand(NET, batch, scale), rel=1e-12)


def test_one_rank_is_alone_whatever_p() -> None:
    """The paper profiles one rank: neighbours that disturb each other are not in its equations."""
    laws = [
        law.model_copy(update={"call_s": law.call_s * active})
        for active in (1, 2)
        for kind in ("linear", "any")
        for direction in ("forward", "backward")
        for law in [work_model(kind, direction, active)]
    ]
    found = paper(Division("data", 2, 8), work=laws).each("forward")
    assert [cost.seconds for cost in found] == pytest.approx(by_hand(NET, 4, 1.0), rel=1e-12)


@pytest.mark.parametrize(
    ("division", "split"),
    [
        (Division("filter", 2, 8), {"fc1", "fc2", "fc3"}),
        (Division("channel", 4, 16), {"fc2", "fc3"}),
        (Division("data", 2, 8), set()),
    ],
)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_totals_are_the_sums_over_the_layers_that_are_split(
    division: Division, split: set[str], direction: Direction
) -> None:
    """Whole layers, of which a network has many equal ones: none is lost, none counted twice."""
    costs, work = paper(division), workload(NET, division)
    assert {layer.name for layer in split_layers(NET, division)} == split
    each = dict(zip([x.name for x in NET.layers], costs.each(direction), strict=True))
    wanted: dict[Select, list[Cost]] = {
        "all": list(each.values()),
        "split": [cost for name, cost in each.items() if name in split],
        "whole": [cost for name, cost in each.items() if name not in split],
    }
    for select, parts in wanted.items():
        found = costs.total(work, select, direction)
        assert found.seconds == pytest.approx(math.fsum(c.seconds for c in parts), rel=1e-12)
        ups = {source for cost in parts for source, _, _ in cost.errors}
        for source in ups:  # errors of one law add up
            up = math.fsum(e[2] for c in parts for e in c.errors if e[0] == source)
            assert {e[0]: e[2] for e in found.errors}[source] == pytest.approx(up)


def test_update_of_each_layer_is_its_part_of_one_pass() -> None:
    """sum(WU) is the update of all weights: one call, not one for each layer."""
    times = [cost.seconds for cost in paper(Division("filter", 2, 8)).update()]
    whole = LOOP_CALL_S + 6 * LOOP_TENSOR_S + 4 * sum(WEIGHTS.values()) * LOOP_BYTE_S
    alone = [
        LOOP_CALL_S + 2 * LOOP_TENSOR_S + 4 * WEIGHTS[x.name] * LOOP_BYTE_S
        if x.name in WEIGHTS
        else 0.0
        for x in NET.layers
    ]
    assert math.fsum(times) == pytest.approx(whole, rel=1e-12)
    assert times == pytest.approx([whole * t / sum(alone) for t in alone], rel=1e-12)


def test_measured_update_is_taken() -> None:
    """The list of all weights was measured: WU_l add up to that, with its interval."""
    key = workload(NET, Division("serial", 1, 8)).weights.key
    loops = [tensor_loop("update", 1, {key: estimate(0.5, margin=0.2)})]
    found = paper(Division("data", 4, 8), tensor_loops=loops).update()
    assert math.fsum(cost.seconds for cost in found) == pytest.approx(0.5)
    assert {cost.basis for cost in found} == {"exact", "measured"}
    low = math.fsum(error[1] for cost in found for error in cost.errors)
    assert low == pytest.approx(0.1)


def test_model_without_weights_updates_nothing() -> None:
    """No layer has a WU, and nothing is divided by their sum."""
    bare = NET.model_copy(update={"layers": NET.layers[-1:]})  # a copy is not checked
    costs = paper_costs(Machine(machine()), bare, Division("data", 2, 8), "momentum")
    assert list(costs.update()) == [NOTHING]


@pytest.mark.parametrize(
    ("division", "batch"),
    [
        (Division("serial", 1, 64), 64),
        (Division("data", 4, 64), 16),
        (Division("filter", 4, 64), 16),
        (Division("data+spatial", 8, 64, inner=4), 8),
        (Division("data+filter", 8, 64, inner=8), 8),
        (Division("pipeline", 4, 64, segments=8), 16),
        (Division("spatial", 128, 64), 1),
        (Division("spatial", 5, 64), 12),
    ],
)
def test_profile_batch_is_that_of_data_parallelism(division: Division, batch: int) -> None:
    """B/p rounded down, one sample at least: alike for all strategies of as many ranks."""
    assert profile_batch(division) == batch


def test_costs_are_made_once_for_a_profile() -> None:
    """Of a model, a batch and an optimizer; look-ups are kept between predictions."""
    hand = Machine(machine())
    costs = paper_costs(hand, NET, Division("data", 4, 64), "momentum")
    assert paper_costs(hand, NET, Division("filter", 2, 32), "momentum") is costs
    assert paper_costs(hand, NET, Division("data", 4, 32), "momentum") is not costs
    assert paper_costs(hand, mlp([16, 4]), Division("data", 4, 64), "momentum") is not costs
    assert costs.each("forward") is costs.each("forward")
    other_batch = paper_costs(hand, NET, Division("data", 4, 32), "momentum")
    assert other_batch.update() is costs.update()


class Network:
    """Remembers what it was asked."""

    def link(self, span: int, operation: str, groups: int = 1) -> tuple[int, str]:
        return span, operation

    def contention_of(self, flows: float, span: int) -> float:
        return flows + span / 1000


def test_links_and_contention_are_the_machine_s() -> None:
    """Asked with the same words."""
    hand = Machine(machine())
    hand.__dict__["network"] = Network()  # instead of what the property would make
    costs = paper_costs(hand, NET, Division("data", 4, 64), "momentum")
    asked: Any = costs.link(64, "allgather")
    assert asked == (64, "allgather")
    assert costs.contention(4, 16) == 4.016
