"""A rank's place in the grid of an image's parts: rows it owns, rows it reads.

formulas.md "spatial"; the ranges are those of calib.oracle.layout.spatial.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from calib.foundation.layers import LayerShape, Shape
from calib.microbench.communicator import TorchGroup
from calib.oracle.layout.partitions import Range
from calib.oracle.layout.spatial import part_range, window
from calib.training.clock import PhaseClock
from calib.training.split.halo import TensorHalo
from calib.training.split.windows import Reach, reach_of_dy, reach_of_x


class ImageCell:
    """A rank's place `at` in the `grid` of an image's parts, whose ranks are `team`, row by row."""

    def __init__(self, grid: Shape, at: Shape, team: TorchGroup, clock: PhaseClock) -> None:
        self.grid, self.at, self.team, self.clock = grid, at, team, clock
        self._apart = [math.prod(grid[d + 1 :]) for d in range(len(grid))]
        self.cut = [d for d, parts in enumerate(grid) if parts > 1]

    def ranges(self, shape: Shape) -> tuple[Range, ...]:
        """[from, to) of this rank's part along every dimension of a sample of `shape`."""
        return self.ranges_of(shape, self.at)

    def ranges_of(self, shape: Shape, at: Shape) -> tuple[Range, ...]:
        """The same for the part `at` another place."""
        whole = [(0, n) for n in shape]
        for d, (parts, index) in enumerate(zip(self.grid, at, strict=True)):
            whole[1 + d] = part_range(shape[1 + d], parts, index)
        return tuple(whole)

    def halo(self, reaches: Sequence[tuple[int, Reach]], fill: float = 0.0) -> TensorHalo:
        """The exchange with the neighbours, given the reach along each cut dimension."""
        rank = self.team.rank
        sides = [(of, rank - self._apart[d], rank + self._apart[d]) for d, of in reaches]
        return TensorHalo(sides, self.team, self.clock, fill)

    def reaches(self, shape: LayerShape, forward: bool) -> list[tuple[int, Reach]]:
        """The reach of a layer's part along each cut dimension: in x (`forward`) or in dL/dy."""
        make = reach_of_x if forward else reach_of_dy
        x, y = shape.input_shapes[0], shape.output_shape
        return [
            (d, make(2 + d, window(shape, d), x[1 + d], y[1 + d], self.grid[d], self.at[d]))
            for d in self.cut
        ]

    def runs_alone(self, shape: LayerShape) -> bool:
        """Whether the whole layer's module can run on the part as it is.

        It can where nothing is sent, and the windows begin with the part and fit it (a 1x1 convolution,
        an aligned pooling).
        """
        x, y = self.ranges(shape.input_shapes[0]), self.ranges(shape.output_shape)
        sends = any(r.sends for way in (True, False) for _, r in self.reaches(shape, way))
        return not sends and all(_fits(shape, d, x[1 + d], y[1 + d]) for d in self.cut)


def _fits(shape: LayerShape, dimension: int, rows: Range, outputs: Range) -> bool:
    along = window(shape, dimension)
    start, stop = along.inputs_of(outputs)
    left = rows[1] - stop  # rows that no window of the part reaches
    least = 1 if shape.attributes.get("ceil_mode", False) else along.stride
    return along.padding == 0 and start == rows[0] and 0 <= left < least


def slices(ranges: Sequence[Range]) -> tuple[slice, ...]:
    """Slices of a tensor whose first dimension is the batch."""
    return (slice(None), *(slice(a, b) for a, b in ranges))
