"""A traced step beside the predicted one: the parts add up, and each says what it should."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracle.handmade import machine, mlp
from tests.reports.explained.traced import (
    allreduce,
    around,
    buckets,
    configuration,
    operator,
    traced,
)

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.foundation.records import Estimate
from calib.oracle.cost import Cost
from calib.oracle.costs.asked import Collectives
from calib.oracle.costs.machine import Machine
from calib.oracle.predict import iteration, project
from calib.oracle.projection import Projection
from calib.reports.explained.changes import changes_for, gain_of
from calib.reports.explained.collectives import collectives_beside, larger_buckets
from calib.reports.explained.explanation import differences, explain
from calib.reports.explained.lines import lines_of, summed
from calib.reports.explained.operators import operators_beside
from calib.reports.explained.timeline import chrome_trace, predicted_events

NET = mlp([12, 8, 3])
DATA = Division("data", 2, 8)
OVERLAPPED = Division("data", 2, 8, overlap=True)
STEP = {"forward": 3e-4, "backward": 5e-4, "update": 1e-4, "between": 2e-5, "wire": 4e-5}


def predicted(division: Division) -> Projection:
    return project(NET, division, machine(), explain=True)


@pytest.mark.parametrize("division", [DATA, OVERLAPPED, Division("serial", 1, 4)])
@given(seconds=st.lists(st.floats(0, 1.0), min_size=7, max_size=7), hidden=st.floats(0, 1.0))
@settings(max_examples=40, deadline=None)
def test_the_differences_add_up_to_that_of_the_step(
    division: Division, seconds: list[float], hidden: float
) -> None:
    names = ("forward", "backward", "update", "between", "wire", "waiting", "input")
    run = traced(dict(zip(names, seconds, strict=True)), hidden)
    *parts, whole = lines_of(run, predicted(division))
    for of in ("measured", "predicted", "difference"):
        total = math.fsum(getattr(line, of).value for line in parts)
        assert total == pytest.approx(getattr(whole, of).value, rel=1e-9, abs=1e-12)
    for line in (*parts, whole):
        assert line.difference.value == pytest.approx(line.measured.value - line.predicted.value)


def test_a_run_as_predicted_differs_in_nothing() -> None:
    of = predicted(DATA)
    phases = {name: time.value for name, time in of.phases.items()}
    seconds = {x: phases[x] for x in ("forward", "backward", "update")}
    run = traced({**seconds, "between": phases["pack"], "wire": phases["exchange"]})
    for line in lines_of(run, of):
        assert line.difference.value == pytest.approx(0.0, abs=1e-15)
        assert line.difference.low <= 0 <= line.difference.high


def test_hidden_communication_is_on_the_wire_and_in_the_overlap() -> None:
    of = predicted(OVERLAPPED)
    hidden = -sum(term.time.value for term in of.terms if term.time.value < 0)
    run = traced({"forward": 1e-3, "wire": 2e-3}, hidden=3e-3)
    lines = {line.name: line for line in lines_of(run, of)}
    assert lines["wire"].measured.value == pytest.approx(5e-3)
    assert lines["overlap"].measured.value == pytest.approx(-3e-3)
    assert lines["overlap"].predicted.value == pytest.approx(-hidden)
    exposed = lines["wire"].predicted.value + lines["overlap"].predicted.value
    assert exposed == pytest.approx(of.phases["exchange"].value)


def test_errors_of_independent_parts_add_in_quadrature() -> None:
    found = summed([Estimate(value=1, low=0.7, high=1.3), Estimate(value=2, low=1.6, high=2.4)])
    assert (found.value, found.low, found.high) == pytest.approx((3, 2.5, 3.5))


def test_operators_stand_beside_the_layers_that_call_them() -> None:
    """Of a layer of the model made by hand, its laws say what it takes; here their sum by kind."""
    calls = [
        operator("forward", "aten::linear", 4e-5, 2),
        operator("forward", "aten::relu", 1e-5),
        operator("backward", "aten::mm", 9e-5, 3),
        operator("update", "aten::add_", 5.0),
        operator("forward", "aten::mul", 2e-6),
    ]
    found = operators_beside(traced(STEP, operators=calls), NET, DATA, Machine(machine()), "sgd")
    of = {(one.direction, one.kind): one.line for one in found}
    assert of["forward", "linear"].measured.value == pytest.approx(4e-5)
    assert of["backward", "linear"].measured.value == pytest.approx(9e-5)
    assert of["forward", "others"].measured.value == pytest.approx(2e-6)
    assert of["forward", "others"].predicted.value == 0.0
    whole = project(NET, DATA, machine(), optimizer="sgd", explain=True)
    layers = {
        d: sum(x.line.predicted.value for x in found if x.direction == d) for d in whole.phases
    }
    for direction in ("forward", "backward"):
        terms = [x for x in whole.terms if x.phase == direction and "sum of" in x.formula]
        assert layers[direction] == pytest.approx(sum(x.time.value for x in terms))
    assert (
        operators_beside(traced(STEP), NET, Division("pipeline", 2, 8), Machine(machine()), "sgd")
        == []
    )


def test_what_differs_is_said() -> None:
    assert differences(traced(STEP), NET, DATA) == []
    other = configuration(
        batch_per_rank=8, dtype="bfloat16", gradient_items=7, checkpointing=True, micro_batches=2
    )
    lines = differences(traced(STEP, configuration=other), NET, DATA)
    assert any("micro-batches of 8, the prediction 4" in line for line in lines)
    assert any("products in bfloat16, the prediction float32" in line for line in lines)
    assert any(f"7 gradients, hand {NET.parameter_items} weights" in line for line in lines)
    assert any("activation checkpointing: True" in line for line in lines)
    assert any("micro-batches: 2, the prediction 1" in line for line in lines)
    assert len(lines) == 5
    unknown = configuration(batch_per_rank=None, dtype="", strategy="")
    assert differences(traced(STEP, configuration=unknown), NET, DATA) == []
    (line,) = differences(traced({**STEP, "wire": 1e-4}, hidden=1e-4), NET, DATA)
    assert "overlap of the exchange: True, the prediction False" in line


def test_what_both_predictions_have_in_error_cancels_in_a_gain() -> None:
    now = Cost(3.0, "measured", (("machine", 0.3, 0.3), ("wire", 0.4, 0.4)))
    other = Cost(2.0, "measured", (("machine", 0.3, 0.3), ("passes", 0.3, 0.3)))
    gain = gain_of(now, other)
    assert (gain.value, gain.low, gain.high) == pytest.approx((1.0, 0.5, 1.5))


def test_changes_are_predictions_of_the_same_batch() -> None:
    of = Machine(machine())
    slow = Division("data", 2, 8)
    now = iteration(NET, slow, of, "sgd").seconds
    for change in changes_for(NET, slow, of, "sgd"):
        assert change.predicted.value + change.gain.value == pytest.approx(now)
        assert change.gain.value > 0


def test_collectives_stand_beside_the_calibrated_ones() -> None:
    """Sizes that were calibrated, so that the law is what was measured (handmade.POINTS)."""
    run = traced(STEP, collectives=[allreduce(65536, 60e-6), allreduce(8, 1.0, with_waits=True)])
    (one,) = collectives_beside(run, Collectives(machine()))
    assert (one.operation, one.nbytes, one.ranks) == ("allreduce", 65536, 2)
    assert one.line.predicted.value == pytest.approx(40e-6)
    assert one.line.difference.value == pytest.approx(20e-6)


def test_larger_buckets_save_the_starts_of_messages() -> None:
    """1024 messages of 1 KiB take 5 us each; their 1 MiB in one takes 500 (handmade.POINTS)."""
    asked = Collectives(machine())
    run = traced(
        STEP,
        configuration=configuration(buckets=buckets(1024, 1 << 20)),
        collectives=[allreduce(1024, 5e-6, calls=1024)],
    )
    (change,) = larger_buckets(run, asked)
    assert change.predicted.value == pytest.approx(500e-6)
    assert change.gain.value == pytest.approx(1024 * 5e-6 - 500e-6)
    few = configuration(buckets=buckets(2, 1 << 20))
    assert larger_buckets(traced(STEP, configuration=few), asked) == []


def test_an_impossible_division_is_one_line() -> None:
    with pytest.raises(InputError, match="hand, data"):
        explain(traced(STEP), NET, Division("data", 16, 8), Machine(machine()), "sgd")


def test_the_predicted_timeline_lasts_as_long_as_the_prediction() -> None:
    for division in (DATA, OVERLAPPED):
        of = predicted(division)
        assert of.total is not None
        events = predicted_events(of)
        assert max(event.stop_s for event in events) == pytest.approx(of.total.value)
        trace = chrome_trace(events)["traceEvents"]
        bars = [event for event in trace if event["ph"] == "X"]
        assert len(bars) == len(events) and all(bar["dur"] >= 0 for bar in bars)
        assert {event["args"]["name"] for event in trace if event["ph"] == "M"} == {
            event.row for event in events
        }


def test_an_explanation_comes_back_from_json() -> None:
    run = traced(STEP, operators=[operator("forward", "aten::linear", 1e-4)])
    found = explain(run, NET, DATA, Machine(machine()), "sgd")
    assert type(found).model_validate_json(found.model_dump_json()) == found
    assert found.lines[-1].measured == around(sum(STEP.values()))
