"""The most bytes of tensors at once on the rank that has most."""

from __future__ import annotations

from calib.foundation.division import Division
from calib.oracle.layout.shards import rank_parameters
from calib.oracle.memory.live_bytes import (
    batch_line,
    buffers,
    exchange_bytes,
    forward_and_back,
    held_bytes,
    update_bytes,
)
from calib.oracle.memory.live_parts import RankLayers, SharedLayers, SpatialLayers, WholeLayers
from calib.oracle.memory.live_stages import stage_bytes
from calib.oracle.memory.liveness import ByteLine
from calib.oracle.model.spec import ModelSpec


def live_bytes(model: ModelSpec, division: Division, optimizer: str) -> int:
    """Count the most bytes of live tensors in one iteration, on the rank that has most.

    Parameters
    ----------
    model
        Its layers.
    division
        A possible one (`why_impossible` of oracle/layout/shards.py); of a pipeline with its boundaries.
    optimizer
        sgd, momentum or adam: its state is counted.
    """
    if division.traits.stages and division.p > 1:
        return max(stage_bytes(model, division, optimizer))
    key = ("live bytes", division.geometry)
    if key not in model.cache:
        cells = (0, 1) if division.traits.cuts == "image" and division.parts > 1 else (0,)
        model.cache[key] = [_walked(model, division, cell) for cell in cells]
    walks: list[tuple[ByteLine, ...]] = model.cache[key]
    shapes = rank_parameters(model, division)
    share = division.p if division.sharded_optimizer else 1
    held = held_bytes(shapes, optimizer, share) + exchange_bytes(shapes, division)
    held += round(buffers(x.shape for x in model.layers).fixed)
    peak = max(of.of(division.local_batch) for walk in walks for of in walk)
    after = update_bytes(shapes, optimizer, share)
    given = batch_line(model, parts_of(model, division, 0)).of(division.local_batch) if after else 0
    return round(held + max(peak, given + after))


def _walked(model: ModelSpec, division: Division, cell: int) -> tuple[ByteLine, ...]:
    """The peaks of a forward and its backward, without what is held all the time but for the batch."""
    parts = parts_of(model, division, cell)
    return forward_and_back(model, parts, batch_line(model, parts).plus(parts.landing))


def parts_of(model: ModelSpec, division: Division, cell: int) -> RankLayers:
    """What a rank runs under a division; `cell` is its place along every dimension of a spatial grid."""
    if division.parts == 1:
        return WholeLayers(model)
    if division.traits.cuts == "image":
        return SpatialLayers(model, division, cell)
    return SharedLayers(model, division)
