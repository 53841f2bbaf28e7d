"""Build the torch layer and inputs of a LayerShape, to be timed.

Parameters are those that torch initializes; a bias exists iff there are two parameter shapes (a
shard of channel parallelism has none: it is added after the exchange). Layers are in train mode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calib.foundation.errors import InputError
from calib.foundation.layers import LOSSES, LayerShape, Shape
from calib.microbench.layers.losses import Loss, random_targets
from calib.microbench.layers.operators import operator_call, operator_constants, operator_inputs

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
_AVG_POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
_ADAPTIVE_POOLS = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)


@dataclass(frozen=True)
class BuiltLayer:
    """A layer that can be called with its batched inputs; `parameters` are weight, then bias."""

    call: Callable[..., Any]
    parameters: list[Tensor] = field(default_factory=list)

    def __call__(self, *inputs: Tensor) -> Any:
        """The output (batch, *output_shape), the scalar loss, or the outputs of an operator."""
        return self.call(*inputs)


def _attribute(shape: LayerShape, name: str) -> Any:
    """An attribute that this kind of layer must have. Raises InputError."""
    if name not in shape.attributes:
        raise InputError(f"a layer of kind {shape.kind} needs the attribute {name!r}: {shape}")
    return shape.attributes[name]


def _variant(classes: tuple[Any, ...], rank: int, shape: LayerShape) -> Any:
    """The class for `rank` spatial dimensions. Raises InputError where torch has none."""
    if not 1 <= rank <= len(classes):
        raise InputError(f"{shape.kind} with {rank} spatial dimensions is not supported: {shape}")
    return classes[rank - 1]


def _convolution(shape: LayerShape, factory: dict[str, Any]) -> nn.Module:
    kernel = _attribute(shape, "kernel")
    layer: nn.Module = _variant(_CONVOLUTIONS, len(kernel), shape)(
        shape.input_shapes[0][0],
        shape.output_shape[0],
        kernel,
        _attribute(shape, "stride"),
        _attribute(shape, "padding"),
        groups=_attribute(shape, "groups"),
        bias=len(shape.parameter_shapes) == 2,
        **factory,
    )
    return layer


def _linear(shape: LayerShape, factory: dict[str, Any]) -> nn.Module:
    bias = len(shape.parameter_shapes) == 2
    return nn.Linear(shape.input_shapes[0][-1], shape.output_shape[-1], bias, **factory)


def _batch_norm(shape: LayerShape, factory: dict[str, Any]) -> nn.Module:
    channels, *spatial = shape.input_shapes[0]
    kind = _variant(_NORMS, max(1, len(spatial)), shape)  # (C,) and (C, L) are both 1-D
    layer: nn.Module = kind(channels, affine=bool(shape.parameter_shapes), **factory)
    return layer


def _pool(shape: LayerShape, factory: dict[str, Any]) -> nn.Module:
    kernel = _attribute(shape, "kernel")
    classes: tuple[Any, ...] = _MAX_POOLS if shape.kind == "max_pool" else _AVG_POOLS
    layer: nn.Module = _variant(classes, len(kernel), shape)(
        kernel,
        _attribute(shape, "stride"),
        _attribute(shape, "padding"),
        ceil_mode=_attribute(shape, "ceil_mode"),
    )
    return layer


def _adaptive_pool(shape: LayerShape, factory: dict[str, Any]) -> nn.Module:
    size = shape.output_shape[1:]
    layer: nn.Module = _variant(_ADAPTIVE_POOLS, len(size), shape)(size)
    return layer


def _layer_norm(shape: LayerShape, factory: dict[str, Any]) -> nn.Module:
    return nn.LayerNorm(
        _attribute(shape, "normalized_shape"),
        elementwise_affine=bool(shape.parameter_shapes),
        bias=len(shape.parameter_shapes) == 2,
        **factory,
    )


def _embedding(shape: LayerShape, factory: dict[str, Any]) -> nn.Module:
    rows, width = _table(shape)
    return nn.Embedding(rows, width, **factory)


def _table(shape: LayerShape) -> Shape:
    """(rows, width) of an embedding's weight. Raises InputError."""
    if len(shape.parameter_shapes) != 1 or len(shape.parameter_shapes[0]) != 2:
        raise InputError(f"an embedding needs one parameter of shape (rows, width): {shape}")
    return shape.parameter_shapes[0]


