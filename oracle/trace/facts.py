"""What is found out of an operator by running it on two and three samples: FLOPs, what is saved."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from calib.foundation.errors import InputError
from calib.foundation.layers import LayerShape
from calib.foundation.operators import Operator, Saved
from calib.microbench.layers.operators import operator_call, operator_constants, operator_inputs
from calib.microbench.memory import storages

FEW, MORE = 2, 3  # samples
MOST_BYTES = 256 * 2**20  # of an operator that is run with data
META = torch.device("meta")


def facts_of(shape: LayerShape) -> Operator:
    """The operator of a layer with its FLOPs, what its backward needs, and whether it is a view.

    What autograd keeps depends on the kernel that PyTorch takes, which it chooses by the device: so
    the operator is run with data, unless it is too large. Raises InputError where it cannot be run.
    """
    of = shape.operator
    assert of is not None
    try:
        flops = _flops(shape)
        device = torch.device("cpu") if _bytes(shape) < MOST_BYTES else META
        (inputs, output, few, is_view), (_, _, more, _) = (
            _saved(shape, batch, device) for batch in (FEW, MORE)
        )
    except (RuntimeError, NotImplementedError, IndexError, ValueError, TypeError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"{of.name} cannot be run by itself: {first}") from error
    each = float(more - few)
    saved = Saved(
        inputs=inputs, output=output, sample_bytes=each, fixed_bytes=max(0.0, few - FEW * each)
    )
    return of.model_copy(update={"flops": flops, "saved": saved, "is_view": is_view})


def _bytes(shape: LayerShape) -> int:
    return sum(shape.operand_bytes(MORE))


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
    tensors = [*_tensors(shape, FEW, META, False)]
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        operator_call(shape, FEW, META)(*[each for of in tensors for each in of])
    return counter.get_total_flops() / FEW


def _saved(
    shape: LayerShape, batch: int, device: torch.device
) -> tuple[tuple[int, ...], bool, int, bool]:
    """Which inputs are kept, whether the output is, bytes of the rest, and whether it is a view."""
    inputs, parameters, constants = _tensors(shape, batch, device, True)
    call = operator_call(shape, batch, device)
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = call(*inputs, *parameters, *constants)
    several = result if isinstance(result, list | tuple) else [result]
    tensors = [each for each in several if isinstance(each, Tensor)]
    mine = [set(storages([each])) for each in inputs]
    made = set(storages(tensors))
    given = set(storages([*inputs, *parameters, *constants]))
    found = storages(kept)
    beside = [storage.nbytes() for place, storage in found.items() if place not in given | made]
    return (
        tuple(place for place, of in enumerate(mine) if not of.isdisjoint(found)),
        not (made - given).isdisjoint(found),
        sum(beside),
        bool(made) and made <= given,
    )
