"""Which ATen operators are a kind of layer of their own, and with what attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from calib.foundation.errors import InputError
from calib.foundation.layers import LayerKind

Attributes = dict[str, bool | int | float | tuple[int, ...]]


class OwnKind(NamedTuple):
    """A layer of a kind of its own: what it reads, and its parameters in order."""

    kind: LayerKind
    inputs: list[Any]
    parameters: list[Any]
    attributes: Attributes


class Call:
    """The arguments of an ATen operator by the names of its schema."""

    def __init__(self, node: fx.Node, look_up: Callable[[Any], Any], batch: int) -> None:
        schema = node.target._schema  # type: ignore[union-attr]
        self.name = schema.name.split("::")[-1].removesuffix("_")
        self.result: Tensor = node.meta["val"]
        self.batch = batch
        self._of = {argument.name: argument.default_value for argument in schema.arguments}
        given = zip((argument.name for argument in schema.arguments), node.args, strict=False)
        self._of |= dict(given) | node.kwargs
        self._look_up = look_up

    def __getitem__(self, name: str) -> Any:
        found = self._of.get(name)
        return [*map(self._look_up, found)] if isinstance(found, list) else self._look_up(found)

    def is_plain(self, value: Any) -> bool:
        """Whether a value comes from a layer, as contiguous floats with the batch in front."""
        return (
            value is not None
            and bool(getattr(value, "source", ""))
            and value.tensor.numel() > 0
            and value.tensor.dim() > 0
            and value.tensor.shape[0] == self.batch
            and all(size % self.batch for size in value.tensor.shape[1:])
            and value.tensor.is_contiguous()
            and value.tensor.dtype == torch.get_default_dtype()
        )

    def dims(self, name: str, rank: int, default: Any = None) -> tuple[int, ...]:
        """An argument of one int per spatial dimension, or of one for all."""
        value = self._of.get(name)
        value = list(value) if isinstance(value, list | tuple) else [value]
        if value in ([], [None]):
            value = list(default)
        return tuple(map(int, value * rank if len(value) == 1 else value))


Found = OwnKind | None


def _held(value: Any) -> bool:
    return value is not None and value.is_parameter


def _conv(call: Call) -> Found:
    rank = call.result.dim() - 2
    x, weight, bias = call["input"], call["weight"], call["bias"]
    if not (_held(weight) and call.is_plain(x)):
        return None
    if set(call.dims("dilation", rank)) != {1} or (bias is not None and not _held(bias)):
        return None
    kernel = tuple(weight.tensor.shape[2:])
    padding = _padding(call, kernel)
    if padding is None:
        return None
    return OwnKind(
        "conv",
        [x],
        [weight, *([bias] if bias is not None else [])],
        {
            "kernel": kernel,
            "stride": call.dims("stride", rank),
            "padding": padding,
            "groups": int(call["groups"]),
        },
    )


def _padding(call: Call, kernel: tuple[int, ...]) -> tuple[int, ...] | None:
    """Also that of "valid" or "same"; None where it is more on one side than on the other."""
    word = call["padding"]
    if word == "same":
        odd = all(size % 2 for size in kernel)
        return tuple(size // 2 for size in kernel) if odd else None
    return (0,) * len(kernel) if word == "valid" else call.dims("padding", len(kernel))


def _linear(call: Call) -> Found:
    x, weight, bias = call["input"], call["weight"], call["bias"]
    if not (call.is_plain(x) and _held(weight)) or (bias is not None and not _held(bias)):
        return None
    return OwnKind("linear", [x], [weight, *([bias] if bias is not None else [])], {})


def _affine(call: Call) -> list[Any] | None:
    """Weight and bias of a norm: both parameters, the weight alone, or none."""
    weight, bias = call["weight"], call["bias"]
    if weight is None and bias is None:
        return []
    if not _held(weight) or (bias is not None and not _held(bias)):
        return None
    return [weight, *([bias] if bias is not None else [])]


def _batch_norm(call: Call) -> Found:
    x, affine = call["input"], _affine(call)
    if affine is None or len(affine) == 1 or not call.is_plain(x) or not call["training"]:
        return None
    if x.tensor.dim() not in (2, 3, 4, 5):
        return None
    return OwnKind("batch_norm", [x], affine, {})


def _layer_norm(call: Call) -> Found:
    x, affine = call["input"], _affine(call)
    if affine is None or not call.is_plain(x):
        return None
    return OwnKind(
        "layer_norm", [x], affine, {"normalized_shape": tuple(map(int, call["normalized_shape"]))}
    )


def _pointwise(kind: LayerKind) -> Callable[[Call], Found]:
    def of(call: Call) -> Found:
        x = call["self"]
        return OwnKind(kind, [x], [], {}) if call.is_plain(x) else None

    return of


def _dropout(call: Call) -> Found:
    x = call["input"] or call["self"]  # in place it is called so
    if not call.is_plain(x) or not call["train"]:
        return None
    return OwnKind("dropout", [x], [], {"probability": float(call["p"])})


def _pool(kind: LayerKind) -> Callable[[Call], Found]:
    def of(call: Call) -> Found:
        x, rank = call["self"], call.result.dim() - 2
        if not call.is_plain(x) or rank < 1:
            return None
        if kind == "max_pool" and set(call.dims("dilation", rank)) != {1}:
            return None
        if kind == "avg_pool" and not (
            call["count_include_pad"] and call._of.get("divisor_override") is None
        ):
            return None
        kernel = call.dims("kernel_size", rank)
        attributes: Attributes = {
            "kernel": kernel,
            "stride": call.dims("stride", rank, kernel),
            "padding": call.dims("padding", rank),
            "ceil_mode": bool(call["ceil_mode"]),
        }
        return OwnKind(kind, [x], [], attributes)

    return of


def _adaptive(call: Call) -> Found:
    x = call["self"]
    return OwnKind("adaptive_avg_pool", [x], [], {}) if call.is_plain(x) else None


def _add(call: Call) -> Found:
    a, b = call["self"], call["other"]
    if call["alpha"] != 1 or not (hasattr(a, "tensor") and hasattr(b, "tensor")):
        return None
    if not (call.is_plain(a) and call.is_plain(b)) or a.size != b.size:
        return None
    return OwnKind("add", [a, b], [], {})


def _concat(call: Call) -> Found:
    values, dim = call["tensors"], call["dim"]
    if dim % call.result.dim() != 1 or not all(call.is_plain(each) for each in values):
        return None
    return OwnKind("concat", values, [], {})


def _softmax(call: Call) -> Found:
    x = call["self"]
    if call["dim"] % call.result.dim() != 1 or call._of.get("dtype") is not None:
        return None
    return OwnKind("softmax", [x], [], {}) if call.is_plain(x) else None


def _flatten(call: Call) -> Found:
    x = call["self"]
    if not call.is_plain(x) or call.result.dim() != 2 or call.result.shape[0] != call.batch:
        return None
    return OwnKind("flatten", [x], [], {})


def _embedding(call: Call) -> Found:
    weight, indices = call["weight"], call["indices"]
    if call["sparse"]:
        raise InputError("its gradient is sparse (sparse=True), and calib's layers have dense ones")
    plain = indices.source == "input" and _held(weight)
    if not plain or call["padding_idx"] >= 0:
        return None
    return OwnKind("embedding", [indices], [weight], {})


_KINDS: dict[str, Callable[[Call], Found]] = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _conv),
    "linear": _linear,
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    "relu": _pointwise("relu"),
    "dropout": _dropout,
    **dict.fromkeys(("max_pool1d", "max_pool2d", "max_pool3d"), _pool("max_pool")),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "avg_pool3d"), _pool("avg_pool")),
    **dict.fromkeys(
        ("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"), _adaptive
    ),
    "add": _add,
    **dict.fromkeys(("cat", "concat", "concatenate"), _concat),
    "softmax": _softmax,
    **dict.fromkeys(("flatten", "view", "reshape"), _flatten),
    "embedding": _embedding,
}


def own_kind(node: fx.Node, look_up: Callable[[Any], Any], batch: int) -> Found:
    """The layer of its own kind that a call is; None for every other operator."""
    call = Call(node, look_up, batch)
    make = _KINDS.get(call.name)
    if make is None or not call.result.is_contiguous():
        return None
    return make(call)
