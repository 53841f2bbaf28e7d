"""Passes over lists of tensors: update, pack, zeroing, and concat and split of layers' shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from calib.cases.points import Point
from calib.request import Request
from foundation.layers import Shape
from microbench.cases import Case, TensorsCase
from oracle.model import tensors_key
from oracle.shards import rank_parameters, split_layers
from oracle.traffic import last_weighted

Operation = Literal["pack", "update", "zero_grad", "concat", "split"]
# gradients of all layers are exchanged, in one buffer
PACKED = ("data", "spatial", "data+filter", "data+spatial")
CUTS: tuple[Operation, ...] = ("concat", "split")


def tensor_cases(request: Request, points: Sequence[Point]) -> list[Case]:
    """All passes of all points; lists of single layers, from which others are fitted, come later."""
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
    """filter: y is joined and dL/dy cut, but of the last layer; channel: x is cut and dL/dx joined.

    The first layer that channel splits has no dL/dx to join.
    """
    division = point.division
    if division.strategy not in ("filter", "channel", "data+filter"):
        return
    split = split_layers(point.model, division)
    by_channel = division.strategy == "channel"
    last = last_weighted(point.model)
    joined = [layer for layer in split if by_channel or layer.name != last]
    for number, layer in enumerate(joined):
        whole = layer.shape.input_shapes[0] if by_channel else layer.shape.output_shape
        shapes = ((division.local_batch, *whole),)
        for operation in ("split",) if by_channel and number == 0 else CUTS:
            case = _case(request, point, operation, shapes, f"{layer.name} of {point.label}", 0)
            yield case.model_copy(update={"parts": division.parts})


def _case(
    request: Request,
    point: Point,
    operation: Operation,
    shapes: tuple[Shape, ...],
    why: str,
    tier: int,
) -> TensorsCase:
    return TensorsCase(
        operation=operation, key=tensors_key(shapes), shapes=shapes, device=request.device,
        ranks=point.launch, purpose=why, tier=tier,
    )  # fmt: skip
