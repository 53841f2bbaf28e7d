"""The LayerShape kind and attributes of a torch module or function.

Whatever a LayerShape cannot hold is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from calib.foundation.errors import InputError
from calib.foundation.layers import LayerKind

Attributes = dict[str, bool | int | float | tuple[int, ...]]


def _dims(value: Any, rank: int) -> tuple[int, ...]:
    """A torch argument (one int or one per spatial dimension) as one int per dimension."""
    return tuple(map(int, value)) if isinstance(value, list | tuple) else (int(value),) * rank


def _require(module: Any, **expected: Any) -> None:
    """Raise InputError for an argument with a value that a LayerShape cannot hold."""
    for name, wanted in expected.items():
        value = getattr(module, name, wanted)
        items = value if isinstance(value, tuple) else (value,)
        if any(item != wanted for item in items):
            raise InputError(f"{name}={value} is not supported (only {wanted})")


def _convolution(module: Any, rank: int) -> Attributes:
    _require(module, dilation=1, padding_mode="zeros")
    padding = module.padding
    if padding == "valid":
        padding = 0
    elif padding == "same":
        if any(size % 2 == 0 for size in module.kernel_size):
            raise InputError("padding='same' of an even kernel pads one side more than the other")
        padding = tuple(size // 2 for size in module.kernel_size)
    return {
        "kernel": _dims(module.kernel_size, rank),
        "stride": _dims(module.stride, rank),
        "padding": _dims(padding, rank),
        "groups": int(module.groups),
    }


def _pool(module: Any, rank: int) -> Attributes:
    _require(module, dilation=1, return_indices=False, count_include_pad=True)
    _require(module, divisor_override=None)
    return {
        "kernel": _dims(module.kernel_size, rank),
        "stride": _dims(module.stride, rank),  # torch's default is the kernel
        "padding": _dims(module.padding, rank),
        "ceil_mode": bool(module.ceil_mode),
    }


def _dropout(module: Any, rank: int) -> Attributes:
    return {"probability": float(module.p)}


def _layer_norm(module: Any, rank: int) -> Attributes:
    return {"normalized_shape": tuple(map(int, module.normalized_shape))}


def _embedding(module: Any, rank: int) -> Attributes:
    _require(module, padding_idx=None, max_norm=None, scale_grad_by_freq=False, sparse=False)
    return {}


def _none(module: Any, rank: int) -> Attributes:
    return {}


Reader = Callable[[Any, int], Attributes]
_BY_RANK: dict[tuple[type[nn.Module], ...], tuple[LayerKind, Reader]] = {
    (nn.Conv1d, nn.Conv2d, nn.Conv3d): ("conv", _convolution),
    (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d): ("batch_norm", _none),
    (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d): ("max_pool", _pool),
    (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d): ("avg_pool", _pool),
    (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d): (
        "adaptive_avg_pool",
        _none,
    ),
}
# leaf module -> kind, spatial dimensions, reader of its attributes
_MODULES: dict[type[nn.Module], tuple[LayerKind, int, Reader]] = {
    nn.Linear: ("linear", 0, _none),
    nn.ReLU: ("relu", 0, _none),
    nn.Dropout: ("dropout", 0, _dropout),
    nn.Flatten: ("flatten", 0, _none),
    nn.LayerNorm: ("layer_norm", 0, _layer_norm),
    nn.Softmax: ("softmax", 0, _none),
    nn.Embedding: ("embedding", 0, _embedding),
    **{
        module: (kind, rank, reader)
        for modules, (kind, reader) in _BY_RANK.items()
        for rank, module in enumerate(modules, start=1)
    },
}
# function, operator or method name -> kind
_FUNCTIONS: dict[Any, LayerKind] = {
    torch.flatten: "flatten",
    "flatten": "flatten",
    operator.add: "add",
    operator.iadd: "add",
    torch.add: "add",
    "add": "add",
    "add_": "add",
    F.relu: "relu",
    torch.relu: "relu",
    "relu": "relu",
    torch.cat: "concat",
    torch.concat: "concat",
    torch.concatenate: "concat",
    "view": "flatten",
    "reshape": "flatten",
    torch.reshape: "flatten",
    F.dropout: "dropout",
    F.softmax: "softmax",
    torch.softmax: "softmax",
    "softmax": "softmax",
}
_POOLS: dict[Any, tuple[LayerKind, int]] = {  # function -> kind, spatial dimensions
    **dict.fromkeys((F.max_pool1d, torch.max_pool1d), ("max_pool", 1)),
    **dict.fromkeys((F.max_pool2d, torch.max_pool2d), ("max_pool", 2)),
    **dict.fromkeys((F.max_pool3d, torch.max_pool3d), ("max_pool", 3)),
    F.avg_pool1d: ("avg_pool", 1),
    F.avg_pool2d: ("avg_pool", 2),
    F.avg_pool3d: ("avg_pool", 3),
    F.adaptive_avg_pool1d: ("adaptive_avg_pool", 1),
    F.adaptive_avg_pool2d: ("adaptive_avg_pool", 2),
    F.adaptive_avg_pool3d: ("adaptive_avg_pool", 3),
}
_FUNCTIONS |= {function: kind for function, (kind, _) in _POOLS.items()}
# the arguments after the tensor, in order, with torch's defaults
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "max_pool": {
        "kernel_size": None,
        "stride": None,
        "padding": 0,
        "dilation": 1,
        "ceil_mode": False,
        "return_indices": False,
    },
    "avg_pool": {
        "kernel_size": None,
        "stride": None,
        "padding": 0,
        "ceil_mode": False,
        "count_include_pad": True,
        "divisor_override": None,
    },
    "dropout": {"p": 0.5, "training": True, "inplace": False},
}


def module_kind(module: nn.Module) -> tuple[LayerKind, Attributes]:
    """Kind and attributes of a leaf module. Raises InputError for an unknown one."""
    if type(module) not in _MODULES:  # a subclass may compute something else
        known = ", ".join(sorted(item.__name__ for item in _MODULES))
        raise InputError(f"calib has no layer for {type(module).__name__} (it has: {known})")
    kind, rank, reader = _MODULES[type(module)]
    return kind, reader(module, rank)


def function_kind(target: Any) -> LayerKind:
    """Kind of a function, operator or method name. Raises InputError for an unknown one."""
    if target not in _FUNCTIONS:
        known = ", ".join(sorted(set(_FUNCTIONS.values())))
        raise InputError(f"calib has no layer for this operation (it has: {known}, and nn modules)")
    return _FUNCTIONS[target]


def function_attributes(
    target: Any, kind: LayerKind, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Attributes:
    """Attributes of the layer that a function call makes."""
    if kind not in _ARGUMENTS:
        return {}
    names = _ARGUMENTS[kind]
    call = SimpleNamespace(**(names | dict(zip(names, args[1:], strict=False)) | kwargs))
    if kind == "dropout":
        _require(call, training=True)
        return _dropout(call, 0)
    if call.stride in (None, (), []):
        call.stride = call.kernel_size
    return _pool(call, _POOLS[target][1])


def is_size(node: Any) -> bool:
    """Whether a node is x.size(), x.size(0), x.shape, or an item of these, and so no tensor."""
    if not isinstance(node, fx.Node):
        return False
    if node.target is operator.getitem:
        return is_size(node.args[0])
    return node.target == "size" or (node.target is getattr and node.args[1:] == ("shape",))


def _is_batch(size: Any) -> bool:
    """Whether the first size of a view is x.size(0) or -1."""
    if not is_size(size):
        return type(size) is int and size == -1
    return [*size.args[1:], *size.kwargs.values()] == [0]


def require_channels(kind: LayerKind, dim: Any, dims: int) -> None:
    """Raise InputError unless `dim` of a tensor of `dims` dimensions is 1, the channels."""
    if not isinstance(dim, int) or dim % dims != 1:
        raise InputError(f"{kind} with dim={dim} is not supported (only 1, the channels)")


def function_tensors(kind: LayerKind, node: fx.Node) -> list[Any]:
    """The arguments of a call that are its layer's inputs, as fx nodes."""
    if kind == "concat":
        joined = node.args[0] if node.args else node.kwargs.get("tensors")
        return list(joined) if isinstance(joined, list | tuple) else [joined]
    return list(node.args[: 2 if kind == "add" else 1]) or [node.kwargs.get("input")]


def check_function(kind: LayerKind, node: fx.Node, dims: int) -> None:
    """Raise InputError for a call with arguments that its layer does not hold.

    `dims`: dimensions of the result, and of the inputs of a concat or softmax.
    """
    along = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", node.kwargs.get("axis"))
    if kind == "add" and node.kwargs.get("alpha", 1) != 1:
        raise InputError("only the sum of two tensors of one shape is supported")
    if kind == "concat":
        require_channels(kind, 0 if along is None else along, dims)
    if kind == "softmax":
        require_channels(kind, along, dims)
    if node.target in ("view", "reshape", torch.reshape):
        sizes = along if isinstance(along, list | tuple) else node.args[1:]
        if not sizes or not _is_batch(sizes[0]):
            raise InputError("only a view as (x.size(0), -1) or (-1, items) is supported")
