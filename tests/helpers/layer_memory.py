"""The bytes of one layer by itself, by the account of microbench."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from calib.microbench.device import CPU, Device
from calib.training.footprint import account


def layer_memory(
    layer: Callable[..., torch.Tensor],
    weights: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    gradient: torch.Tensor,
    device: Device = CPU,
) -> dict[str, int]:
    """Bytes of one forward and backward of a layer by itself; `gradient` is that of its output.

    As `account` gives them; gradients are those of the weights and of inputs that need one.
    """
    for leaf in (*weights, *inputs):
        leaf.grad = None
    return account(
        {"weights": weights, "inputs": inputs, "output_gradient": [gradient]},
        lambda: layer(*inputs),
        lambda output: torch.autograd.backward(output, gradient),
        [*weights, *inputs],
        device,
    )
