"""What each measured case adds to the interval of a prediction."""

from __future__ import annotations

from math import fsum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.oracle.handmade import (
    allreduce_fit,
    estimate,
    law,
    layer_time,
    machine,
    mlp,
    tensor_loop,
)
from tests.oracle.test_sources import WAYS

from calib.fitting.parameters.file import Parameters
from calib.foundation.division import Division
from calib.foundation.records import Estimate
from calib.microbench.cases import CollectiveCase, LayerCase, TensorsCase
from calib.oracle import origins
from calib.oracle.cost import Cost
from calib.oracle.costs.machine import Machine
from calib.oracle.layout.workload import model_weights
from calib.oracle.predict import iteration, project
from calib.oracle.sensitivity import Sensitivity, feeding, sensitivity, shares, told_apart
from calib.oracle.sources import FROM, IN_PLACE, MACHINE, SIZE_LAWS, group_of

NET = mlp((12, 8, 3))
DATA = Division("data", 2, 8)
WEIGHTS = model_weights(NET)
LAYERS = [layer for layer in NET.layers if layer.shape.parameter_shapes]


def measured_machine(**changes: Any) -> Parameters:
    """Linear layers, update and packing are measured, and the allreduce between two sizes."""
    times = [
        layer_time(layer, 4, active, 1e-4 * number, 3e-4 * number)
        for number, layer in enumerate(LAYERS, 1)
        for active in (1, 2)
    ]
    loops = [
        tensor_loop(name, active, {WEIGHTS.key: estimate(5e-5 * number, 0.2)})
        for number, name in enumerate(("update", "pack", "unpack"), 1)
        for active in (1, 2)
    ]
    of = {"layers": times, "tensor_loops": loops, "composition": [law("exchange", 2)]}
    return machine(**(of | changes))


def apart(parameters: Parameters) -> Machine:
    return told_apart(Machine(parameters))


def error_of(cost: Cost, origin: str) -> tuple[float, float]:
    """Seconds below and above that come from one measured time."""
    found = [(down, up) for source, down, up in cost.errors if source.partition(FROM)[2] == origin]
    return fsum(down for down, _ in found), fsum(up for _, up in found)


@pytest.mark.parametrize("division", WAYS, ids=lambda of: of.slug)
def test_times_told_apart_are_the_same_iteration_with_the_same_interval(division: Division) -> None:
    names = "allreduce", "allgather", "reduce_scatter", "p2p"
    fits = [
        allreduce_fit().model_copy(update={"operation": name, "ranks": p})
        for name in names
        for p in (2, 4)
    ]
    parameters = measured_machine(collectives=fits, launch_factors={2: 1.05})
    of = sensitivity(NET, division, apart(parameters), {})
    found = project(NET, division, parameters)
    assert found.total is not None
    assert of.seconds == pytest.approx(found.total.value, rel=1e-12)
    assert of.half_width == pytest.approx(found.total.half_width, rel=1e-9)
    assert fsum(of.fixed.values()) == pytest.approx(1.0)
    known = {source.source: source.share for source in found.sources}
    for name in (MACHINE, IN_PLACE):
        assert of.fixed.get(name, 0.0) == pytest.approx(known.get(name, 0.0), rel=1e-6)


@given(
    st.sampled_from(LAYERS), st.sampled_from(("forward_s", "backward_s")), st.sampled_from((1, 2))
)
def test_an_error_is_the_derivative_times_the_width(layer: Any, field: str, p: int) -> None:
    """Against finite differences: the seconds are linear in a measured time."""
    parameters = measured_machine()
    division = Division("data", p, 4 * p)
    key = layer.shape.key(4, "float32", layer.needs_input_grad)

    def at(factor: float) -> float:
        times = [
            time.model_copy(update={field: getattr(time, field).scaled(factor)})
            if (time.key, time.active_ranks) == (key, p)
            else time
            for time in parameters.layers
        ]
        return iteration(NET, division, Machine(measured_machine(layers=times))).seconds

    (time,) = [t for t in parameters.layers if (t.key, t.active_ranks) == (key, p)]
    of: Estimate = getattr(time, field)
    derivative = (at(1.01) - at(0.99)) / (0.02 * of.value)
    only = measured_machine(
        layers=[
            t.model_copy(
                update={
                    name: value if (t.key, name) == (key, field) else Estimate.exactly(value.value)
                    for name, value in (("forward_s", t.forward_s), ("backward_s", t.backward_s))
                }
            )
            for t in parameters.layers
        ]
    )
    down, up = error_of(iteration(NET, division, apart(only)), origins.layer(key, p, False))
    assert up == pytest.approx(derivative * (of.high - of.value), rel=1e-6)
    assert down == pytest.approx(derivative * (of.value - of.low), rel=1e-6)


