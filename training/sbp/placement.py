"""Which rank holds which block of every layer of a chain Y = X W, and who talks to whom.

A layer on p = p1 p2 p3 ranks (formulas.md, "AutoDDL"): X (S0:p1, B:p2, S1:p3), W (B:p1, S1:p2,
S0:p3), Y (S0:p1, S1:p2, P:p3). A rank has coordinates (i1, i2, i3). The reduce-scatter over p3 leaves
Y in p1 x (p2 p3) blocks, column block i2 p3 + i3; an allgather over p2 of blocks i3 p2 + i2 makes X.
The two orders differ: so ranks change their coordinates from layer to layer, not their blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from calib.foundation.errors import InputError

RankGroups = tuple[tuple[int, ...], ...]
Degrees = tuple[int, int, int]
RowBlock = tuple[int, int]  # row block, column block


@dataclass(frozen=True)
class BlockChange:
    """An all-to-all from one number of row blocks to another, in every group.

    `finer_rows`: every rank cuts its rows in as many parts as the group has members, and joins
    columns; else it cuts columns and joins rows.
    """

    groups: RankGroups
    finer_rows: bool


@dataclass(frozen=True)
class PlacedLayer:
    """One layer: degrees, coordinates (i1, i2, i3) of every rank, and its groups in their order.

    `rows` share i2 and i3 (gradients of W), `columns` i1 and i3 (B of X), `sums` i1 and i2 (P of Y).
    `change` comes before the layer; None where the blocks of the layer before are its own.
    """

    degrees: Degrees
    coordinates: tuple[Degrees, ...]
    rows: RankGroups
    columns: RankGroups
    sums: RankGroups
    change: BlockChange | None


def place(chain: Sequence[Degrees]) -> tuple[PlacedLayer, ...]:
    """All layers of a chain. Raises InputError where p differs, or one p1 does not divide the next."""
    if not chain or any(min(degrees) < 1 for degrees in chain):
        raise InputError("a strategy has three degrees, 1 or more, for each layer")
    p = math.prod(chain[0])
    blocks: list[RowBlock] = []
    placed: list[PlacedLayer] = []
    for number, (p1, p2, p3) in enumerate(chain):
        if p1 * p2 * p3 != p:
            raise InputError(f"layer {number} is on {p1 * p2 * p3} ranks, the first on {p}")
        change = None
        if number == 0:
            blocks = [divmod(rank, p2 * p3) for rank in range(p)]
        elif p1 != chain[number - 1][0]:
            change, blocks = _change(blocks, chain[number - 1][0], p1)
        at = tuple((i, column % p2, column // p2) for i, column in blocks)
        placed.append(
            PlacedLayer(
                degrees=(p1, p2, p3),
                coordinates=at,
                rows=_groups([(c[1:], c[0]) for c in at]),
                columns=_groups([((c[0], c[2]), c[1]) for c in at]),
                sums=_groups([(c[:2], c[2]) for c in at]),
                change=change,
            )
        )
        blocks = [(i1, i2 * p3 + i3) for i1, i2, i3 in at]
    return tuple(placed)


def _change(blocks: list[RowBlock], old: int, new: int) -> tuple[BlockChange, list[RowBlock]]:
    """From `old` to `new` row blocks: the groups are as small as they can be."""
    large, small = max(old, new), min(old, new)
    if large % small:
        raise InputError(f"{old} row blocks cannot become {new}: one must divide the other")
    g = large // small
    if new > old:
        groups = _groups([((i, j // g), j) for i, j in blocks])
        return BlockChange(groups, True), [(i * g + j % g, j // g) for i, j in blocks]
    groups = _groups([((i // g, j), i) for i, j in blocks])
    return BlockChange(groups, False), [(i // g, j * g + i % g) for i, j in blocks]


def _groups(keys: Sequence[tuple[tuple[int, ...], int]]) -> RankGroups:
    """Ranks of one first part of their key are a group, in the order of the second."""
    found: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for rank, (group, member) in enumerate(keys):
        found.setdefault(group, []).append((member, rank))
    return tuple(tuple(rank for _, rank in sorted(members)) for members in found.values())
