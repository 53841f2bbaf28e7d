"""A small layer of every kind, and what its backward has parts of."""

from __future__ import annotations

import json
from typing import Any

from calib.foundation.layers import LayerShape, Shape
from calib.foundation.operators import Operator


def layer(
    kind: str, inputs: tuple[Shape, ...], output: Shape, *parameters: Shape, **attributes: Any
) -> LayerShape:
    return LayerShape.model_validate(
        {
            "kind": kind,
            "input_shapes": inputs,
            "output_shape": output,
            "parameter_shapes": parameters,
            "attributes": attributes,
        }
    )


def convolution(rank: int, groups: int = 1) -> LayerShape:
    """3 x 3 x ... with padding 1: 4 channels to 6."""
    each = {"kernel": (3,) * rank, "stride": (1,) * rank, "padding": (1,) * rank}
    weight = (6, 4 // groups, *(3,) * rank)
    size = (5,) * rank
    return layer("conv", ((4, *size),), (6, *size), weight, (6,), groups=groups, **each)


def pooling(kind: str, rank: int) -> LayerShape:
    each = {"kernel": (2,) * rank, "stride": (2,) * rank, "padding": (0,) * rank}
    return layer(kind, ((3, *(8,) * rank),), (3, *(4,) * rank), ceil_mode=False, **each)


def operator(
    name: str,
    arguments: list[Any],
    inputs: tuple[Shape, ...],
    output: Shape,
    *parameters: Shape,
    **about: Any,
) -> LayerShape:
    """A layer that calls an ATen operator; `about` is more of the Operator."""
    called = Operator(name=name, arguments=json.dumps(arguments), **about)
    return LayerShape(
        kind="operator",
        input_shapes=inputs,
        output_shape=output,
        parameter_shapes=parameters,
        operator=called,
    )


X, WEIGHT, BIAS = {"input": 0}, {"parameter": 0}, {"parameter": 1}
GROUP_NORM = operator(
    "aten.group_norm.default", [X, 2, WEIGHT, BIAS], ((4, 3, 3),), (4, 3, 3), (4,), (4,)
)
LINEAR = layer("linear", ((4,),), (3,), (3, 4), (3,))
RELU = layer("relu", ((4,),), (4,))
EMBEDDING = layer("embedding", ((7,),), (7, 3), (11, 3))
LAYERS = {
    "conv1d": convolution(1),
    "conv2d": convolution(2),
    "conv2d in groups": convolution(2, groups=2),
    "conv3d": convolution(3),
    "linear": LINEAR,
    "batch_norm1d": layer("batch_norm", ((3, 8),), (3, 8), (3,), (3,)),
    "batch_norm2d": layer("batch_norm", ((3, 4, 4),), (3, 4, 4), (3,), (3,)),
    "batch_norm3d": layer("batch_norm", ((3, 4, 4, 4),), (3, 4, 4, 4), (3,), (3,)),
    "layer_norm": layer("layer_norm", ((5, 6),), (5, 6), (6,), (6,), normalized_shape=(6,)),
    "relu": RELU,
    **{f"max_pool{rank}d": pooling("max_pool", rank) for rank in (1, 2, 3)},
    **{f"avg_pool{rank}d": pooling("avg_pool", rank) for rank in (1, 2, 3)},
    "adaptive_avg_pool": layer("adaptive_avg_pool", ((3, 8, 8),), (3, 2, 1)),
    "add": layer("add", ((4, 3), (4, 3)), (4, 3)),
    "concat": layer("concat", ((2, 4, 4), (3, 4, 4)), (5, 4, 4)),
    "softmax": layer("softmax", ((7, 3),), (7, 3)),
    "embedding": EMBEDDING,
    "flatten": layer("flatten", ((3, 4),), (12,)),
    "dropout": layer("dropout", ((50,),), (50,), probability=0.5),
    "cross_entropy": layer("cross_entropy", ((7,),), ()),
    "mse": layer("mse", ((4,),), ()),
}


def parts_of(shape: LayerShape, needs_input_grad: bool = True) -> set[str]:
    """By the definition: dL/dx where the input is numbers, dL/dw where there are weights."""
    data = {"backward_data"} if shape.kind != "embedding" and needs_input_grad else set()
    return data | ({"backward_weight"} if shape.parameter_shapes else set())
