"""parse() is the inverse of LayerShape.key, and None for any other text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.foundation.shapes import LINEAR, RELU, conv

from calib.foundation.layer_keys import parse
from calib.foundation.layers import LayerShape

DROPOUT = LayerShape(
    kind="dropout", input_shapes=((9,),), output_shape=(9,), attributes={"probability": 0.5}
)
POOL = LayerShape(
    kind="max_pool",
    input_shapes=((4, 8),),
    output_shape=(4, 4),
    attributes={"kernel": (2,), "stride": (2,), "padding": (0,), "ceil_mode": False},
)
NORM = LayerShape(
    kind="layer_norm",
    input_shapes=((5, 7),),
    output_shape=(5, 7),
    parameter_shapes=((7,), (7,)),
    attributes={"normalized_shape": (7,)},
)
ADD = LayerShape(kind="add", input_shapes=((4,), (4,)), output_shape=(4,))


@pytest.mark.parametrize("shape", [conv(), conv(groups=2), LINEAR, RELU, DROPOUT, POOL, NORM, ADD])
@pytest.mark.parametrize("needs_input_grad", [True, False])
@pytest.mark.parametrize("execution", ["bfloat16", "bfloat16-mixed+channels_last+cuda_graph"])
def test_round_trip(shape: LayerShape, execution: str, needs_input_grad: bool) -> None:
    key = shape.key(8, execution, needs_input_grad)
    named = parse(key)
    assert named is not None and named.shape == shape
    assert (named.batch, named.execution) == (8, shape.runs_as(execution))
    assert named.needs_input_grad == needs_input_grad


def test_a_scalar_comes_back_as_one_item() -> None:
    loss = LayerShape(kind="mse", input_shapes=((4,),), output_shape=())
    named = parse(loss.key(2))
    assert named is not None and named.shape.output_shape == (1,)
    assert named.shape.key(2) == loss.key(2)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "conv",
        "conv()|8*4->4",
        "nosuch()|8*4->4|-|float32",
        "relu(|8*4->4|-|float32",
        "relu()|8*4x->4|-|float32",
        "conv(kernel)|8*4->4|-|float32",
        "relu(a=b=c)|8*4->4|-|float32",
        "relu(a=x)|8*4->4|-|float32",
        "relu()|08*4->4|-|float32",
        "relu()|8*4->4|-|float32|x",
        "relu()|8*4->4|-|float31",
        "relu()|8*4->4|-|float32+channels_last",
        "relu()|8*4x2x2->4x2x2|-|float32+cuda_graph",
        "relu()|8*4x2x2->4x2x2|-|channels_last",
    ],
)
def test_what_is_no_key(text: str) -> None:
    assert parse(text) is None


@given(st.text(max_size=60))
def test_any_text_is_a_layer_or_none(text: str) -> None:
    named = parse(text)
    assert (
        named is None
        or named.shape.key(named.batch, named.execution, named.needs_input_grad) == text
    )
