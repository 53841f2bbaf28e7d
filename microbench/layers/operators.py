"""An ATen operator from its name and arguments: looked up in torch.ops, never the user's code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from calib.foundation.errors import InputError
from calib.foundation.layers import LayerShape
from calib.foundation.operators import Operator

# defined for positive numbers only
POSITIVE = frozenset(["log", "sqrt", "rsqrt", "pow", "reciprocal", "log2", "log10", "log1p", "div"])
LOOKED_UP = frozenset(("embedding", "embedding_bag"))
BAGS = "embedding_bag"  # whose second input is where each bag begins among the first


def overload_named(name: str) -> Any:
    """The operator that a name such as aten.gelu.default names. Raises InputError without one."""
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, torch._ops.OpOverload):
        raise InputError(f"this PyTorch has no operator {name}")
    return found


def out_of_place(name: str) -> tuple[Any, bool]:
    """The variant that leaves its input as it is, and whether there is one."""
    namespace, base, overload = name.split(".")
    if base.endswith("_") and not base.startswith("_"):
        try:
            return overload_named(f"{namespace}.{base.rstrip('_')}.{overload}"), True
        except InputError:
            return overload_named(name), False
    return overload_named(name), True


def operator_call(
    shape: LayerShape, batch: int, device: torch.device, in_place: bool = False
) -> Callable[..., Any]:
    """A function of the operator's inputs, then parameters, then constants, at `batch` samples.

    An in-place operator is called by its other name, as a leaf with a gradient cannot be changed;
    without one, on a copy; but `in_place` lets it change its input. Raises InputError for an unknown
    operator.
    """
    of = shape.operator
    assert of is not None
    call, leaves_input = (overload_named(of.name), True) if in_place else out_of_place(of.name)
    places = {"input": 0, "parameter": len(shape.input_shapes)}
    places["constant"] = places["parameter"] + len(shape.parameter_shapes)

    def decoded(given: Any) -> Any:
        """With tensors as their places: what is left for a call, which is timed, is to put them in."""
        if isinstance(given, list):
            return [decoded(each) for each in given]
        if not isinstance(given, dict):
            return given
        ((what, at),) = given.items()
        if what in places:
            return _Place(places[what] + at)
        if what == "batch":
            return batch * at
        if what == "dtype":
            return getattr(torch, at) if at else _MODEL_TYPE
        return device if what == "device" else getattr(torch, at)

    positional = decoded(of.positional)
    named = {name: decoded(given) for name, given in of.named.items()}

    def run(*tensors: Tensor) -> Any:
        arguments = [_filled_in(each, tensors) for each in positional]
        if not leaves_input:
            arguments[0] = arguments[0].clone()
        return call(*arguments, **{name: _filled_in(each, tensors) for name, each in named.items()})

    return run


class _Place(int):
    """Where a tensor stands among those of a call."""


_MODEL_TYPE = object()


def _filled_in(given: Any, tensors: Sequence[Tensor]) -> Any:
    if type(given) is _Place:
        return tensors[given]
    if type(given) is list:
        return [_filled_in(each, tensors) for each in given]
    if given is _MODEL_TYPE:
        return tensors[0].dtype if tensors else None
    return given


def operator_inputs(
    shape: LayerShape,
    batch: int,
    dtype: torch.dtype,
    device: torch.device,
    needs_input_grad: bool,
    generator: torch.Generator,
) -> list[Tensor]:
    """Inputs as the model has them: sizes, item types and memory orders.

    Floats are normal random numbers (positive ones where the operator needs these), with a gradient
    where one is computed; indices are below the rows of the table that they look up, else 0; truths are
    true.
    """
    of = shape.operator
    assert of is not None
    below = shape.parameter_shapes[0][0] if of.base in LOOKED_UP and shape.parameter_shapes else 1
    made: list[Tensor] = []
    for number, each in enumerate(shape.input_shapes):
        item = getattr(torch, of.type(number)) if of.type(number) else dtype
        size = of.size(number, each, batch)
        order = of.orders[number] if of.orders else ()
        stored = _stored(size, order)
        if device.type == "meta":
            tensor = torch.empty(stored, dtype=item, device=device)
        else:
            tensor = _filled(stored, item, below, generator, of.base in POSITIVE).to(device)
        if of.base == BAGS and made and not item.is_floating_point and tensor.dim() == 1:
            (bags,) = stored
            tensor = torch.arange(bags, dtype=item, device=device) * (
                made[0].numel() // max(1, bags)
            )
        tensor = _ordered(tensor, order)
        if needs_input_grad and number not in of.fixed and has_gradients(item):
            tensor.requires_grad_(True)
        made.append(tensor)
    return made


def operator_constants(of: Operator, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """The buffers that it reads: zeros, which are indices of any table."""
    return [
        torch.zeros(size, dtype=getattr(torch, item) if item else dtype, device=device)
        for size, item in of.constants
    ]


def has_gradients(item: torch.dtype) -> bool:
    """Whether tensors of an item type can have a gradient."""
    return item.is_floating_point or item.is_complex


def differentiable(result: Any) -> list[Tensor]:
    """The tensors in a result that have a gradient."""
    several = result if isinstance(result, list | tuple) else (result,)
    return [each for each in several if isinstance(each, Tensor) and each.requires_grad]


def _stored(size: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size[place] for place in order) if order else size


def _ordered(tensor: Tensor, order: tuple[int, ...]) -> Tensor:
    if not order:
        return tensor
    back = [order.index(place) for place in range(len(order))]
    return tensor.permute(back)


def _filled(
    size: tuple[int, ...], item: torch.dtype, below: int, generator: torch.Generator, positive: bool
) -> Tensor:
    source = generator.device
    if item == torch.bool:
        return torch.ones(size, dtype=item, device=source)
    if not has_gradients(item):
        return torch.randint(below, size, generator=generator, device=source, dtype=item)
    found = torch.randn(size, generator=generator, dtype=item, device=source)
    return found.abs_().add_(0.5) if positive else found
