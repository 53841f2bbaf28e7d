"""Rules of cuts against operators that are run: on the whole and on parts, value by value."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.attention import KINDS, TOKENS, WIDTH, block
from tests.helpers.token_models import Gpt, Pooled
from tests.oracle.operator_models import MODELS, traced
from torch import Tensor

from calib.foundation.layers import LayerShape
from calib.foundation.operators import PRIME
from calib.microbench.layers.operators import operator_call, operator_constants, operator_inputs
from calib.oracle.layout.cuts import (
    Cut,
    Passed,
    linear_weights,
    part_of,
    passed_apart,
    passed_on,
    regrouped,
)
from calib.oracle.layout.region_tokens import token_parts
from calib.oracle.layout.regions import regions
from calib.oracle.model.spec import ModelSpec
from calib.oracle.trace.tracing import trace

CPU, BATCH = torch.device("cpu"), 3


def taken(tensor: Tensor, cut: Cut | None, parts: int, rank: int, batch: int = BATCH) -> Tensor:
    """A rank's part; blocks may be those of each sample."""
    if cut is None:
        return tensor
    blocks = cut.blocks // PRIME * batch if cut.blocks % PRIME == 0 else cut.blocks
    apart = tensor.unflatten(cut.axis, (blocks, -1)).tensor_split(parts, cut.axis + 1)
    return apart[rank].flatten(cut.axis, cut.axis + 1)


def compare(shape: LayerShape, passed: Passed, parts: int) -> None:
    of, part = shape.operator, part_of(shape, passed, parts)
    assert of is not None and part.operator is not None
    generator = torch.Generator().manual_seed(1)
    inputs = operator_inputs(shape, BATCH, torch.float64, CPU, False, generator)
    constants = operator_constants(of, torch.float64, CPU)
    whole = operator_call(shape, BATCH, CPU)(*inputs, *constants)
    for rank in range(parts):
        own = operator_inputs(part, BATCH, torch.float64, CPU, False, generator)
        for mine, all_of_it, cut in zip(own, inputs, passed.inputs, strict=True):
            cut_out = taken(all_of_it, cut, parts, rank)
            assert mine.shape == cut_out.shape
            mine.copy_(cut_out)  # in its own order in memory
        found = operator_call(part, BATCH, CPU)(*own, *constants)
        several = (found, whole) if isinstance(whole, list | tuple) else ([found], [whole])
        for mine, all_of_it, cut in zip(*several, passed.outputs, strict=True):
            torch.testing.assert_close(mine, taken(all_of_it, cut, parts, rank))


def check(model: ModelSpec, parts: int) -> int:
    """Every operator in the regions of a model; how many there are."""
    met = 0
    for region in regions(model):
        for place, passed in region.inside.items():
            shape = model.layers[place].shape
            if shape.operator is not None and shape.name != "dropout":
                compare(shape, passed, parts)
                met += 1
    return met


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("name", KINDS)
def test_every_way_of_attention(name: str, parts: int) -> None:
    model = trace(block(name)(), (TOKENS, WIDTH), name, "mse")
    found = regions(model)
    assert len(found) == 1 and len(found[0].rows) == (2 if name == "Parallel" else 1)
    wide = 2 if name == "Grouped" else 4  # heads of keys and values
    assert check(model, min(parts, wide)) or name == "Mlp"


@pytest.mark.parametrize("name", [name for name in MODELS if "dropout" not in name])
def test_models_of_operators(name: str) -> None:
    assert bool(check(traced(name), 2)) == (name in ("vit", "language", "next"))


@pytest.mark.parametrize("parts", [2, 4])
def test_operators_on_parts_of_the_tokens(parts: int) -> None:
    """Of a GPT with a norm written out, and of a block of ConvNeXt, which has rows of an image."""
    met = set()
    for model in (trace(Gpt(), (8,), "gpt", "cross_entropy"), traced("next")):
        for place, passed in token_parts(model).passed.items():
            shape = model.layers[place].shape
            if shape.operator is not None and not shape.parameter_shapes:
                compare(shape, passed, parts)
                met.add(shape.name)
    assert {"view", "mean", "pow", "mul", "permute"} <= met


def of_kind(kind: str, inputs: tuple[int, ...], output: tuple[int, ...]) -> LayerShape:
    named = {"normalized_shape": inputs[1:]} if kind == "layer_norm" else {}
    given: dict[str, Any] = {"attributes": named, "parameter_shapes": ((output[-1], inputs[-1]),)}
    return LayerShape(kind=kind, input_shapes=(inputs,), output_shape=output, **given)  # type: ignore[arg-type]


