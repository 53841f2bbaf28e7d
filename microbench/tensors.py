"""Passes over lists of tensors: gradient packing and the optimizer. Training calls these too."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import torch

from foundation.layers import Shape
from microbench.cases import TensorsCase
from microbench.communicators import Communicator
from microbench.repeat import Block, Repetitions, repeat


def flat_buffer(shapes: Sequence[Shape], dtype: torch.dtype) -> torch.Tensor:
    """One buffer of the items of all shapes."""
    return torch.empty(sum(torch.Size(shape).numel() for shape in shapes), dtype=dtype)


def pack(gradients: Sequence[torch.Tensor], flat: torch.Tensor) -> None:
    """Copy the gradients into the flat buffer, one behind the other."""
    torch.cat([gradient.reshape(-1) for gradient in gradients], out=flat)


def unpack(flat: torch.Tensor, gradients: Sequence[torch.Tensor], divisor: int) -> None:
    """Divide the summed buffer by the number of ranks and copy it back into the gradients."""
    flat.div_(divisor)
    pieces = torch.split(flat, [gradient.numel() for gradient in gradients])
    views = [piece.view_as(grad) for piece, grad in zip(pieces, gradients, strict=True)]
    torch._foreach_copy_(list(gradients), views)


def make_optimizer(parameters: Sequence[torch.Tensor], name: str = "momentum") -> torch.optim.SGD:
    """The optimizer that training uses: SGD with momentum 0.9 (one state tensor a weight)."""
    if name != "momentum":
        raise ValueError(f"unknown optimizer {name}")
    return torch.optim.SGD(list(parameters), lr=1e-3, momentum=0.9)


def update(optimizer: torch.optim.Optimizer) -> None:
    """The update of an iteration: one step, and the gradients are dropped for the next backward."""
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def measure_tensors(
    communicator: Communicator, case: TensorsCase, seed: int, budget_s: float, target: float
) -> Repetitions:
    """Repetitions of "pack" and "unpack", or of "update", all ranks at once, in seconds."""
    make = {"pack": pack_block, "update": update_block}[case.operation]
    return repeat(communicator, make(communicator, case, seed), budget_s, target)


def _tensors(case: TensorsCase, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, case.dtype)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in case.shapes]


def pack_block(communicator: Communicator, case: TensorsCase, seed: int) -> Block:
    """The timed loop of packing and unpacking."""
    gradients = _tensors(case, seed)
    flat = flat_buffer(case.shapes, gradients[0].dtype)
    barrier, size = communicator.barrier, communicator.size

    def block(n: int) -> dict[str, list[float]]:
        packing: list[float] = []
        unpacking: list[float] = []
        for _ in range(n):
            barrier()
            start = perf_counter()
            pack(gradients, flat)
            packing.append(perf_counter() - start)
            barrier()
            start = perf_counter()
            unpack(flat, gradients, size)
            unpacking.append(perf_counter() - start)
        return {"pack": packing, "unpack": unpacking}

    return block


def update_block(communicator: Communicator, case: TensorsCase, seed: int) -> Block:
    """The timed loop of an update: the optimizer's step, then the gradients are let go.

    Gradients are new before each repetition, as the backward leaves them; the optimizer's state
    exists from the first repetition on.
    """
    weights = [tensor.requires_grad_() for tensor in _tensors(case, seed)]
    optimizer = make_optimizer(weights)
    barrier = communicator.barrier

    def block(n: int) -> dict[str, list[float]]:
        times = []
        for _ in range(n):
            for weight in weights:
                weight.grad = torch.zeros_like(weight)  # zeros: a long loop must not diverge
            barrier()
            start = perf_counter()
            update(optimizer)
            times.append(perf_counter() - start)
        return {"update": times}

    return block
