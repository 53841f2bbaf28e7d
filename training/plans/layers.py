"""A layer's part as a module: its channels, on exactly the rows that it reads.

Batch normalisation is of the part's own samples and pixels, as of a rank under the other strategies
(ParaDL section 4.5.2). Dropout masks are each rank's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calib.foundation.errors import InputError
from calib.foundation.layers import LayerShape
from calib.oracle.layout.partitions import Configuration, Range, computed, owned
from calib.oracle.layout.spatial import window
from calib.training.split.shared_layers import CONVOLUTIONS
from calib.training.split.spatial_layers import POOLS

# of an input's part, in the order of the layer's inputs; None where nothing of it is read
LayerFunction = Callable[[Sequence[Tensor | None]], Tensor]
ADAPTIVE: dict[int, type[nn.Module]] = {
    1: nn.AdaptiveAvgPool1d,
    2: nn.AdaptiveAvgPool2d,
    3: nn.AdaptiveAvgPool3d,
}


class PartLayer(nn.Module):
    """One layer's part on this rank. `ranges`, by a parameter's name in the layer: what it has of that.

    `compute` makes the part's terms or output; `bias_of_sum` is added behind the sum of terms.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ranges: dict[str, tuple[Range, ...]] = {}
        self.compute: LayerFunction = _nothing
        self.bias_of_sum: nn.Parameter | None = None

    def forward(self, *inputs: Tensor | None) -> Tensor:
        """The part's output, or its terms."""
        return self.compute(inputs)


def part_layer(
    shape: LayerShape, of: Configuration, rank: int, whole: nn.Module | None, inplace: bool
) -> PartLayer:
    """The part that rank `rank` has. `whole` is the layer's module where it has one.

    `inplace`: a ReLU, dropout or sum may write to what it reads. Raises InputError for a kind of layer
    that cannot be trained so.
    """
    part = PartLayer()
    if shape.kind in ("conv", "linear", "batch_norm", "embedding"):
        assert whole is not None
        _weigh(part, shape, of, rank, whole)
    if shape.kind in _MAKERS:
        part.compute = _MAKERS[shape.kind](part, shape, of, whole, inplace)
    elif whole is not None and of.parts == of.sample:
        part.add_module("whole", whole)
        part.compute = lambda inputs: whole(inputs[0])
    else:
        raise InputError(f"a {shape.kind} layer of a plan cannot be trained")
    return part


def _nothing(inputs: Sequence[Tensor | None]) -> Tensor:
    raise AssertionError("a part without a layer")


def _weigh(
    part: PartLayer, shape: LayerShape, of: Configuration, rank: int, whole: nn.Module
) -> None:
    """Give a part its weights: the whole layer's own, or copies of a range of them."""
    if of.channel * of.input == 1:
        for name, parameter in whole.named_parameters():
            part.register_parameter(name, parameter)
        return
    axis = len(shape.output_shape) if shape.kind in ("linear", "embedding") else 1
    mine = computed(shape, of, 1 * of.sample, rank)[axis]
    kept = owned(shape, of, 1 * of.sample, rank)[axis]
    ranges: dict[str, tuple[Range, ...]] = dict.fromkeys(("weight", "bias"), (mine,))
    if shape.kind == "embedding":
        ranges = {"weight": ((0, shape.parameter_shapes[0][0]), mine)}
    elif of.input > 1:
        inputs = shape.parameter_shapes[0][1] // of.input
        at = of.place(rank).input
        ranges = {"weight": (mine, (at * inputs, (at + 1) * inputs)), "bias": (kept,)}
    for name, parameter in whole.named_parameters():
        piece = parameter.detach()
        for dimension, (first, stop) in enumerate(ranges[name]):
            piece = piece.narrow(dimension, first, stop - first)
        # a copy: the whole tensor is to be freed
        own = nn.Parameter(
            piece.clone(memory_format=torch.contiguous_format), parameter.requires_grad
        )
        part.register_parameter(name, own)
    part.ranges = ranges
    if of.input > 1:
        part.bias_of_sum = part._parameters.get("bias")


Maker = Callable[[PartLayer, LayerShape, Configuration, nn.Module | None, bool], LayerFunction]


def _own_bias(part: PartLayer) -> nn.Parameter | None:
    return None if part.bias_of_sum is not None else part._parameters.get("bias")


def _convolution(
    part: PartLayer, shape: LayerShape, of: Configuration, whole: nn.Module | None, inplace: bool
) -> LayerFunction:
    call = CONVOLUTIONS[len(shape.output_shape) - 1]
    weight, bias = part.get_parameter("weight"), _own_bias(part)
    stride, padding = _windows(shape, of)
    groups = shape.attributes["groups"]
    return lambda inputs: call(
        inputs[0], weight, bias, stride=stride, padding=padding, groups=groups
    )


