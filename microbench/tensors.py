"""Passes over lists of tensors, timed; training calls the same functions.

Gradients are packed for an exchange and unpacked, added up over micro-batches (accumulate), weights
updated by the optimizer; the shards of filter and channel parallelism are joined (concat) and cut
(split).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

import torch

from calib.foundation.errors import InputError
from calib.foundation.execution import execution_of
from calib.foundation.layers import Shape, split_sizes
from calib.microbench.calls import measure_calls
from calib.microbench.cases import TensorsCase
from calib.microbench.control import Control
from calib.microbench.device import CPU, Device
from calib.microbench.item_types import activation_type, laid_out, weight_type
from calib.microbench.timing.clock import Clock
from calib.microbench.timing.repeat import Repetitions
from calib.microbench.timing.stretches import CallStretch, first_time

OPTIMIZERS: dict[str, Callable[[list[torch.Tensor]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
}

SHARDS = ("concat", "split")  # passes over activations; the others are over weights and gradients


def flat_buffer(
    shapes: Sequence[Shape], dtype: torch.dtype, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """One buffer of the items of all shapes."""
    return torch.empty(
        sum(torch.Size(shape).numel() for shape in shapes), dtype=dtype, device=device
    )


def pack(gradients: Sequence[torch.Tensor], flat: torch.Tensor) -> None:
    """Copy the gradients into the flat buffer, one behind the other."""
    torch.cat([gradient.reshape(-1) for gradient in gradients], out=flat)


def unpack(flat: torch.Tensor, gradients: Sequence[torch.Tensor], divisor: int) -> None:
    """Divide the summed buffer by the number of ranks and copy it back into the gradients."""
    flat.div_(divisor)
    pieces = torch.split(flat, [gradient.numel() for gradient in gradients])
    views = [piece.view_as(grad) for piece, grad in zip(pieces, gradients, strict=True)]
    torch._foreach_copy_(list(gradients), views)


def make_optimizer(
    parameters: Sequence[torch.Tensor], name: str = "momentum"
) -> torch.optim.Optimizer:
    """The optimizer that training uses: "sgd", "momentum" (SGD with 0.9) or "adam".

    They keep no, one and two state tensors a weight. Raises InputError for another name.
    """
    if name not in OPTIMIZERS:
        raise InputError(f"unknown optimizer {name!r}; known: {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name](list(parameters))


def update(optimizer: torch.optim.Optimizer) -> None:
    """The update of an iteration: one step, and the gradients are dropped for the next backward."""
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def accumulate(sums: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
    """Add gradients to those of earlier micro-batches, one by one, as autograd does in place."""
    for total, gradient in zip(sums, gradients, strict=True):
        total.add_(gradient)


def concat_shards(gathered: torch.Tensor, shape: Sequence[int], parts: int) -> torch.Tensor:
    """The tensor `shape` = (batch, channels, ...) from the shards that an allgather brought.

    `gathered` is flat: shard after shard, each contiguous (batch, channels of the shard, ...). A new
    contiguous tensor.
    """
    batch, channels, *rest = shape
    if channels % parts == 0:
        shards = gathered.view(parts, batch, channels // parts, *rest).transpose(0, 1)
        # a copy also where a view would do (one sample): the buffer is the next allgather's; and no
        # view of one, into which a layer behind could not write in place (autograd)
        whole = gathered.new_empty(shape)
        whole.view(batch, parts, channels // parts, *rest).copy_(shards)
        return whole
    sizes = split_sizes(channels, parts)
    items = gathered.numel() // channels
    pieces = torch.split(gathered, [size * items for size in sizes])
    views = [p.view(batch, size, *rest) for p, size in zip(pieces, sizes, strict=True)]
    return torch.cat(views, dim=1)


def split_shards(whole: torch.Tensor, parts: int) -> torch.Tensor:
    """The inverse: (batch, channels, ...) cut along the channels into a new flat tensor.

    Shard after shard, each contiguous (batch, channels of the shard, ...), as `concat_shards` takes
    them.
    """
    batch, channels, *rest = whole.shape
    if channels % parts == 0:
        shards = whole.reshape(batch, parts, channels // parts, *rest).transpose(0, 1)
        return shards.clone(memory_format=torch.contiguous_format).view(-1)
    sizes = split_sizes(channels, parts)
    flat = torch.empty(whole.numel(), dtype=whole.dtype, device=whole.device)
    items = whole.numel() // channels
    pieces = torch.split(flat, [size * items for size in sizes])
    for piece, shard in zip(pieces, torch.split(whole, sizes, dim=1), strict=True):
        piece.view(shard.shape).copy_(shard)
    return flat


def measure_tensors(
    control: Control,
    case: TensorsCase,
    seed: int,
    budget_s: float,
    target: float,
    clock: Clock | None = None,
    device: Device = CPU,
) -> Repetitions:
    """Repetitions of the case's operation, all ranks at once, in seconds.

    The operation "pack" gives rows of "pack" and of "unpack", every other one of its own name.
    `first_s` is the very first time of all calls, in which an optimizer makes its state. Raises
    InputError for a case that cannot be, MeasurementError on every rank where torch fails on any (out
    of memory).
    """
    if case.operation in SHARDS and (len(case.shapes) != 1 or len(case.shapes[0]) < 2):
        raise InputError(
            f"{case.operation} is of one tensor (batch, channels, ...), not of {case.shapes}"
        )
    if case.device != device.kind:
        raise InputError(f"{case.label}: this rank measures on {device.kind}")
    with device.arithmetic(execution_of(case.execution).dtype):
        stretches, first_s = _begin(control, case, seed, device)
        return measure_calls(
            control, device, case.label, stretches, first_s, budget_s, target, clock=clock
        )


def _begin(
    control: Control, case: TensorsCase, seed: int, device: Device
) -> tuple[list[CallStretch], float]:
    """What the case times, and the seconds of its first time on the slowest rank. Collective."""

    def begin() -> tuple[list[CallStretch], float]:
        generator = torch.Generator().manual_seed(seed)
        execution = execution_of(case.execution)
        of_shards = case.operation in SHARDS
        dtype = activation_type(execution) if of_shards else weight_type(execution)
        made = (torch.randn(s, generator=generator, dtype=dtype) for s in case.shapes)
        tensors = [tensor.to(device.tensors) for tensor in made]
        if not of_shards:
            tensors = [laid_out(tensor, execution) for tensor in tensors]
        stretches = PASSES[case.operation](case, tensors, control.size)
        for stretch in stretches:
            stretch.prepare()
        start = perf_counter()
        for stretch in stretches:
            for call in stretch.calls.values():
                call()
        device.synchronize()
        return stretches, perf_counter() - start

    return first_time(control, case.label, begin)


def _packing(case: TensorsCase, tensors: list[torch.Tensor], ranks: int) -> list[CallStretch]:
    flat = flat_buffer(case.shapes, tensors[0].dtype, tensors[0].device)
    for gradient in tensors:
        gradient.zero_()  # other values, divided again and again, become denormal and so slow
    return [
        CallStretch({"pack": lambda: pack(tensors, flat)}),
        CallStretch({"unpack": lambda: unpack(flat, tensors, ranks)}),
    ]


def _updating(case: TensorsCase, tensors: list[torch.Tensor], ranks: int) -> list[CallStretch]:
    """Gradients are new before each repetition, as the backward leaves them.

    In a row they stay: updates without gradients do nothing.
    """
    weights = [tensor.requires_grad_() for tensor in tensors]
    optimizer = make_optimizer(weights, case.optimizer)

    def prepare() -> None:
        for weight in weights:
            weight.grad = torch.zeros_like(weight)  # zeros: a long loop must not diverge

    update_all = {"update": lambda: update(optimizer)}
    return [CallStretch(update_all, prepare, {"update": optimizer.step})]


def _adding(case: TensorsCase, tensors: list[torch.Tensor], ranks: int) -> list[CallStretch]:
    """Gradients of one micro-batch more; all are zero, as sums over a long loop would overflow."""
    sums = [torch.zeros_like(tensor) for tensor in tensors]
    gradients = [torch.zeros_like(tensor) for tensor in tensors]
    return [CallStretch({"accumulate": lambda: accumulate(sums, gradients)})]


def _joining(case: TensorsCase, tensors: list[torch.Tensor], ranks: int) -> list[CallStretch]:
    gathered = tensors[0].view(-1)
    return [CallStretch({"concat": lambda: concat_shards(gathered, case.shapes[0], case.parts)})]


def _cutting(case: TensorsCase, tensors: list[torch.Tensor], ranks: int) -> list[CallStretch]:
    return [CallStretch({"split": lambda: split_shards(tensors[0], case.parts)})]


PASSES: dict[str, Callable[[TensorsCase, list[torch.Tensor], int], list[CallStretch]]] = {
    "pack": _packing,
    "accumulate": _adding,
    "update": _updating,
    "concat": _joining,
    "split": _cutting,
}
