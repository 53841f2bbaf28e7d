"""Peak live bytes of tensors, on the rank that has most."""

from __future__ import annotations

from typing import NamedTuple

from calib.foundation.division import Division
from calib.oracle.layout.workload import exchanged_weights, workload
from calib.oracle.memory.live_iteration import (
    batch_line,
    buffers,
    exchange_bytes,
    forward_and_back,
    held_bytes,
    summing_bytes,
    unit_held_bytes,
    update_bytes,
)
from calib.oracle.memory.live_parts import (
    RankLayers,
    RegionLayers,
    SharedLayers,
    SpatialLayers,
    UnitLayers,
    WholeLayers,
)
from calib.oracle.memory.live_stages import stage_bytes
from calib.oracle.memory.live_tokens import SequenceLayers, TokenLayers
from calib.oracle.memory.liveness import ByteLine
from calib.oracle.model.spec import ModelSpec
from calib.oracle.once import once_per_geometry


def live_bytes(model: ModelSpec, division: Division, optimizer: str, widens: bool = False) -> int:
    """Count the peak bytes of live tensors in one iteration, on the rank that has most.

    Parameters
    ----------
    model
        Its layers.
    division
        A possible one (`why_impossible` in oracle/layout/shards.py); a pipeline has boundaries.
    optimizer
        sgd, momentum or adam, whose state counts.
    widens
        Whether sums of half precision are made in a copy in float32, as MPI's are.
    """
    if division.traits.stages and division.p > 1:
        return max(stage_bytes(model, division, optimizer))
    weights, walk = workload(model, division).weights, _walked(model, division, False, widens)
    samples, turns = division.local_batch, division.accumulation
    if division.shards:
        held, after = unit_held_bytes(model, division, optimizer, widens)
    else:
        share = division.p if division.sharded_optimizer else 1
        flat = exchange_bytes(exchanged_weights(model, division), division)
        held = held_bytes(weights, optimizer, share) + flat
        after = update_bytes(weights, optimizer, share)
        if widens:
            after = max(after, summing_bytes(weights, flat, division, model.items.weight_bytes))
    given = turns * walk.given.of(samples) if after else 0
    peak = max(line.of(samples) for line in walk.peaks)
    if turns > 1:  # the gradients of earlier micro-batches, and the samples of the others
        again = _walked(model, division, True, widens)
        later = max(line.of(samples) for line in again.peaks)
        peak = max(peak, weights.nbytes + later) + (turns - 1) * walk.given.of(samples)
    return round(held + round(walk.buffers) + max(peak, given + after))


class Walk(NamedTuple):
    """A forward and its backward: inputs and targets, buffers, peaks without weights and state."""

    given: ByteLine
    buffers: float
    peaks: list[ByteLine]


@once_per_geometry
def _walked(model: ModelSpec, division: Division, again: bool, widens: bool) -> Walk:
    """The highest peaks on any rank.

    `again`: the weights already have gradients, which are not in it. `widens` as for `live_bytes`.
    """
    cells = (0, 1) if division.traits.cuts == "image" and division.parts > 1 else (0,)
    ranks = [parts_of(model, division, cell) for cell in cells]
    given = [batch_line(model, parts) for parts in ranks]
    peaks: list[ByteLine] = []
    for parts, batch in zip(ranks, given, strict=True):
        peaks += forward_and_back(model, parts, batch.plus(parts.landing), again, widens)
    held = buffers((layer.shape for layer in model.layers), model.items.weight_bytes).fixed
    if division.parts == 1:  # a rank that divides layers has nothing else of the module
        held += model.items.weight_bytes * model.unused_items
    return Walk(given[0], held, peaks)


def parts_of(model: ModelSpec, division: Division, cell: int) -> RankLayers:
    """A rank's layers under a division; `cell` is its place in every dimension of a spatial grid."""
    if division.parts == 1:
        return (UnitLayers if division.shards else WholeLayers)(model)
    if division.traits.cuts == "image":
        return SpatialLayers(model, division, cell)
    if division.traits.cuts == "tokens":
        return SequenceLayers(model, division)
    if division.traits.cuts == "regions":
        return (TokenLayers if division.cuts_tokens else RegionLayers)(model, division)
    return SharedLayers(model, division)
