"""Times and laws in place in a projection: layers, copies, calls between layers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.oracle.handmade import estimate, law, layer_time, machine, mlp, operations, tensor_loops
from tests.oracle.simulated import cuttable

from calib.fitting.parameters.file import Composition, Parameters
from calib.foundation.division import Division
from calib.oracle.layout.shards import fitted
from calib.oracle.layout.traffic import layer_flows
from calib.oracle.model.spec import ModelSpec
from calib.oracle.predict import project
from calib.oracle.projection import Projection
from calib.oracle.strategies.halos import joins
from calib.oracle.what_if.changes import apply

NET = mlp([12, 8, 6, 4])  # fc1, relu1, fc2, relu2, fc3, loss
CUT = cuttable()
BATCH = 8
MORE = 1e-3  # beside microseconds


def known(laws: Sequence[Composition] = ()) -> Parameters:
    """A machine with every operation that is asked for, and these laws."""
    return machine(
        collectives=operations("allreduce", "allgather", "halo"),
        tensor_loops=tensor_loops("update", "pack", "unpack", "concat", "split"),
        composition=list(laws),
    )


def added(model: ModelSpec, division: Division, rule: Composition) -> dict[str, float]:
    """What one law adds to every phase that it adds to."""
    before, after = (project(model, division, known(laws)).phases for laws in ([], [rule]))
    found = {str(name): after[name].value - before[name].value for name in before}
    return {name: seconds for name, seconds in found.items() if abs(seconds) > 1e-12}


def test_calls_of_filter() -> None:
    """An allgather of y of 3 layers, an allreduce of dL/dx of the last 2."""
    division = Division("filter", 2, BATCH)
    assert added(NET, division, law("layerwise", 2, MORE)) == pytest.approx({"layerwise": 5 * MORE})
    assert added(NET, division, law("halo", 2, MORE)) == {}


def test_copies_of_filter() -> None:
    """y of 3 layers is joined and their dL/dy cut: 8, 6 and 4 items of 8 samples, twice."""
    rule = law("copies", 2, MORE, 1e-6)
    nbytes = 2 * 4 * BATCH * (8 + 6 + 4)
    expected = {"pack": 6 * MORE + nbytes * 1e-6}
    assert added(NET, Division("filter", 2, BATCH), rule) == pytest.approx(expected)


def test_halos_and_their_copies() -> None:
    division = fitted(CUT.model, Division("spatial", 2, BATCH))
    flows = layer_flows(CUT.model, division)
    halos = sum(flow.phase == "halo" for flow in flows)
    assert 0 < halos < len(flows)
    for phase, n in (("halo", halos), ("layerwise", len(flows) - halos)):
        assert added(CUT.model, division, law(phase, 2, MORE)) == pytest.approx({phase: n * MORE})
    copies = [of for found in joins(CUT.model, division).values() for of in found]
    expected = sum(of.count * (MORE + 1e-6 * 4 * BATCH * of.items) for of in copies)
    found = added(CUT.model, division, law("copies", 2, MORE, 1e-6))
    assert found == pytest.approx({"pack": expected})


def in_place(names: Sequence[str]) -> Parameters:
    """Each layer alone in 1 ms, these of them in place in 5 ms; laws that add 1 ms a layer."""
    layers = []
    for layer in NET.layers:
        time = layer_time(layer, BATCH, 1, 1e-3, 1e-3)
        if layer.name in names:
            times = dict.fromkeys(("in_place_forward_s", "in_place_backward_s"), estimate(5e-3))
            time = time.model_copy(update=times)
        layers.append(time)
    laws = [law(phase, 1, MORE) for phase in ("forward", "backward")]
    return known(laws).model_copy(update={"layers": layers})


def serial(of: Parameters) -> Projection:
    return project(NET, Division("serial", 1, BATCH), of)


@pytest.mark.parametrize("n", [0, 2, 6])
def test_the_law_is_added_to_layers_that_were_not_in_place(n: int) -> None:
    """n of 6 layers take 5 ms, the others 1 ms and 1 ms more."""
    found = serial(in_place([layer.name for layer in NET.layers[:n]]))
    for phase in ("forward", "backward"):
        assert found.phases[phase].value == pytest.approx(n * 5e-3 + (6 - n) * 2e-3)
        assert found.phases[phase].basis == "measured"


def test_what_if_layers_were_faster_in_place_too() -> None:
    of = in_place([layer.name for layer in NET.layers[:2]])
    before = serial(of).phases
    after = serial(apply(of, ["compute.forward_s*=0.5"])).phases
    assert after["forward"].value == pytest.approx(0.5 * before["forward"].value)
    assert after["forward"].high == pytest.approx(0.5 * before["forward"].high)
    assert after["backward"] == before["backward"]


def test_what_if_copies_were_faster_in_place_too() -> None:
    division = Division("filter", 2, BATCH)
    of = known([law("copies", 2, MORE, 1e-6)])
    before, after = (
        project(NET, division, p).phases["pack"].value for p in (of, apply(of, ["pack_s*=0.5"]))
    )
    assert after == pytest.approx(0.5 * before)
