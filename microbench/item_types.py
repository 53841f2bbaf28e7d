"""PyTorch's side of an execution (foundation/execution.py): item types, autocast, memory format."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from calib.foundation.execution import Execution

_OF_WEIGHTS = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "bfloat16-mixed": torch.float32,
}

# by dimensions of a tensor: samples, channels, and an image's or a volume's
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def weight_type(execution: Execution) -> torch.dtype:
    """The type of weights, their gradients, and the data."""
    return _OF_WEIGHTS[execution.dtype]


def activation_type(execution: Execution) -> torch.dtype:
    """The type of what matrix products and convolutions make."""
    return _OF_WEIGHTS[execution.product_type]


def casting(execution: Execution, device: str) -> AbstractContextManager[object]:
    """Autocast, where the execution is mixed.

    A graph may not read what is cached outside of it (torch.cuda.make_graphed_callables).
    """
    if not execution.items.mixed:
        return nullcontext()
    cached = not execution.cuda_graph
    return torch.autocast(device, activation_type(execution), cache_enabled=cached)


def laid_out(tensor: torch.Tensor, execution: Execution) -> torch.Tensor:
    """The tensor in the memory format of an execution; itself where that has no say."""
    if not execution.channels_last or tensor.dim() not in CHANNELS_LAST:
        return tensor
    return tensor.to(memory_format=CHANNELS_LAST[tensor.dim()])


def converted(
    module: torch.nn.Module, execution: Execution, device: torch.device
) -> torch.nn.Module:
    """A module on a device, in the item type and the memory format of an execution; in place.

    Module.to(memory_format=...) takes one format, which refuses weights of other dimensions.
    """
    in_item_type(module.to(device=device), weight_type(execution))
    for parameter in module.parameters():
        parameter.data = laid_out(parameter.data, execution)
    return module


def in_item_type(module: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """A module with its floats in an item type; in place.

    Module.to(dtype) would take the real part of complex numbers, too.
    """
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)
    return module
