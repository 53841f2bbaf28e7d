"""Grids of halo exchanges: their neighbours, and their names in laws."""

from __future__ import annotations

from collections.abc import Sequence

HALO = "halo"


def neighbours(grid: Sequence[int]) -> int:
    """The most neighbours of a rank in a grid that does not wrap: 1 along 2 parts, 2 along more."""
    return sum(min(parts - 1, 2) for parts in grid)


def grid_of(operation: str, ranks: int) -> tuple[int, ...]:
    """The grid of a halo's law, from its name ("halo 2x4"); (p,) of a plain one."""
    detail = operation.removeprefix(HALO).strip()
    return tuple(map(int, detail.split("x"))) if detail else (ranks,)