def test_what_whole_weights_pass_on() -> None:
    """Cuts of tokens, by layers that compute tokens apart; of features by none."""
    linear, norm = of_kind("linear", (6, 8), (6, 4)), of_kind("layer_norm", (6, 4, 8), (6, 4, 8))
    table = of_kind("embedding", (6,), (6, 4))
    for shape in (linear, norm, table):
        passed = passed_apart(shape, (Cut(1),))
        assert passed is not None and passed.outputs == (Cut(1),)
        part = part_of(shape, passed, 2)
        assert part.output_shape == (3, *shape.output_shape[1:])
        assert part.parameter_shapes == shape.parameter_shapes
        assert passed_on(shape, (Cut(1),)) is None
    assert passed_apart(linear, (Cut(2),)) is None
    assert passed_apart(norm, (Cut(2),)) is None and passed_apart(norm, (Cut(3),)) is None
    conv = of_kind("conv", (3, 8, 8), (4, 8, 8))
    assert passed_apart(conv, (Cut(2),)) is None


def test_a_weight_for_each_token_passes_nothing_on() -> None:
    """Positions; a scale of features does."""
    model = trace(Pooled(), (3, 8, 8), "pooled", "mse")
    (positions,) = [of.shape for of in model.layers if of.name == "add"]
    assert positions.parameter_shapes and passed_apart(positions, (Cut(1),)) is None
    gpt = trace(Gpt(), (8,), "gpt", "cross_entropy")
    scales = [of.shape for of in gpt.layers if of.shape.parameter_shapes == ((WIDTH,),)]
    assert len(scales) == 3
    assert all(passed_apart(of, (Cut(1),)) and not passed_apart(of, (Cut(2),)) for of in scales)


shapes = st.lists(st.sampled_from([1, 2, 2, 3, 4]), min_size=1, max_size=5).map(tuple)


@given(before=shapes, data=st.data())
def test_items_that_stay_in_order(before: tuple[int, ...], data: st.DataObject) -> None:
    """Any grouping of the same items, against the numbers of the items that a rank has."""
    items = math.prod(before)
    axis = data.draw(st.integers(0, len(before) - 1))
    blocks = data.draw(st.sampled_from([n for n in (1, 2, 3, 4) if before[axis] % n == 0]))
    after: list[int] = []
    while (rest := items // math.prod(after)) > 1:
        after.append(data.draw(st.sampled_from([n for n in range(2, rest + 1) if rest % n == 0])))
    cut, numbers = Cut(axis, blocks), torch.arange(items)
    found = regrouped(before, tuple(after), cut)
    for parts in (2, 3, 4):
        if found is None or cut.width(before) % parts or found.width(tuple(after)) % parts:
            continue
        for rank in range(parts):
            mine = taken(numbers.view(before), cut, parts, rank)
            assert mine.flatten().equal(taken(numbers.view(after), found, parts, rank).flatten())


@given(st.integers(1, 6), st.integers(1, 6))
def test_a_view_of_heads_is_found(heads: int, each: int) -> None:
    """Features are cut by heads wherever there are several, also with the batch in front of them."""
    found = regrouped((PRIME, 5, heads * each), (PRIME, 5, heads, each), Cut(2))
    assert found == (Cut(2) if heads > 1 else Cut(3) if each > 1 else None)
    if heads > 1:
        merged = regrouped((PRIME, heads, 5, each), (PRIME * heads, 5, each), Cut(1))
        assert merged == Cut(0, PRIME)


def test_what_passes_no_part_on() -> None:
    """A norm over features, a sum over what is cut, a bias of its own, a linear layer."""
    model = trace(block("Chunked")(), (TOKENS, WIDTH), "net", "mse")
    by_name = {layer.name: layer.shape for layer in model.layers}
    assert passed_on(by_name["norm"], (Cut(2),)) is None
    assert passed_on(by_name["mean"], (Cut(1),)) is None
    assert passed_on(by_name["inner.chunk"], (Cut(2, 2),)) is None
    assert passed_on(by_name["inner.chunk"], (Cut(2, 3),)) is not None
    assert linear_weights(by_name["head"]) and passed_on(by_name["head"], (Cut(1),)) is None