def test_a_size_between_two_gets_less_sure_with_either() -> None:
    """The gradients, 2 (12 x 8 + 8 + 8 x 3 + 3) items, lie between 8 B and 1 kB."""
    cost = iteration(NET, DATA, apart(measured_machine()))
    small, large = (origins.collective("allreduce", m, 2, "mpi") for m in (8, 1024))
    named = {source for source, *_ in cost.errors}
    group = f"{SIZE_LAWS}: allreduce on 2 in a node"
    assert WEIGHTS.nbytes in range(8, 1024)
    assert {group, f"{group}{FROM}{small}"} <= named or {group, f"{group}{FROM}{large}"} <= named
    point = allreduce_fit().points[1]
    wide = point.model_copy(update={"seconds": estimate(point.seconds.value, 0.4)})
    fit = allreduce_fit()
    points = [fit.points[0], wide, *fit.points[2:]]
    wider = measured_machine(collectives=[fit.model_copy(update={"points": points})])
    after = error_of(iteration(NET, DATA, apart(wider)), large)
    assert after[1] > error_of(cost, large)[1]


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.floats(0, 9), st.floats(0, 9)),
        max_size=8,
    )
)
def test_shares_are_those_of_euler(errors: list[tuple[str, str, float, float]]) -> None:
    """Numerically: e dW/de / W for W the root of the summed squares of both sides."""
    cost = Cost(1e3, errors=tuple((f"{g}{FROM}{x}", down, up) for g, x, down, up in errors))
    found = shares(cost)

    def variance(scaled: str, factor: float) -> float:
        groups: dict[str, list[float]] = {}
        for source, down, up in cost.errors:
            of = groups.setdefault(group_of(source), [0.0, 0.0])
            scale = factor if source == scaled else 1.0
            of[0], of[1] = of[0] + scale * down, of[1] + scale * up
        return fsum(down * down + up * up for down, up in groups.values())

    whole = variance("", 1.0)
    if whole < 1e-3:
        return
    assert fsum(found.values()) == pytest.approx(1.0)
    for source, share in found.items():
        slope = (variance(source, 1.001) - variance(source, 0.999)) / 0.002
        assert share == pytest.approx(slope / 2 / whole, abs=1e-6)


def test_cases_feed_what_predictions_look_up() -> None:
    """Every measured time of data parallelism has a case; the rest is of laws."""
    cases = [
        *(
            LayerCase(ranks=2, layer=layer.shape, batch=4, needs_input_grad=layer.needs_input_grad)
            for layer in LAYERS
        ),
        *(
            TensorsCase(ranks=2, operation=name, key=WEIGHTS.key, shapes=((3,),))
            for name in ("update", "pack")
        ),
        *(
            CollectiveCase(ranks=2, group_size=2, operation="allreduce", nbytes=m)
            for m in (8, 1024)
        ),
    ]
    of = sensitivity(NET, DATA, apart(measured_machine()), feeding(cases, 2))
    assert MACHINE not in of.fixed and SIZE_LAWS in of.fixed
    assert set(of.cases) <= {case.id for case in cases}
    assert len(of.cases) >= len(cases) - 1  # of two sizes, the less sure one to each side
    assert of.measured + fsum(of.fixed.values()) == pytest.approx(1.0)
    # a launch of 8 ranks has 2 on a node; parts of a backward and cold buffers feed nothing
    wide = [case.model_copy(update={"ranks": 8}) for case in cases]
    assert feeding(wide, 2).keys() == feeding(cases, 2).keys()
    parts = [c.model_copy(update={"passes": "parts"}) for c in cases if isinstance(c, LayerCase)]
    cold = [c.model_copy(update={"cold": True}) for c in cases if isinstance(c, CollectiveCase)]
    assert not feeding([*parts, *cold], 2)


def test_what_is_left_where_every_case_is_known() -> None:
    of = Sensitivity(1.0, 0.10, {"a": 0.5, "b": 0.25}, {IN_PLACE: 0.2, SIZE_LAWS: 0.05}, 0.05)
    assert of.measured == 0.75 and of.mostly_fixed == IN_PLACE
    parameters = measured_machine()
    exact = {
        "layers": [
            time.model_copy(
                update={
                    name: Estimate.exactly(getattr(time, name).value)
                    for name in ("forward_s", "backward_s")
                }
            )
            for time in parameters.layers
        ]
    }
    keys = [origins.layer(time.key, 2, False) for time in parameters.layers]
    found = sensitivity(NET, DATA, apart(parameters), {key: ["any"] for key in keys})
    known = project(NET, DATA, measured_machine(**exact)).total
    assert known is not None and found.least == pytest.approx(known.half_width, rel=1e-9)
    assert found.least < found.half_width
