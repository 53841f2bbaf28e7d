"""Checkpointed regions on hand-made machines: what runs again, and its time in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.oracle.handmade import law, layer_time, machine, mlp, operations, tensor_loops
from tests.oracle.layout.test_units import chain
from tests.oracle.shapes import conv, model_of, pool, relu

from calib.fitting.parameters.file import Composition, Parameters
from calib.foundation.division import Division
from calib.oracle.costs.machine import Machine
from calib.oracle.layout.traffic import Message, messages
from calib.oracle.layout.units import model_units
from calib.oracle.layout.workload import workload
from calib.oracle.model.recomputed import run_again
from calib.oracle.model.spec import ModelSpec
from calib.oracle.predict import project
from calib.oracle.strategies.pipeline import placed

NET = mlp([12, 8, 6, 4])  # fc1, relu1, fc2, relu2, fc3, loss
BATCH = 8
# l1 to l4, flatten, fc, loss
IMAGES = model_of(
    [
        conv(3, 4, (8, 6), 3, 1, 1),
        relu(4, (8, 6)),
        conv(4, 4, (8, 6), 3, 1, 1),
        pool("max_pool", 4, (8, 6), 2, 2, 0),
    ]
)
CUT = Division("spatial", 2, BATCH, grid=(2,))


def marked(model: ModelSpec, *names: str) -> ModelSpec:
    """The model with these layers, one after another, in one region."""
    layers = tuple(
        layer.model_copy(update={"recomputed": names[0]}) if layer.name in names else layer
        for layer in model.layers
    )
    return model.model_copy(update={"layers": layers})


def known(laws: Sequence[Composition] = ()) -> Parameters:
    return machine(
        collectives=operations("allreduce", "allgather", "reduce_scatter", "p2p", "halo"),
        tensor_loops=tensor_loops("update", "pack", "unpack"),
        composition=list(laws),
    )


@pytest.mark.parametrize(
    ("region", "again"),
    [
        (("fc1", "relu1"), ("fc1", "relu1")),  # ReLU saves what it makes
        (("relu1", "fc2"), ("relu1",)),  # a product saves what it reads
        (("fc2",), ()),
        (("relu1", "fc2", "relu2", "fc3"), ("relu1", "fc2", "relu2")),
    ],
)
def test_what_runs_again(region: tuple[str, ...], again: tuple[str, ...]) -> None:
    model = marked(NET, *region)
    found = zip(model.layers, run_again(model), strict=True)
    assert tuple(layer.name for layer, runs in found if runs) == again


@pytest.mark.parametrize(
    ("boundaries", "again"),
    [
        ((2,), ("relu1", "fc2", "relu2")),
        ((3,), ("relu1", "relu2")),
        ((2, 4), ("relu1", "fc2", "relu2")),
    ],
)
def test_a_border_divides_a_region_into_two(
    boundaries: tuple[int, ...], again: tuple[str, ...]
) -> None:
    model = marked(NET, "relu1", "fc2", "relu2", "fc3")
    found = zip(model.layers, run_again(model, boundaries), strict=True)
    assert tuple(layer.name for layer, runs in found if runs) == again


def test_stages_are_balanced_with_what_runs_again() -> None:
    """Of 8 layers of 1 s each way, the first 4 have a second forward."""
    net = mlp([12, 8, 6, 4, 3])
    model = marked(net, *(layer.name for layer in net.layers[:4]))
    known = machine(layers=[layer_time(layer, BATCH, 2, 1.0, 1.0) for layer in net.layers])
    costs = Machine(known).costs(2)
    division = Division("pipeline", 2, BATCH)
    assert [placed(of, division, costs).boundaries for of in (net, model)] == [(4,), (3,)]


def test_sums_that_run_again() -> None:
    """tensor: of the sums of a region's rows all but one that nothing behind it needs."""
    known, division = machine(collectives=operations("allreduce")), Division("tensor", 2, BATCH)
    one = Machine(known).network.time(Message("allreduce", 4 * BATCH * 6, 2)).seconds
    for region, sums in ((("relu1", "fc2", "relu2"), 1), (("relu1", "fc2"), 0)):
        with_, without = (project(of, division, known) for of in (marked(NET, *region), NET))
        more = with_.phases["layerwise"].value - without.phases["layerwise"].value
        assert more == pytest.approx(sums * one, rel=1e-9, abs=1e-12)
        both = [project(of, division, known, "paper").phases for of in (marked(NET, *region), NET)]
        assert both[0] == both[1]


@pytest.mark.parametrize("strategy", ["filter", "channel"])
@pytest.mark.parametrize(
    ("region", "sent", "cut"), [(("relu1", "fc2", "relu2"), 1, 1), (("relu1", "fc2"), 0, 1)]
)
def test_layers_in_parts_that_run_again(
    strategy: str, region: tuple[str, ...], sent: int, cut: int
) -> None:
    """y is joined (filter) or summed (channel) again, x cut again where a region ends with its layer."""
    division = Division(strategy, 2, BATCH)
    loops = tensor_loops("update", "pack", "unpack", "concat", "split")
    fits = operations("allreduce", "allgather")
    known = machine(collectives=fits, tensor_loops=loops, composition=[law("copies", 2, 1.0)])
    operation: Any = {"filter": "allgather", "channel": "allreduce"}[strategy]
    one = Machine(known).network.time(Message(operation, 4 * BATCH * 6, 2)).seconds
    with_, without = (project(of, division, known).phases for of in (marked(NET, *region), NET))
    more = with_["layerwise"].value - without["layerwise"].value
    assert more == pytest.approx(sent * one, rel=1e-9, abs=1e-12)
    copies = round(with_["pack"].value - without["pack"].value)
    assert copies == {"filter": sent, "channel": cut}[strategy]


