"""Layers at the shapes that ranks run, and whole models in place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from calib.cases.points import Point
from calib.request import Optimizer, Request
from foundation.layers import DTYPE_BYTES, LayerShape
from microbench.cases import Case, InPlaceCase, LayerCase
from oracle.model import tensors_key
from oracle.shards import WEIGHTED, Shard, rank_shards
from training.models import model_names

ITEM_BYTES = DTYPE_BYTES["float32"]
# the layers that make up this much of an iteration are measured first
IMPORTANT_SHARE = 0.9
# operations that take as long as moving a byte: 14e12 / 0.9e12 of a V100, 5 to 10 of a CPU core
FLOPS_PER_BYTE = 10.0
# results over 32 MiB are of fresh pages each time (fitting/work.py): their price is fitted from two
LARGE_ITEMS = (12 * 2**20, 32 * 2**20)


def layer_cases(request: Request, points: Sequence[Point]) -> list[Case]:
    """Forward and backward of every layer that a rank of a point runs; the costly ones first."""
    cases: list[Case] = []
    for point in points:
        for tier, shard in ranked(rank_shards(point.model, point.division)):
            for dtype in request.dtypes:
                cases += _variants(request, point, shard, dtype, tier)
    return cases + _large_cases(request, points)


def _large_cases(request: Request, points: Sequence[Point]) -> list[Case]:
    """Two large passes over items for each number of ranks, on a CPU."""
    if request.device != "cpu":
        return []
    return [
        LayerCase(
            layer=LayerShape(kind="relu", input_shapes=((items,),), output_shape=(items,)),
            batch=1, ranks=ranks, tier=1, purpose="what fresh pages cost",
        )
        for ranks in sorted({point.launch for point in points})
        for items in LARGE_ITEMS
    ]  # fmt: skip


def _variants(
    request: Request, point: Point, shard: Shard, dtype: str, tier: int
) -> Iterable[LayerCase]:
    """One shard: as autograd runs it; its passes apart; on a GPU also as a graph and cold."""
    whole = LayerCase(
        layer=shard.layer, batch=shard.batch, needs_input_grad=shard.needs_input_grad, dtype=dtype,
        device=request.device, channels_last=request.channels_last, ranks=point.launch, tier=tier,
        purpose=f"{shard.name} of {point.label}",
    )  # fmt: skip
    yield whole
    if request.passes_apart and shard.layer.kind in WEIGHTED:
        yield whole.model_copy(update={"passes": "parts", "tier": 2})
    if request.device == "cuda":
        yield whole.model_copy(update={"mode": "graph", "tier": 2})
        if request.cold:
            yield whole.model_copy(update={"cold": True, "tier": 2})


def ranked(shards: Sequence[Shard]) -> list[tuple[int, Shard]]:
    """Shards by falling cost with their tier: 0 until IMPORTANT_SHARE of the iteration, then 1.

    The cost is operations and bytes, as if one byte took as long as FLOPS_PER_BYTE operations.
    """
    costs = [
        shard.layer.forward_flops(shard.batch)
        + FLOPS_PER_BYTE * shard.layer.moved_bytes(shard.batch)
        for shard in shards
    ]
    total, before = sum(costs), 0.0
    found = []
    for cost, shard in sorted(zip(costs, shards, strict=True), key=lambda pair: -pair[0]):
        found.append((0 if before < IMPORTANT_SHARE * total else 1, shard))
        before += cost
    return found


def in_place_cases(request: Request, points: Sequence[Point]) -> list[Case]:
    """Whole iterations of the registered models, serial and data-parallel, on a CPU."""
    return [
        in_place_case(point, optimizer)
        for point in points
        for optimizer in request.optimizers
        if point.division.strategy in ("serial", "data")
        and point.division.p == point.launch
        and point.model.name in model_names()
        and request.device == "cpu"
    ]


def in_place_case(point: Point, optimizer: Optimizer) -> InPlaceCase:
    """Whole iterations, and of what parts they are the sum."""
    model, batch = point.model, point.division.local_batch
    layers = [layer for layer in model.layers if not layer.shape.is_free]
    outputs = sum(layer.shape.output_items for layer in layers)
    return InPlaceCase(
        model=model.name, batch=batch, ranks=point.launch, optimizer=optimizer,
        layer_keys=tuple(
            layer.shape.key(batch, "float32", layer.needs_input_grad) for layer in layers
        ),
        activation_bytes=ITEM_BYTES * batch * outputs,
        tensors_key=tensors_key(model.parameter_shapes),
        gradient_bytes=ITEM_BYTES * model.parameter_items,
        purpose=f"{point.label}, whole",
    )  # fmt: skip
