"""Layers on a part of an image; each talks to the neighbouring parts.

formulas.md "spatial"; ParaDL section 3.2 and 4.5. Tensors are (batch, channels, rows, ...) of this
rank's part. Functions run in one item type: what autocast casts is cast before.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from calib.foundation.layers import LayerShape, Shape
from calib.oracle.layout.spatial import WINDOWED, part_range, window
from calib.training.split.cell import ImageCell, slices
from calib.training.split.linear_map import mapped
from calib.training.split.windows import Transposed, reach_of_dy, transposed

_backward: Any = torch.ops.aten.convolution_backward
POOLS: dict[tuple[str, int], type[nn.Module]] = {
    ("max_pool", 1): nn.MaxPool1d,
    ("max_pool", 2): nn.MaxPool2d,
    ("max_pool", 3): nn.MaxPool3d,
    ("avg_pool", 1): nn.AvgPool1d,
    ("avg_pool", 2): nn.AvgPool2d,
    ("avg_pool", 3): nn.AvgPool3d,
}


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

    def _plan_backward(self, shape: LayerShape, cell: ImageCell) -> None:
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
            for d, way in enumerate(ways)
            if (way.front, way.back) != (0, 0)
        ]
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

    def __init__(self, shape: LayerShape, cell: ImageCell) -> None:
        super().__init__()
        spatial = range(len(shape.output_shape) - 1)
        windows = [window(shape, d) for d in spatial]
        padding = tuple(0 if d in cell.cut else windows[d].padding for d in spatial)
        self.pool = POOLS[shape.kind, len(windows)](
            tuple(w.kernel for w in windows),
            tuple(w.stride for w in windows),
            padding,
            ceil_mode=bool(shape.attributes["ceil_mode"]),
        )
        fill = -math.inf if shape.kind == "max_pool" else 0.0
        self._halo = cell.halo(cell.reaches(shape, True), fill)

    def forward(self, x: Tensor) -> Tensor:
        """y of the part."""
        y: Tensor = self.pool(mapped(x, self._halo.extend, self._halo.give_back))
        return y


class SplitDropout(nn.Module):
    """Dropout of a part: the mask is drawn for the whole image and cut.

    So it is the serial one's, and all ranks of a group stay in step for the dropouts behind.
    """

    def __init__(self, probability: float, shape: Shape, cell: ImageCell) -> None:
        super().__init__()
        self._probability, self._shape = probability, shape
        self._slices = slices(cell.ranges(shape))

    def forward(self, x: Tensor) -> Tensor:
        """x, of which this share is dropped."""
        if not self.training:
            return x
        whole = x.new_ones((x.shape[0], *self._shape))
        return x * nn.functional.dropout(whole, self._probability, self.training)[self._slices]


def part_of(
    shape: LayerShape, cell: ImageCell, whole: nn.Module | None, dtype: torch.dtype | None
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


# which torch has no types for
_convolve: Any = _Convolve.apply