def _windows(shape: LayerShape, of: Configuration) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Strides, and the padding that a part's layer adds itself: none where it is cut."""
    spatial = range(len(shape.output_shape) - 1)
    windows = [window(shape, d) for d in spatial]
    cut = {d for d, degree in enumerate(of.spatial) if degree > 1}
    return tuple(w.stride for w in windows), tuple(
        0 if d in cut else windows[d].padding for d in spatial
    )


def _linear(
    part: PartLayer, shape: LayerShape, of: Configuration, whole: nn.Module | None, inplace: bool
) -> LayerFunction:
    weight, bias = part.get_parameter("weight"), _own_bias(part)
    return lambda inputs: F.linear(_read(inputs[0]), weight, bias)


def _embedding(
    part: PartLayer, shape: LayerShape, of: Configuration, whole: nn.Module | None, inplace: bool
) -> LayerFunction:
    weight = part.get_parameter("weight")
    return lambda inputs: F.embedding(_read(inputs[0]), weight)


def _batch_norm(
    part: PartLayer, shape: LayerShape, of: Configuration, whole: nn.Module | None, inplace: bool
) -> LayerFunction:
    assert isinstance(whole, nn.modules.batchnorm._BatchNorm)
    if of.channel > 1:
        first, stop = part.ranges["weight"][0]
        norm: Any = type(whole)(stop - first, whole.eps, whole.momentum, affine=False)
        for name, buffer in whole.named_buffers():
            piece = buffer[first:stop].clone() if buffer.dim() else buffer.clone()
            norm.register_buffer(name, piece)
        if not whole.track_running_stats:
            norm.track_running_stats = False
            norm.running_mean = norm.running_var = norm.num_batches_tracked = None
        norm.affine = whole.affine
        norm.weight, norm.bias = part._parameters.get("weight"), part._parameters.get("bias")
        norm.to(next(part.parameters(), torch.empty(0)).device).train()
    else:
        norm = whole
    part.add_module("norm", norm)
    return lambda inputs: norm(inputs[0])


def _pool(
    part: PartLayer, shape: LayerShape, of: Configuration, whole: nn.Module | None, inplace: bool
) -> LayerFunction:
    stride, padding = _windows(shape, of)
    kernel = tuple(window(shape, d).kernel for d in range(len(stride)))
    make = POOLS[shape.kind, len(stride)]
    pool = make(kernel, stride, padding, ceil_mode=bool(shape.attributes["ceil_mode"]))
    return lambda inputs: pool(inputs[0])


def _adaptive(
    part: PartLayer, shape: LayerShape, of: Configuration, whole: nn.Module | None, inplace: bool
) -> LayerFunction:
    if shape.is_identity:
        return lambda inputs: _read(inputs[0])
    pool = ADAPTIVE[len(shape.output_shape) - 1](shape.output_shape[1:])
    return lambda inputs: pool(inputs[0])


def _dropout(
    part: PartLayer, shape: LayerShape, of: Configuration, whole: nn.Module | None, inplace: bool
) -> LayerFunction:
    probability = shape.attributes["probability"]
    assert isinstance(probability, float)
    return lambda inputs: F.dropout(_read(inputs[0]), probability, True, inplace)


def _relu(
    part: PartLayer, shape: LayerShape, of: Configuration, whole: nn.Module | None, inplace: bool
) -> LayerFunction:
    return lambda inputs: F.relu(_read(inputs[0]), inplace)


def _add(
    part: PartLayer, shape: LayerShape, of: Configuration, whole: nn.Module | None, inplace: bool
) -> LayerFunction:
    if inplace:
        return lambda inputs: _read(inputs[0]).add_(_read(inputs[1]))
    return lambda inputs: _read(inputs[0]) + _read(inputs[1])


def _concat(
    part: PartLayer, shape: LayerShape, of: Configuration, whole: nn.Module | None, inplace: bool
) -> LayerFunction:
    return lambda inputs: torch.cat([x for x in inputs if x is not None], 1)


def _flatten(
    part: PartLayer, shape: LayerShape, of: Configuration, whole: nn.Module | None, inplace: bool
) -> LayerFunction:
    return lambda inputs: _read(inputs[0]).flatten(1)


def _softmax(
    part: PartLayer, shape: LayerShape, of: Configuration, whole: nn.Module | None, inplace: bool
) -> LayerFunction:
    return lambda inputs: F.softmax(_read(inputs[0]), 1)


def _read(x: Tensor | None) -> Tensor:
    assert x is not None  # a part reads something of every input but a concatenation's
    return x


def fill_of(kind: str) -> float:
    """What stands beyond the image for a layer's windows."""
    return -math.inf if kind == "max_pool" else 0.0


_MAKERS: dict[str, Maker] = {
    "conv": _convolution,
    "linear": _linear,
    "embedding": _embedding,
    "batch_norm": _batch_norm,
    "max_pool": _pool,
    "avg_pool": _pool,
    "adaptive_avg_pool": _adaptive,
    "dropout": _dropout,
    "relu": _relu,
    "add": _add,
    "concat": _concat,
    "flatten": _flatten,
    "softmax": _softmax,
}
