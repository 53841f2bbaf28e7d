"""PyTorch's side of an execution's item type (foundation/execution.py): types, and autocast."""

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


def weight_type(execution: Execution) -> torch.dtype:
    """The type of weights, their gradients, and the data."""
    return _OF_WEIGHTS[execution.dtype]


def activation_type(execution: Execution) -> torch.dtype:
    """The type of what matrix products and convolutions make."""
    return _OF_WEIGHTS[execution.product_type]


def casting(execution: Execution, device: str) -> AbstractContextManager[object]:
    """Autocast, where the execution is mixed."""
    if not execution.items.mixed:
        return nullcontext()
    return torch.autocast(device, activation_type(execution))
