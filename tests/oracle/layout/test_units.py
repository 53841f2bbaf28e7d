"""Units of fully sharded training: by names, and what an iteration sends of them, in closed form."""

from __future__ import annotations

import math

import pytest
from tests.oracle.handmade import linear

from calib.foundation.division import Division
from calib.foundation.layers import LayerShape
from calib.oracle.layout.traffic import messages
from calib.oracle.layout.units import ROOT, model_units, units_of
from calib.oracle.memory.unit_bytes import unit_bytes
from calib.oracle.model.layer import Layer
from calib.oracle.model.spec import ModelSpec
from calib.training.models.specs import spec

UNITS = {
    "conv1": ROOT,
    "fc": ROOT,
    "layer1.0.conv1": "layer1.0",
    "layer1.0.downsample.1": "layer1.0",  # numbers inside a block make no unit
    "stages.2.10.conv3": "stages.2.10",  # lists in a list
    "features.3": "features.3",
    "blocks.0.1": "blocks.0",  # a Sequential of layers
    "0.0.1": "0.0",
    "7": "7",
    "encoder.layers.11.self_attn.out_proj": "encoder.layers.11",
    "encoder.norm": ROOT,  # encoder has blocks
    "Mixed_5b.branch1.conv": "Mixed_5b",
    "Mixed_5b.branch2.0a.conv": "Mixed_5b",  # 0a is no number
}


def test_units_by_name() -> None:
    assert units_of(UNITS) == UNITS


def chain(*names: str) -> ModelSpec:
    """Linear layers of 3 x 3 weights and 3 biases, one after the other."""
    layers = [
        linear(name, source, 3, 3, first=source == "input")
        for source, name in zip(("input", *names), names, strict=False)
    ]
    loss = LayerShape(kind="cross_entropy", input_shapes=((3,),), output_shape=())
    layers.append(Layer(name="loss", shape=loss, inputs=(names[-1],), needs_input_grad=True))
    return ModelSpec(name="chain", input_shape=(3,), classes=3, layers=tuple(layers))


def test_a_unit_is_gathered_for_each_of_its_runs() -> None:
    """blocks.0 runs twice with blocks.1 between, blocks.1 once: a layer of the root ends no run."""
    model = chain("first", "blocks.0.a", "blocks.1.a", "last", "blocks.1.b", "blocks.0.b")
    units = {unit.name: unit for unit in model_units(model)}
    assert list(units) == [ROOT, "blocks.0", "blocks.1"]
    assert [unit.gathers for unit in units.values()] == [1, 4, 2]
    assert [unit.items for unit in units.values()] == [24, 24, 24]
    assert units["blocks.0"].shapes == ((3, 3), (3,), (3, 3), (3,))


@pytest.mark.parametrize("name", ["vgg16-mini", "resnet50-mini", "cosmoflow-mini", "resnet50"])
@pytest.mark.parametrize("p", [2, 3, 4])
def test_two_allgathers_and_a_reduce_scatter_of_all_weights(name: str, p: int) -> None:
    """The root's weights are gathered once. Each unit is filled up to p equal shards."""
    model = spec(name)
    units = model_units(model)
    root = sum(unit.items for unit in units if unit.name == ROOT)
    assert sum(unit.items for unit in units) == model.parameter_items
    assert (root > 0) == name.startswith("resnet") and root < model.parameter_items / 10
    for execution, each in (("float32", 4), ("float64", 8)):
        found = messages(model.run_as(execution), Division("fully_sharded", p, p))
        assert {m.group_size for m in found} == {p}
        for operation, times in (("allgather", 2), ("reduce_scatter", 1)):
            nbytes = sum(m.nbytes for m in found if m.operation == operation)
            exact = each * (times * model.parameter_items - (times - 1) * root)
            assert 0 <= nbytes - exact < times * len(units) * each * p


def test_bytes_of_a_rank_by_hand() -> None:
    """The root has 24 items, blocks.0 12, blocks.1 24; on 5 ranks shards have 5, 3 and 5."""
    model = chain("first", "blocks.0.a", "blocks.1.a", "blocks.1.b", "last")
    found = unit_bytes(model, 5)
    assert found.shards == 4 * (5 + 3 + 5) and found.largest_shard == 4 * 5
    assert found.gathered == 4 * (25 + 25)
    assert found.sent == 4 * (25 + 5)
    assert math.isclose(unit_bytes(model.run_as("bfloat16"), 5).gathered, found.gathered / 2)