@pytest.mark.parametrize(
    ("region", "again", "halos", "ends"),
    [
        (("l1", "l2"), ("l1", "l2"), 1, 0),
        (("l2", "l3"), ("l2", "l3"), 1, 0),  # a part saves x with its halo when it has run
        (("l2", "l3", "l4"), ("l2", "l3", "l4"), 1, 0),
        (("l4", "flatten", "fc"), ("l4",), 0, 1),
        (("flatten", "fc"), (), 0, 1),
    ],
)
def test_parts_of_images_that_run_again(
    region: tuple[str, ...], again: tuple[str, ...], halos: int, ends: int
) -> None:
    loops = tensor_loops("update", "pack", "unpack", "concat")
    fits = operations("allreduce", "allgather", "halo")
    known = machine(collectives=fits, tensor_loops=loops, composition=[law("copies", 2, 1.0)])
    model, network = marked(IMAGES, *region), Machine(known).network
    with_, without = (project(of, CUT, known).phases for of in (model, IMAGES))
    costs = Machine(known).costs(2, "momentum").layers
    each = costs.each(workload(IMAGES, CUT), BATCH, "forward")
    layers = zip(IMAGES.layers, each, strict=True)
    forward = sum(cost.seconds for layer, cost in layers if layer.name in again)
    assert with_["backward"].value - without["backward"].value == pytest.approx(forward, rel=1e-9)
    halo = Message("halo", 4 * BATCH * (3 if "l1" in region else 4) * 6, 2, grid=(2,))
    gather = Message("allgather", 4 * BATCH * 4 * 4 * 3, 2)
    for phase, count, message in (("halo", halos, halo), ("layerwise", ends, gather)):
        more = with_[phase].value - without[phase].value
        one = network.time(message).seconds
        assert more == pytest.approx(count * one, rel=1e-9, abs=1e-12)
    assert round(with_["pack"].value - without["pack"].value) == halos + ends
    both = [project(of, CUT, known, "paper").phases for of in (model, IMAGES)]
    assert both[0] == both[1]
    assert len([m for m in messages(model, CUT) if "again" in m.why]) == halos + ends


@pytest.mark.parametrize(
    "division",
    [
        Division("filter", 2, BATCH),
        Division("channel", 2, BATCH),
        Division("data+filter", 2, BATCH, inner=1),
        Division("tensor", 2, BATCH),
        Division("pipeline", 2, BATCH, boundaries=(5,)),
        Division("pipeline", 2, BATCH, segments=2, boundaries=(1,)),
        Division("serial", 1, BATCH),
        Division("serial", 1, BATCH, accumulation=2),
        Division("data", 2, BATCH),
        Division("data", 2, BATCH, sharded_optimizer=True),
        Division("fully_sharded", 2, BATCH),
    ],
    ids=lambda division: division.strategy,
)
def test_the_backward_has_the_forward_of_what_runs_again(division: Division) -> None:
    model, laws = marked(NET, "relu1", "fc2", "relu2", "fc3"), [law("backward", n) for n in (1, 2)]
    parameters = known(laws)
    with_, without = (project(of, division, parameters).phases for of in (model, NET))
    costs = Machine(parameters).costs(division.p, "momentum").layers
    each = costs.each(workload(NET, division), division.local_batch, "forward")
    turns = division.segments * division.accumulation
    again = turns * sum(cost.seconds for cost in each[1:4])
    more = with_["backward"].value - without["backward"].value
    assert more == pytest.approx(again, rel=1e-9)
    assert with_["forward"] == without["forward"] and with_["update"] == without["update"]
    assert with_["exchange"] == without["exchange"]


def test_what_an_iteration_adds_to_them() -> None:
    """Three layers of 8, 6 and 6 items more."""
    a, b = 1e-3, 1e-6
    model, division = marked(NET, "relu1", "fc2", "relu2", "fc3"), Division("serial", 1, BATCH)
    found = [
        project(of, division, known(laws)).phases["backward"].value
        for of in (model, NET)
        for laws in ([law("backward", 1, a, b)], [])
    ]
    more = (found[0] - found[1]) - (found[2] - found[3])
    assert more == pytest.approx(3 * a + 4 * BATCH * (8 + 6 + 6) * b, rel=1e-9)


@pytest.mark.parametrize(
    ("region", "gathers"),
    [
        ((), (2, 2, 2)),
        (("blocks.0.a",), (2, 2, 2)),
        (("blocks.2.a", "blocks.2.b"), (2, 2, 2)),
        # gathered, run again one after the other, then the last one's backward comes first
        (("blocks.0.a", "blocks.1.a"), (3, 3, 2)),
        (("blocks.0.a", "blocks.1.a", "blocks.2.a", "blocks.2.b"), (3, 3, 3)),
    ],
)
def test_units_are_gathered_for_what_runs_again(
    region: tuple[str, ...], gathers: tuple[int, ...]
) -> None:
    model = chain("first", "blocks.0.a", "blocks.1.a", "blocks.2.a", "blocks.2.b", "last")
    root, *units = model_units(marked(model, *region) if region else model)
    assert root.gathers == 1 and tuple(unit.gathers for unit in units) == gathers
