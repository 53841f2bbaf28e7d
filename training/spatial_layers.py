"""Layers of a part of an image, each a module that talks to the parts beside it.

formulas.md "spatial"; ParaDL section 3.2 and 4.5. Tensors are (batch, channels, rows, ...) of this
rank's part. Functions run in one item type: what autocast casts is cast before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from foundation.layers import LayerShape, Shape
from oracle.spatial import WINDOWED, part_range, window
from training.clock import PhaseClock
from training.halo import Halo
from training.windows import Range, Reach, Transposed, reach_of_dy, reach_of_x, transposed

if TYPE_CHECKING:
    from microbench.communicators.torch import TorchCommunicator

_backward: Any = torch.ops.aten.convolution_backward
POOLS: dict[tuple[str, int], type[nn.Module]] = {
    ("max_pool", 1): nn.MaxPool1d, ("max_pool", 2): nn.MaxPool2d, ("max_pool", 3): nn.MaxPool3d,
    ("avg_pool", 1): nn.AvgPool1d, ("avg_pool", 2): nn.AvgPool2d, ("avg_pool", 3): nn.AvgPool3d,
}  # fmt: skip


class Cell:
    """A rank's place among the parts of an image: `at` of `grid`, `team` their ranks row by row."""

    def __init__(self, grid: Shape, at: Shape, team: TorchCommunicator, clock: PhaseClock) -> None:
        self.grid, self.at, self.team, self.clock = grid, at, team, clock
        self._apart = [math.prod(grid[d + 1 :]) for d in range(len(grid))]
        self.cut = [d for d, parts in enumerate(grid) if parts > 1]

    def ranges(self, shape: Shape) -> tuple[Range, ...]:
        """[from, to) of this rank's part along every dimension of a sample of `shape`."""
        return self.ranges_of(shape, self.at)

    def ranges_of(self, shape: Shape, at: Shape) -> tuple[Range, ...]:
        """The same of the part `at` another place."""
        whole = [(0, n) for n in shape]
        for d, (parts, index) in enumerate(zip(self.grid, at, strict=True)):
            whole[1 + d] = part_range(shape[1 + d], parts, index)
        return tuple(whole)

    def halo(self, reaches: Sequence[tuple[int, Reach]], fill: float = 0.0) -> Halo:
        """The exchange with the neighbours, of the reach along each cut dimension."""
        rank = self.team.rank
        sides = [(of, rank - self._apart[d], rank + self._apart[d]) for d, of in reaches]
        return Halo(sides, self.team, self.clock, fill)

    def reaches(self, shape: LayerShape, forward: bool) -> list[tuple[int, Reach]]:
        """What a layer's part runs on beyond its own, by cut dimension: of x, or else of dL/dy."""
        make = reach_of_x if forward else reach_of_dy
        x, y = shape.input_shapes[0], shape.output_shape
        return [
            (d, make(2 + d, window(shape, d), x[1 + d], y[1 + d], self.grid[d], self.at[d]))
            for d in self.cut
        ]

    def runs_alone(self, shape: LayerShape) -> bool:
        """Whether the whole layer's module does the part's work as it is.

        Where nothing is sent, and the windows begin with the part and fit it (a 1x1 convolution, an
        aligned pooling).
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


class SplitConvolution(nn.Module):
    """A convolution of this rank's part of y; it shares `weight` and `bias` with the whole one.

    The forward takes the halo of x and the backward that of dL/dy; dL/dw is that of the part. `dtype`
    is what it runs in, where autocast casts.
    """

    def __init__(
        self, module: nn.Module, shape: LayerShape, cell: Cell, dtype: torch.dtype | None
    ) -> None:
        super().__init__()
        self.weight, self.bias = module.weight, module.bias
        self.dtype = dtype
        spatial = range(len(shape.output_shape) - 1)
        windows = [window(shape, d) for d in spatial]
        groups = shape.attributes["groups"]
        assert isinstance(groups, int)
        self.of_x = cell.halo(cell.reaches(shape, True))
        self.of_dy = cell.halo(cell.reaches(shape, False))
        padding = [0 if d in cell.cut else windows[d].padding for d in spatial]
        ones = [1] * len(windows)
        # what torch calls a convolution by: stride, padding, dilation, transposed, output padding
        strides = [w.stride for w in windows]
        self.arguments = (strides, padding, ones, False, [0] * len(windows), groups)
        self._plan_backward(shape, cell)

    def _plan_backward(self, shape: LayerShape, cell: Cell) -> None:
        """How dL/dx of the own rows comes of the extended dL/dy."""
        strides, padding, ones, _, zeros, groups = self.arguments
        rows = cell.ranges(shape.input_shapes[0])
        turned: dict[int, Transposed | None] = {}
        for d in cell.cut:
            along, parts = window(shape, d), cell.grid[d]
            length, output = shape.input_shapes[0][1 + d], shape.output_shape[1 + d]
            reach = reach_of_dy(2 + d, along, length, output, parts, cell.at[d])
            first = part_range(output, parts, cell.at[d])[0] - reach.above + reach.keep[0]
            stop = first + reach.keep[1] - reach.keep[0]
            turned[d] = transposed(along, (first, stop), rows[1 + d]) if stop > first else None
        self._owned = [b - a for a, b in rows]
        self._unread = None in turned.values()  # no output reads any row of the part
        known = {d: t for d, t in turned.items() if t is not None}
        whole = [
            Transposed(n, size, 0, 0) for n, size in zip(padding, self._owned[1:], strict=True)
        ]
        ways = [known.get(d, of) for d, of in enumerate(whole)]
        self._sizes = [self._owned[0], *(way.size for way in ways)]
        self._transposed = (strides, [way.padding for way in ways], ones, False, zeros, groups)
        self._narrow = [
            (2 + d, way.front, self._owned[1 + d])
            for d, way in enumerate(ways) if (way.front, way.back) != (0, 0)
        ]  # fmt: skip
        # rows that no output reads are zeros to add; torch counts dimensions from the last
        flat = [-n for way in reversed(ways) for n in (way.front, way.back)]
        self._pad = flat if max(flat) > 0 else []

    def forward(self, x: Tensor) -> Tensor:
        """y of the part."""
        weight, bias = self.weight, self.bias
        if self.dtype is not None:
            x, weight = x.to(self.dtype), weight.to(self.dtype)
            bias = None if bias is None else bias.to(self.dtype)
        y: Tensor = _convolve(x, weight, bias, self)
        return y

    def input_gradient(self, dy: Tensor, weight: Tensor) -> Tensor:
        """dL/dx of the own rows, of dL/dy with its halo."""
        if self._unread:
            return dy.new_zeros((dy.shape[0], *self._owned))
        # only the shape of x is looked at: memory that is not touched costs nothing
        like = dy.new_empty((dy.shape[0], *self._sizes))
        dx: Tensor = _backward(dy, like, weight, None, *self._transposed, (True, False, False))[0]
        if self._pad:
            return nn.functional.pad(dx, self._pad)
        for dimension, first, rows in self._narrow:
            dx = dx.narrow(dimension, first, rows)
        return dx


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: SplitConvolution
    ) -> Tensor:
        extended = layer.of_x.extend(x)
        ctx.save_for_backward(extended, weight)
        ctx.layer = layer
        return torch.convolution(extended, weight, bias, *layer.arguments)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        extended, weight = ctx.saved_tensors
        layer, (of_x, of_w, of_b, _) = ctx.layer, ctx.needs_input_grad
        dx = dw = db = None
        if of_x:
            dx = layer.input_gradient(layer.of_dy.extend(dy), weight)
        if of_w or of_b:
            sizes = list(weight.shape[:1]) if of_b else None
            _, dw, db = _backward(
                dy, extended, weight, sizes, *layer.arguments, (False, of_w, of_b)
            )
        return dx, dw, db, None


class SplitPool(nn.Module):
    """A max or average pooling of this rank's part of y.

    The backward gives dL/dx of the halo rows back to their owners.
    """

    def __init__(self, shape: LayerShape, cell: Cell) -> None:
        super().__init__()
        spatial = range(len(shape.output_shape) - 1)
        windows = [window(shape, d) for d in spatial]
        padding = tuple(0 if d in cell.cut else windows[d].padding for d in spatial)
        self.pool = POOLS[shape.kind, len(windows)](
            tuple(w.kernel for w in windows), tuple(w.stride for w in windows), padding,
            ceil_mode=bool(shape.attributes["ceil_mode"]),
        )  # fmt: skip
        fill = -math.inf if shape.kind == "max_pool" else 0.0
        self._halo = cell.halo(cell.reaches(shape, True), fill)

    def forward(self, x: Tensor) -> Tensor:
        """y of the part."""
        y: Tensor = self.pool(_extend(x, self._halo))
        return y


class _Extend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, halo: Halo) -> Tensor:
        ctx.halo = halo
        return halo.extend(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.halo.give_back(gradient), None


class SplitDropout(nn.Module):
    """Dropout of a part: the mask is drawn for the whole image and cut.

    So it is the serial one's, and all ranks of a group stay in step for the dropouts behind.
    """

    def __init__(self, probability: float, shape: Shape, cell: Cell) -> None:
        super().__init__()
        self._probability, self._shape = probability, shape
        self._slices = _slices(cell.ranges(shape))

    def forward(self, x: Tensor) -> Tensor:
        """x, of which this share is dropped."""
        if not self.training:
            return x
        whole = x.new_ones((x.shape[0], *self._shape))
        return x * nn.functional.dropout(whole, self._probability, self.training)[self._slices]


def part_of(
    shape: LayerShape, cell: Cell, whole: nn.Module | None, dtype: torch.dtype | None
) -> nn.Module | None:
    """The module of a layer's part; None where the whole layer's runs on a part as it is.

    `whole` is that of a convolution; `dtype` what it runs in where autocast casts.
    """
    if shape.kind == "dropout":
        probability = shape.attributes["probability"]
        assert isinstance(probability, float)
        return SplitDropout(probability, shape.output_shape, cell)
    if shape.kind not in WINDOWED or cell.runs_alone(shape):
        return None
    if shape.kind == "conv":
        assert whole is not None
        return SplitConvolution(whole, shape, cell, dtype)
    return SplitPool(shape, cell)


class Gather(nn.Module):
    """The whole tensor of all parts, where the split ends; `shape` is that of a whole sample.

    All ranks have the same gradient of it, so that the backward takes one's own part: no message.
    """

    def __init__(self, shape: Shape, cell: Cell) -> None:
        super().__init__()
        self.shape, self._team = shape, cell.team
        self._packing, self._travelling = cell.clock.of("pack"), cell.clock.of("layerwise")
        places = product(*(range(parts) for parts in cell.grid))
        ranges = [cell.ranges_of(shape, at) for at in places]
        self._sizes = [tuple(b - a for a, b in of) for of in ranges]
        self._items = [math.prod(size) for size in self._sizes]
        self._slices = [_slices(of) for of in ranges]
        self._own = self._slices[cell.team.rank]
        self._even = len(set(self._items)) == 1

    def forward(self, y: Tensor) -> Tensor:
        """(batch, *shape) of this rank's part."""
        whole: Tensor = _gather(y, self)
        return whole

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


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, module: Gather) -> Tensor:
        ctx.module = module
        return module.gather(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.module.own(gradient), None


# which torch has no types for
_convolve: Any = _Convolve.apply
_extend: Any = _Extend.apply
_gather: Any = _Gather.apply


def _slices(ranges: Sequence[Range]) -> tuple[slice, ...]:
    """Those of a tensor with a batch in front."""
    return (slice(None), *(slice(a, b) for a, b in ranges))
