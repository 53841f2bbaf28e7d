"""Layers and models of a few lines for tests of geometry."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from calib.foundation.layers import LayerShape
from calib.oracle.model.layer import Layer
from calib.oracle.model.spec import ModelSpec


def conv(
    channels: int, filters: int, size: tuple[int, ...], kernel: int, stride: int, padding: int
) -> LayerShape:
    """A convolution with bias on an image of `size`."""
    d = len(size)
    output = tuple((n + 2 * padding - kernel) // stride + 1 for n in size)
    return LayerShape(
        kind="conv",
        input_shapes=((channels, *size),),
        output_shape=(filters, *output),
        parameter_shapes=((filters, channels, *(kernel,) * d), (filters,)),
        attributes={
            "kernel": (kernel,) * d,
            "stride": (stride,) * d,
            "padding": (padding,) * d,
            "groups": 1,
        },
    )


def pool(
    kind: Any,
    channels: int,
    size: tuple[int, ...],
    kernel: int,
    stride: int,
    padding: int,
    ceil: bool = False,
) -> LayerShape:
    """A pooling; `ceil` rounds up, unless the last window would begin beyond the image (torch)."""
    like = conv(channels, channels, size, kernel, stride, padding)
    attributes = {k: v for k, v in like.attributes.items() if k != "groups"} | {"ceil_mode": ceil}
    output = []
    for n in size:
        rounded = math.ceil if ceil else math.floor
        windows = rounded((n + 2 * padding - kernel) / stride) + 1
        output.append(windows - ((windows - 1) * stride >= n + padding))
    return LayerShape(
        kind=kind,
        input_shapes=like.input_shapes,
        output_shape=(channels, *output),
        attributes=attributes,
    )


def relu(channels: int, size: tuple[int, ...]) -> LayerShape:
    return LayerShape(
        kind="relu", input_shapes=((channels, *size),), output_shape=(channels, *size)
    )


def model_of(shapes: list[LayerShape], name: str = "stack") -> ModelSpec:
    """Layers one after the other, and a fully connected one with its loss behind them."""
    layers, source, weighted = [], "input", False
    for number, shape in enumerate(shapes, 1):
        layers.append(
            Layer(name=f"l{number}", shape=shape, inputs=(source,), needs_input_grad=weighted)
        )
        weighted = weighted or bool(shape.parameter_shapes)
        source = f"l{number}"
    items = shapes[-1].output_items
    end = [
        (
            "flatten",
            LayerShape(
                kind="flatten", input_shapes=(shapes[-1].output_shape,), output_shape=(items,)
            ),
        ),
        (
            "fc",
            LayerShape(
                kind="linear",
                input_shapes=((items,),),
                output_shape=(6,),
                parameter_shapes=((6, items), (6,)),
            ),
        ),
        ("loss", LayerShape(kind="cross_entropy", input_shapes=((6,),), output_shape=())),
    ]
    for layer_name, shape in end:
        needed = weighted or layer_name == "loss"
        layers.append(
            Layer(name=layer_name, shape=shape, inputs=(source,), needs_input_grad=needed)
        )
        source = layer_name
    whole = shapes[0].input_shapes[0]
    return ModelSpec(name=name, input_shape=whole, classes=6, layers=tuple(layers))


def small() -> ModelSpec:
    """conv 3 -> 4 (3x3, padded), ReLU, max pool by 2, fully connected: on 8 x 6 images."""
    return model_of(
        [conv(3, 4, (8, 6), 3, 1, 1), relu(4, (8, 6)), pool("max_pool", 4, (8, 6), 2, 2, 0)]
    )


@st.composite
def windowed(draw: st.DrawFn) -> tuple[LayerShape, tuple[int, ...]]:
    """A convolution or pooling on a small 1-D or 2-D image, and a grid that cuts it."""
    kernel = draw(st.integers(1, 4))
    stride = draw(st.integers(1, 3))
    size = tuple(draw(st.lists(st.integers(4, 13), min_size=1, max_size=2)))
    kind = draw(st.sampled_from(["conv", "max_pool", "avg_pool"]))
    if kind == "conv":
        padding = draw(st.integers(0, kernel - 1))
        shape = conv(2, 3, size, kernel, stride, padding)
    else:
        shape = pool(
            kind, 2, size, kernel, stride, draw(st.integers(0, kernel // 2)), draw(st.booleans())
        )
    grid = tuple(draw(st.integers(1, 4)) for _ in range(draw(st.integers(1, len(size)))))
    assume(math.prod(grid) > 1 and all(n > 0 for n in shape.output_shape))
    return shape, grid
