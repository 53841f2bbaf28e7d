"""A layer's part as a module: its channels, on exactly the rows that it reads.

Batch normalisation is over the part's own samples and pixels, as on a rank of the other strategies
(ParaDL section 4.5.2). Every rank draws its own dropout masks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from calib.foundation.errors import InputError
from calib.foundation.layers import LayerShape
from calib.oracle.layout.partitions import Configuration, Range, computed, owned
from calib.training.split.shared_layers import CONVOLUTIONS
from calib.training.split.spatial_layers import part_pool, part_windows
from calib.training.worker import Held

# of an input's part, in the order of the layer's inputs; None where nothing of it is read
LayerFunction = Callable[[Sequence[Tensor | None]], Tensor]
ADAPTIVE: dict[int, type[nn.Module]] = {
    1: nn.AdaptiveAvgPool1d,
    2: nn.AdaptiveAvgPool2d,
    3: nn.AdaptiveAvgPool3d,
}


class PartLayer(nn.Module):
    """One layer's part on this rank.

    `ranges`, by a parameter's name in the layer: the part of it that this rank has. `compute` makes the
    part's output, or its terms of a sum; `bias_of_sum` is then added after the summation.
    """

    compute: LayerFunction

    def __init__(self) -> None:
        super().__init__()
        self.ranges: dict[str, tuple[Range, ...]] = {}
        self.bias_of_sum: nn.Parameter | None = None


def part_layer(
    shape: LayerShape, of: Configuration, rank: int, whole: nn.Module | None, inplace: bool
) -> PartLayer:
    """The part that rank `rank` has. `whole` is the layer's module where it has one.

    `inplace`: a ReLU, dropout or sum may write to what it reads. Raises InputError for a kind of layer
    that cannot be trained so.
    """
    part = PartLayer()
    cut = {d for d, degree in enumerate(of.spatial) if degree > 1}
    if shape.kind in _PLAIN:
        run = _PLAIN[shape.kind]
        part.compute = lambda inputs: run(inputs, shape, inplace)
        return part
    if shape.kind in ("conv", "linear", "batch_norm", "embedding"):
        assert whole is not None
        _take_weights(part, shape, of, rank, whole)
    if shape.kind in ("conv", "linear", "embedding"):
        part.compute = _weighted(part, shape, cut)
        return part
    module = _module_of(part, shape, of, cut, whole)
    part.add_module("whole", module)
    part.compute = lambda inputs: module(inputs[0])
    return part


def _take_weights(
    part: PartLayer, shape: LayerShape, of: Configuration, rank: int, whole: nn.Module
) -> None:
    """Give a part its weights: the whole layer's own, or copies of a range of them."""
    if of.channel * of.input == 1:
        for name, parameter in whole.named_parameters():
            part.register_parameter(name, parameter)
        return
    axis = len(shape.output_shape) if shape.kind in ("linear", "embedding") else 1
    mine = computed(shape, of, of.sample, rank)[axis]
    kept = owned(shape, of, of.sample, rank)[axis]
    ranges: dict[str, tuple[Range, ...]] = dict.fromkeys(("weight", "bias"), (mine,))
    if shape.kind == "embedding":
        ranges = {"weight": ((0, shape.parameter_shapes[0][0]), mine)}
    elif of.input > 1:
        inputs = shape.parameter_shapes[0][1] // of.input
        at = of.place(rank).input
        ranges = {"weight": (mine, (at * inputs, (at + 1) * inputs)), "bias": (kept,)}
    for name, parameter in whole.named_parameters():
        piece = Held(name, parameter, ranges[name]).cut(parameter.detach())
        # a copy, so that the whole tensor can be freed
        own = nn.Parameter(
            piece.clone(memory_format=torch.contiguous_format), parameter.requires_grad
        )
        part.register_parameter(name, own)
    part.ranges = ranges
    if of.input > 1:
        part.bias_of_sum = part._parameters.get("bias")


def _weighted(part: PartLayer, shape: LayerShape, cut: set[int]) -> LayerFunction:
    """What a part with weights computes; a bias that is added after a summation is left out."""
    weight = part.get_parameter("weight")
    bias = part._parameters.get("bias") if part.bias_of_sum is None else None
    if shape.kind == "embedding":
        return lambda inputs: F.embedding(_read(inputs[0]), weight)
    if shape.kind == "linear":
        return lambda inputs: F.linear(_read(inputs[0]), weight, bias)
    strides, padding = part_windows(shape, cut)
    convolve, groups = CONVOLUTIONS[len(strides)], shape.attributes["groups"]
    return lambda inputs: convolve(
        inputs[0], weight, bias, stride=strides, padding=padding, groups=groups
    )


def _module_of(
    part: PartLayer, shape: LayerShape, of: Configuration, cut: set[int], whole: nn.Module | None
) -> nn.Module:
    """The module that computes a part of its first input."""
    if shape.kind == "batch_norm":
        assert isinstance(whole, _BatchNorm)
        return _norm_of_channels(part, whole) if of.channel > 1 else whole
    if shape.kind in ("max_pool", "avg_pool"):
        return part_pool(shape, cut)
    if shape.kind == "adaptive_avg_pool":
        if shape.is_identity:
            return nn.Identity()
        return ADAPTIVE[len(shape.output_shape) - 1](shape.output_shape[1:])
    if whole is None or of.parts != of.sample:
        raise InputError(f"a {shape.kind} layer of a plan cannot be trained")
    return whole


def _norm_of_channels(part: PartLayer, whole: _BatchNorm) -> nn.Module:
    """The batch norm of the part's channels."""
    first, stop = part.ranges["weight"][0]
    norm: Any = type(whole)(stop - first, whole.eps, whole.momentum, affine=False)
    for name, buffer in whole.named_buffers():
        norm.register_buffer(name, buffer[first:stop].clone() if buffer.dim() else buffer.clone())
    if not whole.track_running_stats:
        norm.track_running_stats = False
        norm.running_mean = norm.running_var = norm.num_batches_tracked = None
    norm.affine = whole.affine
    norm.weight, norm.bias = part._parameters.get("weight"), part._parameters.get("bias")
    norm.to(next(part.parameters(), torch.empty(0)).device).train()
    made: nn.Module = norm
    return made


def _read(x: Tensor | None) -> Tensor:
    assert x is not None  # a part reads something of every input but a concatenation's
    return x


def _dropped(inputs: Sequence[Tensor | None], shape: LayerShape, inplace: bool) -> Tensor:
    probability = shape.attributes["probability"]
    assert isinstance(probability, float)
    return F.dropout(_read(inputs[0]), probability, True, inplace)


def _added(inputs: Sequence[Tensor | None], shape: LayerShape, inplace: bool) -> Tensor:
    first, second = map(_read, inputs)
    return first.add_(second) if inplace else first + second


# what layers without weights and windows compute, by kind
_PLAIN: dict[str, Callable[[Sequence[Tensor | None], LayerShape, bool], Tensor]] = {
    "dropout": _dropped,
    "relu": lambda inputs, _, inplace: F.relu(_read(inputs[0]), inplace),
    "add": _added,
    "concat": lambda inputs, *_: torch.cat([x for x in inputs if x is not None], 1),
    "flatten": lambda inputs, *_: _read(inputs[0]).flatten(1),
    "softmax": lambda inputs, *_: F.softmax(_read(inputs[0]), 1),
}
