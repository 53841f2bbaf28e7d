"""Layers on a part of an image, which exchange rows with the neighbouring parts; the end of a split.

formulas.md "spatial"; ParaDL section 3.2 and 4.5. Tensors are (batch, channels, rows, ...) of this
rank's part. Functions run in one item type: autocast's casts are made before them.
"""

from __future__ import annotations

import math
from collections.abc import Container
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from calib.foundation.layers import LayerShape, Shape
from calib.oracle.layout.spatial import WINDOWED, window
from calib.training.split.cell import ImageCell, slices
from calib.training.split.linear_map import mapped
from calib.training.split.windows import Transposed, transposed

_backward: Any = torch.ops.aten.convolution_backward
POOLS: dict[tuple[str, int], type[nn.Module]] = {
    ("max_pool", 1): nn.MaxPool1d,
    ("max_pool", 2): nn.MaxPool2d,
    ("max_pool", 3): nn.MaxPool3d,
    ("avg_pool", 1): nn.AvgPool1d,
    ("avg_pool", 2): nn.AvgPool2d,
    ("avg_pool", 3): nn.AvgPool3d,
}


def fill_of(kind: str) -> float:
    """What a layer's windows read beyond the image."""
    return -math.inf if kind == "max_pool" else 0.0


def part_windows(shape: LayerShape, cut: Container[int]) -> tuple[list[int], list[int]]:
    """Strides, and the padding that a part's layer adds itself: none along the `cut` dimensions."""
    windows = [window(shape, d) for d in range(len(shape.output_shape) - 1)]
    padding = [0 if d in cut else along.padding for d, along in enumerate(windows)]
    return [along.stride for along in windows], padding


def part_pool(shape: LayerShape, cut: Container[int]) -> nn.Module:
    """The pooling of a part that brings its own rows along the `cut` dimensions."""
    strides, padding = part_windows(shape, cut)
    kernel = tuple(window(shape, d).kernel for d in range(len(strides)))
    ceil_mode = bool(shape.attributes["ceil_mode"])
    make = POOLS[shape.kind, len(strides)]
    return make(kernel, tuple(strides), tuple(padding), ceil_mode=ceil_mode)


class SplitConvolution(nn.Module):
    """A convolution of this rank's part of y; it shares `weight` and `bias` with the whole one.

    The forward takes the halo of x and the backward that of dL/dy; dL/dw is that of the part. `dtype`
    is what it runs in, where autocast casts.
    """

    def __init__(
        self, module: nn.Module, shape: LayerShape, cell: ImageCell, dtype: torch.dtype | None
    ) -> None:
        super().__init__()
        self.weight, self.bias = module.weight, module.bias
        self.dtype = dtype
        strides, padding = part_windows(shape, cell.cut)
        groups = shape.attributes["groups"]
        assert isinstance(groups, int)
        reaches = cell.reaches(shape, forward=False)
        self.of_x, self.of_dy = cell.halo(cell.reaches(shape, forward=True)), cell.halo(reaches)
        ones, zeros = [1] * len(strides), [0] * len(strides)
        # as torch takes them: stride, padding, dilation, transposed, output padding, groups
        self.arguments = (strides, padding, ones, False, zeros, groups)

        # dL/dx of the own rows is a transposed convolution of the extended dL/dy
        rows, outputs = cell.ranges(shape.input_shapes[0]), cell.ranges(shape.output_shape)
        self._owned = [b - a for a, b in rows]
        self._unread = False  # no output reads any row of the part
        ways = [Transposed(n, size, 0, 0) for n, size in zip(padding, self._owned[1:], strict=True)]
        for d, reach in reaches:
            first = outputs[1 + d][0] - reach.above + reach.keep[0]
            stop = first + reach.keep[1] - reach.keep[0]
            if stop > first:
                ways[d] = transposed(window(shape, d), (first, stop), rows[1 + d])
            else:
                self._unread = True
        self._sizes = [self._owned[0], *(way.size for way in ways)]
        self._transposed = (strides, [way.padding for way in ways], ones, False, zeros, groups)
        self._narrow = [
            (2 + d, way.front, self._owned[1 + d])
            for d, way in enumerate(ways)
            if (way.front, way.back) != (0, 0)
        ]
        # rows that no output reads are added as zeros; torch counts dimensions from the last
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
        """dL/dx of the own rows, from dL/dy with its halo."""
        if self._unread:
            return dy.new_zeros((dy.shape[0], *self._owned))
        # torch looks at the shape of x alone, and memory that is not touched costs nothing
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

    def __init__(self, shape: LayerShape, cell: ImageCell) -> None:
        super().__init__()
        self.pool = part_pool(shape, cell.cut)
        self._halo = cell.halo(cell.reaches(shape, forward=True), fill_of(shape.kind))

    def forward(self, x: Tensor) -> Tensor:
        """y of the part."""
        y: Tensor = self.pool(mapped(x, self._halo.extend, self._halo.give_back))
        return y


class SplitDropout(nn.Module):
    """Dropout of a part: the mask is drawn for the whole image and cut.

    So it is the serial mask, and the generators of a group stay in step for later dropouts.
    """

    def __init__(self, probability: float, shape: Shape, cell: ImageCell) -> None:
        super().__init__()
        self._probability, self._shape = probability, shape
        self._slices = slices(cell.ranges(shape))

    def forward(self, x: Tensor) -> Tensor:
        """x with its part of the mask."""
        if not self.training:
            return x
        whole = x.new_ones((x.shape[0], *self._shape))
        return x * nn.functional.dropout(whole, self._probability, self.training)[self._slices]


class Gather(nn.Module):
    """The whole tensor from all parts, where the split ends; `shape` is that of a whole sample.

    formulas.md "spatial". All ranks have the same gradient of it, so the backward takes this rank's
    part and sends nothing.
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


def part_of(
    shape: LayerShape, cell: ImageCell, whole: nn.Module | None, dtype: torch.dtype | None
) -> nn.Module | None:
    """The module of a layer's part; None where the whole layer's module runs on a part as it is.

    `whole` is the module of a convolution; `dtype` what it runs in where autocast casts.
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


# which torch has no types for
_convolve: Any = _Convolve.apply
