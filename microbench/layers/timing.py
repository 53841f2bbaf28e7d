"""Timing one layer by itself: forward and backward at the batch that a rank runs."""

from __future__ import annotations

from time import perf_counter

import torch

from microbench.cases import LayerCase
from microbench.communicators import Communicator
from microbench.layers.build import build_layer, make_inputs
from microbench.repeat import Block, Repetitions, repeat


def measure_layer(
    communicator: Communicator, case: LayerCase, seed: int, budget_s: float, target: float
) -> Repetitions:
    """Repetitions of "forward" and (where anything needs a gradient) "backward", in seconds.

    All ranks start each repetition together, so that they disturb one another as in training. One
    timing holds one call: each backward needs a forward of its own, and gradients are dropped
    before each (`set_to_none`), as the training loop does.
    """
    return repeat(communicator, layer_block(communicator, case, seed), budget_s, target)


def layer_block(communicator: Communicator, case: LayerCase, seed: int) -> Block:
    """The timed loop of one layer on this rank."""
    dtype, device = getattr(torch, case.dtype), torch.device("cpu")
    generator = torch.Generator().manual_seed(seed)
    layer = build_layer(case.layer, dtype, device)
    inputs = make_inputs(case.layer, case.batch, dtype, device, case.needs_input_grad, generator)
    leaves = [*layer.parameters, *inputs]
    output = layer(*inputs)
    gradient = torch.randn(output.shape, generator=generator, dtype=dtype)
    barrier = communicator.barrier
    has_backward = output.requires_grad

    def block(n: int) -> dict[str, list[float]]:
        forward: list[float] = []
        backward: list[float] = []
        for _ in range(n):
            for leaf in leaves:
                leaf.grad = None
            barrier()
            start = perf_counter()
            output = layer(*inputs)
            between = perf_counter()
            forward.append(between - start)
            if has_backward:
                start = perf_counter()
                torch.autograd.backward(output, gradient)
                backward.append(perf_counter() - start)
        return {"forward": forward, "backward": backward} if has_backward else {"forward": forward}

    return block
