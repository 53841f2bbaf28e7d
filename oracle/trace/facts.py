"""What is found out of an operator by running it on two and three samples: FLOPs, what it keeps."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from calib.foundation.errors import InputError
from calib.foundation.layers import LayerShape
from calib.foundation.operators import Line, Operator, Saved
from calib.microbench.layers.operators import (
    differentiable,
    operator_call,
    operator_constants,
    operator_inputs,
)
from calib.microbench.memory import LiveBytes, storages

FEW, MORE = 2, 3  # samples
ATTENTION = "scaled_dot_product_attention"  # the device chooses its kernel
MOST_BYTES = 256 * 2**20  # of an operator that is run with data
META, CPU = torch.device("meta"), torch.device("cpu")


class _Pass(NamedTuple):
    """A forward and its backward: what is kept, and bytes beside that and of temporaries."""

    inputs: tuple[int, ...]
    output: bool
    passed: tuple[int, ...]
    is_view: bool
    has_gradient: bool
    beside: int
    forward: int
    backward: int


def facts_of(shape: LayerShape) -> Operator:
    """The operator of a layer with its FLOPs, what its backward needs, and whether it is a view.

    Tensors have no data. But what attention keeps depends on the kernel that PyTorch takes, which it
    chooses by the device: it is run with data, unless it is too large. Raises InputError where an
    operator cannot be run.
    """
    of = shape.operator
    assert of is not None
    try:
        flops = _flops(shape)
        few, more = _both(shape)
    except (RuntimeError, NotImplementedError, IndexError, ValueError, TypeError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"{of.name} cannot be run by itself: {first}") from error
    saved = Saved(
        inputs=few.inputs,
        output=few.output,
        passed=few.passed,
        beside=_line(few.beside, more.beside),
        forward=_line(few.forward, more.forward),
        backward=_line(few.backward, more.backward),
    )
    found = {"is_view": few.is_view, "has_gradient": few.has_gradient}
    return of.model_copy(update={"flops": flops, "saved": saved, **found})


def _both(shape: LayerShape) -> tuple[_Pass, _Pass]:
    """Of FEW and of MORE samples."""
    assert shape.operator is not None
    with_data = shape.operator.base == ATTENTION and sum(shape.operand_bytes(MORE)) < MOST_BYTES
    with torch.random.fork_rng(devices=[]):
        if not with_data:
            with contextlib.suppress(NotImplementedError):  # of some backwards without data
                return _pass(shape, FEW, META), _pass(shape, MORE, META)
        return _pass(shape, FEW, CPU), _pass(shape, MORE, CPU)


def _line(few: int, more: int) -> Line:
    """Bytes of a sample, and whatever the batch."""
    each = max(0.0, (more - few) / (MORE - FEW))
    return each, max(0.0, few - FEW * each)


def _tensors(
    shape: LayerShape, batch: int, device: torch.device, grad: bool
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Inputs, parameters and constants."""
    of = shape.operator
    assert of is not None
    dtype, generator = torch.get_default_dtype(), torch.Generator().manual_seed(0)
    inputs = operator_inputs(shape, batch, dtype, device, grad, generator)
    parameters = [
        torch.zeros(size, device=device, requires_grad=grad) for size in shape.parameter_shapes
    ]
    return inputs, parameters, operator_constants(of, dtype, device)


def _flops(shape: LayerShape) -> float:
    """By PyTorch's counter, of one sample."""

    def on(device: torch.device) -> float:
        tensors = [*_tensors(shape, FEW, device, False)]
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            operator_call(shape, FEW, device)(*[each for of in tensors for each in of])
        return float(counter.get_total_flops()) / FEW

    try:
        return on(META)
    except NotImplementedError:  # some operators cannot run without data
        return on(CPU)


def _pass(shape: LayerShape, batch: int, device: torch.device) -> _Pass:
    """Run the operator, as it is named, and its backward."""
    assert shape.operator is not None
    grad = shape.operator.is_differentiable  # some kernels refuse one that no integer can have
    leaves, parameters, constants = _tensors(shape, batch, device, grad)
    inputs = [leaf.clone() for leaf in leaves]  # may be changed in place, as no leaf can
    kept: dict[int, int] = {}  # bytes of storages

    def keep(tensor: Tensor) -> Tensor:
        kept.update((place, of.nbytes()) for place, of in storages([tensor]).items())
        return tensor

    call = operator_call(shape, batch, device, in_place=True)
    mine = [set(storages([each])) for each in inputs]
    given = set(storages([*inputs, *parameters, *constants]))
    with LiveBytes([*inputs, *parameters, *constants]) as watch:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            result = call(*inputs, *parameters, *constants)
        forward = watch.peak - watch.live
        made = set(storages(tree_leaves(result)))
        beside = {place: of for place, of in kept.items() if place not in given | made}
        outputs, backward = differentiable(result), 0
        passed: tuple[int, ...] = ()
        sources = [each for each in (*leaves, *parameters) if each.requires_grad]
        if outputs and sources:
            gradients = [torch.ones_like(each) for each in outputs]
            watch.peak = before = watch.live
            back = torch.autograd.grad(outputs, sources, gradients, allow_unused=True)
            new = storages(back)
            shared = set(storages(gradients))
            bytes_made = sum(of.nbytes() for place, of in new.items() if place not in shared)
            backward = max(0, watch.peak - before - bytes_made)
            of_input = {id(each): it for each, it in zip(sources, back, strict=True)}
            passed = tuple(
                place
                for place, each in enumerate(leaves)
                if not shared.isdisjoint(storages([of_input.get(id(each))]))
            )
    return _Pass(
        tuple(place for place, of in enumerate(mine) if not of.isdisjoint(kept)),
        not (made - given).isdisjoint(kept),
        passed,
        bool(made) and made <= given,
        bool(outputs),
        sum(beside.values()),
        forward,
        backward,
    )
