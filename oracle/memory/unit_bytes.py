"""What a rank holds of weights and gradients under fully sharded training, whatever its samples."""

from __future__ import annotations

from typing import NamedTuple

from calib.oracle.layout.units import ROOT, model_units
from calib.oracle.model.spec import ModelSpec
from calib.oracle.once import once


class UnitBytes(NamedTuple):
    """Bytes of a rank: `shards` of all weights, and the largest of them.

    `gathered` are the whole weights at once, of the largest unit and the root; `sent` the flat gradients
    of the largest unit of all, and what a rank receives of their sum.
    """

    shards: int
    largest_shard: int
    gathered: int
    sent: int


@once
def unit_bytes(model: ModelSpec, p: int) -> UnitBytes:
    """The bytes of a rank of p >= 2. One buffer serves all units but the root's, one after the other."""
    shard = {u.name: model.items.weight_bytes * u.shard_items(p) for u in model_units(model)}
    largest = max(shard.values())
    inner = max((nbytes for name, nbytes in shard.items() if name != ROOT), default=0)
    return UnitBytes(
        shards=sum(shard.values()),
        largest_shard=largest,
        gathered=p * (inner + shard.get(ROOT, 0)),
        sent=(p + 1) * largest,
    )
