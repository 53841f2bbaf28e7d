"""Passes over lists of tensors: update, accumulate, pack, and concat and split of layers' shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from calib.foundation.execution import execution_of
from calib.foundation.layers import Shape
from calib.microbench.cases import Case, TensorsCase
from calib.oracle.layout.shards import partial_parameters, rank_parameters
from calib.oracle.layout.units import model_units
from calib.oracle.model.spec import tensors_key
from calib.oracle.strategies.shared_layers import cut_tensors
from calib.planning.points import Point
from calib.planning.request import Request

TensorOperation = Literal["pack", "accumulate", "update", "concat", "split"]


def tensor_cases(request: Request, points: Sequence[Point]) -> list[Case]:
    """All passes of all points; single layers, which other lists are fitted from, come later."""
    cases: list[Case] = []
    for point in points:
        shapes = rank_parameters(point.model, point.division)
        traits = point.division.traits
        # gradients of all layers are exchanged, in one buffer or unit by unit
        packed = traits.replicas or traits.replicated
        in_one = packed and not point.division.shards
        cases += _passes(request, point, shapes, f"weights of {point.label}", in_one, 0)
        cases += _of_tokens(request, point)
        cases += _units(request, point)
        cases += _shards(request, point)
        cases += _accumulations(request, point, shapes)
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
        yield _case(request, point, "update", shapes, why, tier, optimizer=optimizer)
    if packed:
        yield _case(request, point, "pack", shapes, why, tier)


def _units(request: Request, point: Point) -> Iterable[TensorsCase]:
    """The packing of each unit of fully sharded training, and the unpacking of its shard."""
    if not point.division.shards:
        return
    for unit in model_units(point.model):
        shard = ((unit.shard_items(point.division.p),),)
        for what, shapes in (("weights", unit.shapes), ("shard", shard)):
            why = f"{what} of {unit.name or 'the root'} of {point.label}"
            yield _case(request, point, "pack", shapes, why, 0)


def _of_tokens(request: Request, point: Point) -> Iterable[TensorsCase]:
    """The packing of gradients that each rank has of its tokens."""
    shapes = partial_parameters(point.model, point.division)
    if shapes:
        yield _case(request, point, "pack", shapes, f"norms and biases of {point.label}", 0)


def _accumulations(
    request: Request, point: Point, shapes: tuple[Shape, ...]
) -> Iterable[TensorsCase]:
    """The sums of micro-batches: of all weights, and of a small, a middle and a large layer."""
    if "accumulation" not in point.division.traits.options:
        return
    yield _case(request, point, "accumulate", shapes, f"weights of {point.label}", 1)
    weighted = [layer for layer in point.model.layers if layer.shape.parameter_shapes]
    by_size = sorted(weighted, key=lambda layer: layer.shape.parameter_items)
    for place in sorted({0, len(by_size) // 2, len(by_size) - 1}) if by_size else ():
        layer = by_size[place]
        why = f"{layer.name} of {point.model.name}"
        yield _case(request, point, "accumulate", layer.shape.parameter_shapes, why, 1)


def _shards(request: Request, point: Point) -> Iterable[TensorsCase]:
    """What is joined from shards, and what is cut; what sequence sends and gets."""
    division = point.division
    if division.parts == 1 or division.traits.cuts == "image":
        return
    for operation, whole in cut_tensors(point.model, division).items():
        for name, shape in whole.items():
            shapes = ((division.local_batch, *shape),)
            why = f"{name} of {point.label}"
            yield _case(request, point, operation, shapes, why, 0, parts=division.parts)


def _case(
    request: Request,
    point: Point,
    operation: TensorOperation,
    shapes: tuple[Shape, ...],
    why: str,
    tier: int,
    **more: Any,
) -> TensorsCase:
    return TensorsCase(
        operation=operation,
        key=tensors_key(shapes),
        shapes=shapes,
        device=request.device,
        execution=execution_of(point.model.execution).kernels.name,
        ranks=point.launch,
        purpose=why,
        tier=tier,
        **more,
    )
