"""End of a split: every rank of the group gets the whole tensor.

formulas.md "spatial" (allgather where the split ends, its scatter in the backward).
"""

from __future__ import annotations

import math
from itertools import product

import torch
from torch import Tensor, nn

from calib.foundation.layers import Shape
from calib.training.split.cell import ImageCell, slices
from calib.training.split.linear_map import mapped


class Gather(nn.Module):
    """The whole tensor of all parts, where the split ends; `shape` is that of a whole sample.

    All ranks have the same gradient of it, so that the backward takes one's own part: no message.
    """

    def __init__(self, shape: Shape, cell: ImageCell) -> None:
        super().__init__()
        self.shape, self._team = shape, cell.team
        self._packing, self._travelling = cell.clock.of("pack"), cell.clock.of("layerwise")
        places = product(*(range(parts) for parts in cell.grid))
        ranges = [cell.ranges_of(shape, at) for at in places]
        self._sizes = [tuple(b - a for a, b in of) for of in ranges]
        self._items = [math.prod(size) for size in self._sizes]
        self._slices = [slices(of) for of in ranges]
        self._own = self._slices[cell.team.rank]
        self._even = len(set(self._items)) == 1

    def forward(self, y: Tensor) -> Tensor:
        """(batch, *shape) of this rank's part."""
        return mapped(y, self.gather, self.own)

    def gather(self, y: Tensor) -> Tensor:
        """The same, without autograd."""
        batch = y.shape[0]
        counts = [batch * items for items in self._items]
        with self._packing:
            mine, gathered = y.reshape(-1), y.new_empty(sum(counts))
        with self._travelling:
            if self._even:
                self._team.allgather(mine, gathered)
            else:
                self._team.allgatherv(mine, gathered, counts)
        with self._packing:
            whole = y.new_empty((batch, *self.shape))
            pieces = torch.split(gathered, counts)
            for piece, where, size in zip(pieces, self._slices, self._sizes, strict=True):
                whole[where].copy_(piece.view((batch, *size)))
        return whole

    def own(self, gradient: Tensor) -> Tensor:
        """This rank's part of the whole gradient."""
        with self._packing:
            return gradient[self._own].contiguous()