def _relu(shape: LayerShape, factory: dict[str, Any]) -> nn.Module:
    return nn.ReLU()


def _dropout(shape: LayerShape, factory: dict[str, Any]) -> nn.Module:
    return nn.Dropout(float(_attribute(shape, "probability")))


def _flatten(x: Tensor) -> Tensor:
    return torch.flatten(x, 1)


def _softmax(x: Tensor) -> Tensor:
    return F.softmax(x, 1)


def _concat(*inputs: Tensor) -> Tensor:
    return torch.cat(inputs, 1)


def _loss(shape: LayerShape) -> Callable[..., Tensor]:
    """A loss of one output or two, then the targets."""
    loss = Loss(shape)

    def call(*inputs: Tensor) -> Tensor:
        *outputs, targets = inputs
        found: Tensor = loss(outputs[0] if len(outputs) == 1 else outputs, targets)
        return found

    return call


_MODULES: dict[str, Callable[[LayerShape, dict[str, Any]], nn.Module]] = {
    "conv": _convolution,
    "linear": _linear,
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    "embedding": _embedding,
    "relu": _relu,
    "max_pool": _pool,
    "avg_pool": _pool,
    "adaptive_avg_pool": _adaptive_pool,
    "dropout": _dropout,
}
_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "concat": _concat,
    "softmax": _softmax,
    "flatten": _flatten,
}


def _operator(
    shape: LayerShape, dtype: torch.dtype, device: torch.device, batch: int
) -> BuiltLayer:
    """An operator on normal random parameters: what torch would initialize them to, it cannot say."""
    assert shape.operator is not None
    call = operator_call(shape, batch, device)
    generator = torch.Generator(device).manual_seed(0)
    parameters = [
        torch.randn(size, generator=generator, dtype=dtype, device=device).requires_grad_(True)
        for size in shape.parameter_shapes
    ]
    held = (*parameters, *operator_constants(shape.operator, dtype, device))
    return BuiltLayer(lambda *inputs: call(*inputs, *held), parameters)


def build_layer(
    shape: LayerShape, dtype: torch.dtype, device: torch.device, batch: int = 1
) -> BuiltLayer:
    """The layer `shape` in train mode, its parameters of `dtype` on `device`.

    `batch` is that of an operator, whose arguments may say it. Raises InputError where the shape
    contradicts itself, such as a weight that does not fit the channels: what would be timed is then not
    what was asked for.
    """
    if shape.operator is not None:
        return _operator(shape, dtype, device, batch)
    if shape.kind in LOSSES:
        return BuiltLayer(_loss(shape))
    if shape.kind in _FUNCTIONS:
        return BuiltLayer(_FUNCTIONS[shape.kind])
    module = _MODULES[shape.kind](shape, {"dtype": dtype, "device": device}).train()
    parameters: list[Tensor] = list(module.parameters())
    built = tuple(tuple(parameter.shape) for parameter in parameters)
    if built != shape.parameter_shapes:
        raise InputError(f"parameters {built} do not fit the layer: {shape}")
    return BuiltLayer(module, parameters)


def make_inputs(
    shape: LayerShape,
    batch: int,
    dtype: torch.dtype,
    device: torch.device,
    needs_input_grad: bool,
    generator: torch.Generator,
    target_dtype: torch.dtype | None = None,
) -> list[Tensor]:
    """Normal random inputs (batch, *input shape) on `device`: leaves, with gradients if asked.

    A loss gets its targets as the last input (losses.py), values of `target_dtype` (None: `dtype`);
    they never have a gradient. An embedding gets int64 indices of its rows, which have none either; an
    operator's inputs are as the model has them. Random numbers are drawn on the generator's device and
    copied where that is another one.
    """
    if shape.operator is not None:
        return operator_inputs(shape, batch, dtype, device, needs_input_grad, generator)
    source = generator.device

    if shape.kind == "embedding":
        size = (batch, *shape.input_shapes[0])
        rows = torch.randint(_table(shape)[0], size, generator=generator, device=source)
        return [rows.to(device)]

    def normal(size: tuple[int, ...]) -> Tensor:
        return torch.randn(size, generator=generator, dtype=dtype, device=source).to(device)

    inputs = [
        normal((batch, *size)).requires_grad_(needs_input_grad) for size in shape.input_shapes
    ]
    if shape.kind in LOSSES:
        targets = random_targets(shape, batch, generator, target_dtype or dtype)
        inputs.append(targets.to(device))
    return inputs
