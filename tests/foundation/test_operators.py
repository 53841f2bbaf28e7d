"""Operators: their key and back, sizes at a batch, and what is no operator."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from calib.foundation.layer_keys import parse
from calib.foundation.layers import LayerShape
from calib.foundation.operators import Operator, family_of, one_sample, terms_in, whole_size

PRIME = 10_007
SIZES = st.lists(st.integers(1, 999), max_size=4).map(tuple)
TERMS = st.sampled_from(
    [{"input": 0}, {"batch": 2}, {"dtype": ""}, {"device": ""}, {"memory_format": "channels_last"}]
)
PLAIN = st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats() | st.text()
ARGUMENTS = st.lists(TERMS | PLAIN | st.lists(TERMS | PLAIN, max_size=3), max_size=4)


@st.composite
def shapes(draw: st.DrawFn) -> LayerShape:
    """A layer of an operator with one input; not necessarily one that PyTorch would run."""
    outputs = draw(st.lists(SIZES, max_size=2))
    tensors = 2 + len(outputs)
    axes = draw(st.lists(st.sampled_from([None, -1]), min_size=tensors, max_size=tensors))
    named = draw(st.dictionaries(st.text(max_size=5), TERMS | PLAIN, max_size=2))
    operator = Operator(
        name=draw(
            st.sampled_from(["aten.gelu.default", "aten.silu_.default", "my_lib.f.Tensor_out"])
        ),
        arguments=json.dumps(draw(ARGUMENTS)),
        options=json.dumps(named),
        axes=tuple(axes) if draw(st.booleans()) else (),
        types=draw(st.sampled_from([(), ("int64",) + ("",) * (tensors - 1)])),
        outputs=tuple(outputs),
        constants=(((3, 4), "bool"),) if draw(st.booleans()) else (),
        flops=draw(st.floats(0, 1e12)),
    )
    return LayerShape(
        kind="operator",
        input_shapes=(draw(SIZES),),
        output_shape=draw(SIZES),
        parameter_shapes=tuple(draw(st.lists(SIZES, max_size=2))),
        operator=operator,
    )


@given(shape=shapes(), batch=st.integers(1, 10**6), needs=st.booleans())
def test_a_key_and_back(shape: LayerShape, batch: int, needs: bool) -> None:
    key = shape.key(batch, "float32", needs)
    found = parse(key)
    assert found is not None
    assert (found.shape, found.batch, found.needs_input_grad) == (shape, batch, needs)
    assert found.shape.key(batch, "float32", needs) == key
    assert key.count("|") == 3 + (not needs)


def test_what_was_found_by_running_it_is_no_part_of_the_key() -> None:
    of = Operator(name="aten.gelu.default", arguments='[{"input":0}]')
    found = of.model_copy(update={"is_view": True, "has_gradient": False})
    assert of.key == found.key


@given(size=SIZES, axis=st.none() | st.integers(-1, 3), batch=st.integers(1, 64))
def test_the_size_of_a_batch_and_of_one_sample(
    size: tuple[int, ...], axis: int | None, batch: int
) -> None:
    """Traced at a prime, a size comes back with its axis, and has `batch` times the items."""
    if axis is not None and axis >= len(size):
        axis = -1
    found = one_sample(whole_size(size, axis, PRIME), PRIME)
    # a first dimension of 1 times the batch is the batch itself
    if axis == 0 and size[0] == 1:
        assert found == (size[1:], None)
    else:
        assert found == (size, axis)
    times = batch if axis != -1 else 1
    assert math.prod(whole_size(*found, batch)) == times * math.prod(size)


def test_a_batch_in_two_dimensions_is_refused() -> None:
    with pytest.raises(ValueError, match="several"):
        one_sample((PRIME, 3, 2 * PRIME), PRIME)


def test_what_arguments_name() -> None:
    given = [{"input": 1}, 2, [{"batch": 3}, None], "text"]
    assert [*terms_in(given)] == [("input", 1), ("batch", 3)]


@pytest.mark.parametrize(
    ("base", "family", "free"),
    [
        ("aten.gelu.default", "functions", False),
        ("aten.silu_.default", "functions", False),
        ("aten.transpose.int", "", True),
        ("aten.select.int", "copies", False),
        ("aten.fft_fft.default", "", False),
    ],
)
def test_families_and_views(base: str, family: str, free: bool) -> None:
    of = Operator(name=base, arguments="[]", is_view=True)
    assert (family_of(of.base), of.is_free) == (family, free)
    assert not of.model_copy(update={"is_view": False}).is_free


@pytest.mark.parametrize(
    "content",
    [
        {"name": "gelu"},
        {"name": "aten.gelu"},
        {"name": "aten.gelu.default; import os"},
        {"name": "aten.from_file.default"},
        {"name": "aten.__class__().default"},
        {"arguments": "[1"},
        {"arguments": "{}"},
        {"arguments": "__import__('os').system('true')"},
        {"arguments": "[" * 100_000},
        {"arguments": "[" * 3000 + "]" * 3000},
        {"arguments": '[{"input": "0"}]'},
        {"arguments": '[{"input": true}]'},
        {"arguments": '[{"input": 0, "batch": 1}]'},
        {"arguments": '[{"code": "x"}]'},
        {"arguments": '[{"memory_format": "load"}]'},
        {"arguments": '[{"device": "cuda"}]'},
        {"arguments": f"[{10**40}]"},
        {"options": "[]"},
        {"options": '{"a": {"dtype": 3}}'},
        {"flops": -1.0},
        {"flops": math.inf},
        {"saved": {"beside": (math.nan, 0.0)}},
        {"outputs": ((2.5,),)},
        {"more": 1},
    ],
)
def test_no_operator(content: dict[str, Any]) -> None:
    good = {"name": "aten.gelu.default", "arguments": '[{"input": 0}]'}
    Operator(**good)
    with pytest.raises(ValidationError):
        Operator(**(good | content))
