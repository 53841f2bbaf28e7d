"""Layer shapes: keys tell apart what runs different kernels; work against torch's own counter."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.foundation.shapes import LINEAR, RELU, conv
from torch.utils.flop_counter import FlopCounterMode

from calib.foundation.execution import DTYPES
from calib.foundation.layers import LayerKind, LayerShape, Shape
from calib.microbench.layers.build import build_layer


def test_key_tells_apart_what_runs_other_kernels() -> None:
    shape = conv()
    keys = [
        shape.key(8),
        shape.key(16),
        shape.key(8, "float64"),
        shape.key(8, needs_input_grad=False),
        *(
            conv(**change).key(8)
            for change in (
                {"bias": False},
                {"groups": 2},
                {"stride": (1, 1)},
                {"kernel": (2, 3)},
                {"channels": (6, 4)},
                {"size": (7, 5)},
            )
        ),
        RELU.key(8),
        LayerShape(kind="dropout", input_shapes=((3, 4),), output_shape=(3, 4)).key(8),
        LayerShape(kind="relu", input_shapes=((34,),), output_shape=(34,)).key(8),
    ]
    assert len(set(keys)) == len(keys)


def test_key_is_readable_and_does_not_depend_on_the_order_of_attributes() -> None:
    """Golden: parameter files hold these texts, so a change of them needs a format version."""
    assert conv().key(8) == (
        "conv(groups=1,kernel=3x2,padding=0x0,stride=1x2)|8*4x5x7->6x3x3|6x4x3x2+6|float32"
    )
    assert RELU.key(1, "float64", False) == "relu()|1*3x4->3x4|-|float64|no-input-grad"
    loss = LayerShape(kind="mse", input_shapes=((4,),), output_shape=())
    assert loss.key(2) == "mse()|2*4->1|-|float32"
    add = LayerShape(kind="add", input_shapes=((4,), (4,)), output_shape=(4,))
    assert add.key(2) == "add()|2*4+4->4|-|float32"
    shape = conv()
    backwards = dict(reversed(shape.attributes.items()))
    assert list(backwards) != list(shape.attributes)
    assert shape.model_copy(update={"attributes": backwards}).key(8) == shape.key(8)


@pytest.mark.parametrize(
    ("kind", "inputs", "marked"),
    [
        ("conv", ((3, 8, 8),), True),
        ("add", ((3, 4, 8, 8), (3, 4, 8, 8)), True),
        ("linear", ((9,),), False),
        ("layer_norm", ((5, 7),), False),
        ("add", ((3, 8, 8), (9,)), False),
        ("mse", ((2, 2, 2, 2, 2),), False),
    ],
)
def test_channels_last_is_of_images_alone(
    kind: LayerKind, inputs: tuple[Shape, ...], marked: bool
) -> None:
    shape = LayerShape(kind=kind, input_shapes=inputs, output_shape=inputs[0])
    last = shape.key(2, "bfloat16+cuda_graph+channels_last", False)
    assert last == shape.key(2, "bfloat16+channels_last", False)
    assert (last != shape.key(2, "bfloat16", False)) == marked
    assert ("+channels_last|" in last) == marked and "cuda_graph" not in last


def test_key_survives_json() -> None:
    for shape in (conv(), RELU, LINEAR):
        assert LayerShape.model_validate_json(shape.model_dump_json()) == shape
        assert LayerShape.model_validate_json(shape.model_dump_json()).key(3) == shape.key(3)


def test_items() -> None:
    shape = conv()
    assert (shape.input_items, shape.output_items) == (4 * 5 * 7, 6 * 3 * 3)
    assert shape.parameter_items == 6 * 4 * 3 * 2 + 6
    two = LayerShape(kind="add", input_shapes=((3, 2), (3, 2)), output_shape=(3, 2))
    assert two.input_items == 12 and two.parameter_items == 0
    assert LayerShape(kind="mse", input_shapes=((4,),), output_shape=()).output_items == 1


@pytest.mark.parametrize("groups", [1, 2])
def test_flops_of_a_convolution_by_counting_them(groups: int) -> None:
    """Every multiply-add of every output item, one by one."""
    shape = conv(groups=groups)
    batch, flops = 2, 0
    for _ in itertools.product(range(batch), *map(range, shape.output_shape)):
        for _ in itertools.product(range(4 // groups), range(3), range(2)):
            flops += 2
    assert shape.forward_flops(batch) == flops


@settings(max_examples=40)
@given(
    rank=st.integers(1, 3),
    groups=st.integers(1, 3),
    width=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    size=st.integers(4, 7),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    batch=st.integers(1, 4),
)
def test_work_of_convolutions_is_what_torch_counts(
    rank: int, groups: int, width: tuple[int, int], size: int, kernel: int, stride: int, batch: int
) -> None:
    """FLOPs: torch.utils.flop_counter. Bytes: the tensors that the call reads and writes."""
    shape = conv(
        (groups * width[0], groups * width[1]),
        (size,) * rank,
        (kernel,) * rank,
        (stride,) * rank,
        groups,
    )
    module = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)[rank - 1](
        groups * width[0], groups * width[1], kernel, stride, groups=groups
    )
    x = torch.zeros(batch, *shape.input_shapes[0])
    with FlopCounterMode(display=False) as counter:
        y = module(x)
    assert tuple(y.shape[1:]) == shape.output_shape
    assert shape.forward_flops(batch) == counter.get_total_flops()
    tensors = [x, y, *module.parameters()]
    assert shape.moved_bytes(batch) == sum(t.numel() * t.element_size() for t in tensors)


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_work_of_a_linear_layer(batch: int, dtype: str) -> None:
    x = torch.zeros(batch, 10, dtype=getattr(torch, dtype))
    module = torch.nn.Linear(10, 7, dtype=x.dtype)
    with FlopCounterMode(display=False) as counter:
        y = module(x)
    assert LINEAR.forward_flops(batch) == counter.get_total_flops() == 2 * batch * 70
    moved = sum(t.numel() * t.element_size() for t in [x, y, *module.parameters()])
    assert LINEAR.moved_bytes(batch, DTYPES[dtype].activation_bytes) == moved


def test_tf32_is_arithmetic_on_items_of_float32() -> None:
    assert DTYPES["tf32"] == DTYPES["float32"]
    assert LINEAR.key(2, "tf32") != LINEAR.key(2, "float32")


NORM = LayerShape(
    kind="layer_norm",
    input_shapes=((5, 6),),
    output_shape=(5, 6),
    parameter_shapes=((6,), (6,)),
    attributes={"normalized_shape": (6,)},
)
SOFTMAX = LayerShape(kind="softmax", input_shapes=((7, 3),), output_shape=(7, 3))
CONCAT = LayerShape(kind="concat", input_shapes=((2, 4, 4), (3, 4, 4)), output_shape=(5, 4, 4))
EMBEDDING = LayerShape(
    kind="embedding", input_shapes=((9,),), output_shape=(9, 4), parameter_shapes=((1000, 4),)
)


@pytest.mark.parametrize("item_bytes", [4, 2])
def test_work_of_norms_softmax_and_copies(item_bytes: int) -> None:
    """Passes count one operation an item, copies none; an embedding moves the rows it looks up."""
    batch = 3
    assert NORM.forward_flops(batch) == 3 * 30
    assert NORM.moved_bytes(batch, item_bytes) == item_bytes * (2 * 3 * 30 + 12)
    assert SOFTMAX.forward_flops(batch) == 3 * 21
    assert SOFTMAX.moved_bytes(batch, item_bytes) == item_bytes * 2 * 3 * 21
    assert CONCAT.forward_flops(batch) == 0
    assert CONCAT.moved_bytes(batch, item_bytes) == item_bytes * 2 * 3 * 80
    assert EMBEDDING.forward_flops(batch) == 0
    rows = 3 * 9 * 4 * item_bytes
    assert EMBEDDING.moved_bytes(batch, item_bytes) == 3 * 9 * 8 + 2 * rows
    larger = EMBEDDING.model_copy(update={"parameter_shapes": ((10**6, 4),)})
    assert larger.moved_bytes(batch, item_bytes) == EMBEDDING.moved_bytes(batch, item_bytes)


def test_keys_of_the_kinds_that_came_later() -> None:
    assert NORM.key(2) == "layer_norm(normalized_shape=6)|2*5x6->5x6|6+6|float32"
    assert SOFTMAX.key(2) == "softmax()|2*7x3->7x3|-|float32"
    assert CONCAT.key(2) == "concat()|2*2x4x4+3x4x4->5x4x4|-|float32"
    assert EMBEDDING.key(2, needs_input_grad=False) == (
        "embedding()|2*9->9x4|1000x4|float32|no-input-grad"
    )


def test_work_of_pooling_and_of_passes() -> None:
    pool = LayerShape(
        kind="max_pool",
        input_shapes=((3, 8, 8),),
        output_shape=(3, 4, 4),
        attributes={"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1), "ceil_mode": False},
    )
    assert pool.forward_flops(2) == 2 * 3 * 4 * 4 * 9
    assert pool.moved_bytes(2) == 4 * 2 * (3 * 64 + 3 * 16)
    assert RELU.forward_flops(5) == 60
    flatten = LayerShape(kind="flatten", input_shapes=((3, 4),), output_shape=(12,))
    assert flatten.is_free and not RELU.is_free


def test_unknown_kinds_and_fields_are_refused() -> None:
    with pytest.raises(ValidationError):
        LayerShape.model_validate({"kind": "conv9", "input_shapes": [[1]], "output_shape": [1]})
    with pytest.raises(ValidationError):
        LayerShape.model_validate(
            {"kind": "relu", "input_shapes": [[1]], "output_shape": [1], "colour": 1}
        )


def test_bytes_of_a_backward() -> None:
    """Each tensor that it needs once: dy, x, w; dx and dw."""
    x, y, w = LINEAR.input_items, LINEAR.output_items, LINEAR.parameter_items
    assert LINEAR.backward_bytes(3) == 4 * (3 * y + 2 * 3 * x + 2 * w)
    assert LINEAR.backward_bytes(3, 2, needs_input_grad=False) == 2 * (3 * (x + y) + w)
    assert RELU.backward_bytes(5) == 4 * 5 * 3 * RELU.input_items
    assert CONCAT.backward_bytes(2) == 4 * 2 * 2 * 80, "no input is read"
    assert EMBEDDING.backward_bytes(2) == 2 * 9 * 8 + 4 * (2 * 36 + 4000), "the whole table"


@pytest.mark.parametrize("needs_input_grad", [True, False])
@pytest.mark.parametrize("shape", [LINEAR, conv()], ids=lambda shape: shape.kind)
def test_operations_of_a_backward_against_torch(shape: LayerShape, needs_input_grad: bool) -> None:
    layer = build_layer(shape, torch.float32, torch.device("cpu"))
    x = torch.randn(3, *shape.input_shapes[0], requires_grad=needs_input_grad)
    y = layer(x)
    with FlopCounterMode(display=False) as counter:
        y.backward(torch.ones_like(y))
    assert counter.get_total_flops() == shape.backward_flops(3, needs_input_grad)
