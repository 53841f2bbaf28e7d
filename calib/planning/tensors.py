"""Passes over lists of tensors: update, pack, zeroing, and concat and split of layers' shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from calib.foundation.layers import Shape
from calib.microbench.cases import Case, TensorsCase
from calib.oracle.layout.shards import rank_parameters
from calib.oracle.model.spec import tensors_key
from calib.oracle.strategies.shared_layers import cut_tensors
from calib.planning.points import Point
from calib.planning.request import Request

TensorOperation = Literal["pack", "update", "zero_grad", "concat", "split"]
# gradients of all layers are exchanged, in one buffer
PACKED = ("data", "spatial", "data+filter", "data+spatial")


def tensor_cases(request: Request, points: Sequence[Point]) -> list[Case]:
    """All passes of all points; single layers, which other lists are fitted from, come later."""
    cases: list[Case] = []
    for point in points:
        shapes = rank_parameters(point.model, point.division)
        packed = point.division.strategy in PACKED
        cases += _passes(request, point, shapes, f"weights of {point.label}", packed, 0)
        cases.append(_case(request, point, "zero_grad", shapes, f"gradients of {point.label}", 2))
        cases += _shards(request, point)
        for layer in point.model.layers:
            if layer.shape.parameter_shapes:
                why = f"{layer.name} of {point.model.name}"
                cases += _passes(request, point, layer.shape.parameter_shapes, why, packed, 1)
    return cases


def _passes(
    request: Request, point: Point, shapes: tuple[Shape, ...], why: str, packed: bool, tier: int
) -> Iterable[TensorsCase]:
    """The update by every optimizer, and the packing where gradients are exchanged."""
    for optimizer in request.optimizers:
        case = _case(request, point, "update", shapes, why, tier)
        yield case.model_copy(update={"optimizer": optimizer})
    if packed:
        yield _case(request, point, "pack", shapes, why, tier)


def _shards(request: Request, point: Point) -> Iterable[TensorsCase]:
    """What filter and channel join from shards, and what they cut."""
    division = point.division
    if division.traits.cuts not in ("filters", "channels"):
        return
    for operation, whole in cut_tensors(point.model, division).items():
        for name, shape in whole.items():
            shapes = ((division.local_batch, *shape),)
            case = _case(request, point, operation, shapes, f"{name} of {point.label}", 0)
            yield case.model_copy(update={"parts": division.parts})


def _case(
    request: Request,
    point: Point,
    operation: TensorOperation,
    shapes: tuple[Shape, ...],
    why: str,
    tier: int,
) -> TensorsCase:
    return TensorsCase(
        operation=operation,
        key=tensors_key(shapes),
        shapes=shapes,
        device=request.device,
        ranks=point.launch,
        purpose=why,
        tier=tier,
    )
