"""Cutting images into parts: the rows each rank owns, needs from its neighbours, and runs on.

A part of a convolution or pooling runs without padding in the cut dimensions: its rows include the
halo, and zeros (max pooling: -inf) outside the image. So all parts of equal output length have one
shape. Outputs are cut as evenly as possible, and a layer's input like its producer's output.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from calib.foundation.errors import InputError
from calib.foundation.layers import LayerShape, Shape, split_sizes
from calib.oracle.model.spec import ModelSpec
from calib.oracle.once import once

WINDOWED = ("conv", "max_pool", "avg_pool")
POINTWISE = ("relu", "batch_norm", "add", "concat", "dropout")
DIMENSIONS = ("height", "width", "depth")  # names for messages: first, second, third
# this many equal parts show every neighbourhood that more parts have
LIKE_ALL = 5


class Window(NamedTuple):
    """Kernel, stride and padding of a layer along one dimension; 1, 1, 0 if it is pointwise."""

    kernel: int = 1
    stride: int = 1
    padding: int = 0

    def inputs_of(self, outputs: tuple[int, int]) -> tuple[int, int]:
        """The input rows [from, to), padding included, that outputs [from, to) read."""
        first, stop = outputs
        start = first * self.stride - self.padding
        return start, (stop - 1) * self.stride - self.padding + self.kernel

    def outputs_of(self, inputs: tuple[int, int]) -> tuple[int, int]:
        """The outputs [from, to) that would read input rows [from, to) of an endless image."""
        first, stop = inputs
        start = -((self.kernel - 1 - first - self.padding) // self.stride)
        return start, (stop - 1 + self.padding) // self.stride + 1


POINT = Window()


def is_cut(shape: LayerShape) -> bool:
    """Whether parts of an image are enough for parts of its output, with a halo or without."""
    of = shape.operator
    if of is None:
        return shape.kind in (*WINDOWED, *POINTWISE)
    inputs = set(shape.input_shapes)
    return of.is_pointwise and inputs == {shape.output_shape} and not shape.parameter_shapes


class Axis(NamedTuple):
    """A layer along one spatial dimension: its kind, window, and rows of input and output."""

    kind: str
    along: Window
    length: int
    output: int


def part_range(n: int, parts: int, index: int) -> tuple[int, int]:
    """A part of `split_sizes` as [from, to)."""
    small, larger = divmod(n, parts)
    first = index * small + min(index, larger)
    return first, first + small + (index < larger)


def part_ranges(n: int, parts: int) -> list[tuple[int, int]]:
    """All parts of `split_sizes` as [from, to)."""
    return [part_range(n, parts, index) for index in range(parts)]


def window(shape: LayerShape, dimension: int) -> Window:
    """The window of a layer along a spatial dimension (0 is the first after the channels)."""
    if shape.kind not in WINDOWED:
        return POINT
    of = shape.attributes
    values = of["kernel"], of["stride"], of["padding"]
    return Window(*[v[dimension] if isinstance(v, tuple) else int(v) for v in values])


def axis(shape: LayerShape, dimension: int) -> Axis:
    """A layer along a spatial dimension."""
    at = 1 + dimension
    length, output = shape.input_shapes[0][at], shape.output_shape[at]
    return Axis(shape.kind, window(shape, dimension), length, output)


def halo_rows(shape: LayerShape, dimension: int, parts: int) -> tuple[int, int]:
    """The most rows that a part takes from one neighbour: of x (forward) and of dL/dy (backward).

    Both are kernel // 2 for a convolution of stride 1 that keeps the length (formulas.md), and 0 for
    aligned pooling. Raises InputError if a part is empty or shorter than the halo.
    """
    _, along, length, output = axis(shape, dimension)
    rows, fault = _halo(along, length, output, parts)
    if fault:
        raise InputError(_named(fault, dimension, length, parts))
    return rows


def reads_beyond(shape: LayerShape, grid: tuple[int, ...]) -> bool:
    """Whether parts of a layer read rows of others, or beyond the image, or write for others."""
    return any(
        parts > 1 and (window(shape, d).padding > 0 or any(halo_rows(shape, d, parts)))
        for d, parts in enumerate(grid)
    )


def _named(fault: str, dimension: int, length: int, parts: int) -> str:
    return f"its {DIMENSIONS[dimension]} of {length} in {parts} parts {fault}"


@lru_cache(maxsize=1 << 14)  # many layers share few windows and lengths
def _halo(along: Window, length: int, output: int, parts: int) -> tuple[tuple[int, int], str]:
    """The rows of `halo_rows`, and what is wrong with the cut."""
    if min(length, output) < parts:
        return (0, 0), "leaves a part without a row"
    if length == output * along.stride and output % parts == 0 and parts > LIKE_ALL:
        # all inner parts are alike
        each = output // parts
        return _halo(along, LIKE_ALL * each * along.stride, LIKE_ALL * each, LIKE_ALL)
    reads = (rows_read(along, part_range(output, parts, i), length) for i in range(parts))
    taken, short = _taken(length, parts, reads)
    if short:
        return (0, 0), f"is shorter than the halo of {short}"
    writes = (outputs_reading(along, part_range(length, parts, i), output) for i in range(parts))
    given, narrow = _taken(output, parts, writes)
    return (taken, given), f"is shorter than the halo of {narrow}" if narrow else ""


def rows_read(along: Window, outputs: tuple[int, int], end: int) -> tuple[int, int] | None:
    """Input rows [from, to) within 0 to `end` that outputs read; None if they read padding alone."""
    # the first and last output that read more than padding
    first = max(outputs[0], (along.padding - along.kernel) // along.stride + 1)
    last = min(outputs[1] - 1, (end - 1 + along.padding) // along.stride)
    if first > last:
        return None
    start, stop = along.inputs_of((first, last + 1))
    return max(start, 0), min(stop, end)


def outputs_reading(along: Window, inputs: tuple[int, int], end: int) -> tuple[int, int] | None:
    """Outputs [from, to) within 0 to `end` that read any of the input rows; None if none does."""
    start, until = along.outputs_of(inputs)
    first, stop = max(start, 0), min(until, end)
    return (first, stop) if first < stop else None


def _taken(n: int, parts: int, needed: Iterable[tuple[int, int] | None]) -> tuple[int, int]:
    """(the most of n rows taken from a neighbour, a halo longer than the neighbour or 0)."""
    most = 0
    small, larger = divmod(n, parts)
    for index, rows_needed in enumerate(needed):
        if rows_needed is None:
            continue
        first, stop = part_range(n, parts, index)
        above, below = first - rows_needed[0], rows_needed[1] - stop
        for rows, other in ((above, index - 1), (below, index + 1)):
            if rows > 0 and rows > small + (other < larger):
                return most, rows
            most = max(most, rows)
    return most, 0


def why_whole(shape: LayerShape, grid: tuple[int, ...]) -> str:
    """Why a layer cannot be cut into this grid of parts; "" if it can."""
    if not is_cut(shape):
        what = f"a {shape.kind} layer" if shape.operator is None else shape.operator.name
        return f"{what} needs the whole image"
    if len(shape.output_shape) <= len(grid):
        return f"it has {len(shape.output_shape) - 1} spatial dimensions"
    for dimension, parts in enumerate(grid):
        reason = why_not_along(shape, dimension, parts)
        if reason:
            return reason
    return ""


def why_not_along(shape: LayerShape, dimension: int, parts: int) -> str:
    """Why one dimension cannot be cut into so many parts; "" if it can."""
    return why_not(axis(shape, dimension), dimension, parts)


@lru_cache(maxsize=1 << 14)
def why_not(of: Axis, dimension: int, parts: int) -> str:
    """`why_not_along` of an axis."""
    kind, along, length, output = of
    beyond = along.inputs_of((0, output))[1] > length + along.padding
    if kind == "avg_pool" and beyond and parts > 1:
        return "an average over a window cut off by ceil_mode has another divisor"
    fault = _halo(along, length, output, parts)[1]
    return _named(fault, dimension, length, parts) if fault else ""


@once
def first_whole_layer(model: ModelSpec, grid: tuple[int, ...]) -> int:
    """Index of the first layer that cannot be cut so; it and all later layers stay whole.

    Gradients of a split layer are added up over the parts, those of a whole one are not: a layer that
    shares weights stays whole.
    """
    whole = (index for index, axes in _cuttable(model) if _is_whole(axes, grid))
    return min(next(whole, len(model.layers)), _first_tied(model))


@once
def _first_tied(model: ModelSpec) -> int:
    tied = (n for n, layer in enumerate(model.layers) if layer.name in model.tied_layers)
    return next(tied, len(model.layers))


@once
def _cuttable(model: ModelSpec) -> list[tuple[int, tuple[Axis, ...]]]:
    """The first layer of each distinct set of axes, which are () if it is always whole."""
    distinct: dict[tuple[Axis, ...], int] = {}
    for index in sorted(set(model.alike)):
        distinct.setdefault(axes_of(model.layers[index].shape), index)
    return [(index, axes) for axes, index in distinct.items()]


def axes_of(shape: LayerShape) -> tuple[Axis, ...]:
    """The spatial dimensions along which a layer may be cut; () if it needs the whole image."""
    if not is_cut(shape):
        return ()
    return tuple([axis(shape, d) for d in range(len(shape.output_shape) - 1)])


def _is_whole(axes: tuple[Axis, ...], grid: tuple[int, ...]) -> bool:
    """Whether a layer of these axes cannot be cut so."""
    return len(axes) < len(grid) or any(
        why_not(of, d, parts) for d, (of, parts) in enumerate(zip(axes, grid, strict=False))
    )


def part_sizes(shape: LayerShape, grid: tuple[int, ...]) -> list[list[int]]:
    """Output lengths of the parts along each cut dimension."""
    return [split_sizes(shape.output_shape[1 + d], parts) for d, parts in enumerate(grid)]


def spatial_part(shape: LayerShape, lengths: tuple[int, ...]) -> LayerShape:
    """The part of a layer whose output has `lengths` along the first spatial dimensions.

    In a cut dimension a window runs without padding, on (length - 1) stride + kernel rows; a dimension
    of full length stays as it was.
    """
    whole = shape.output_shape
    cut = [d for d, length in enumerate(lengths) if length != whole[1 + d]]
    output, inputs = list(whole), [list(x) for x in shape.input_shapes]
    attributes = dict(shape.attributes)
    padding = attributes.get("padding", ())
    assert isinstance(padding, tuple)
    for d in cut:
        along = window(shape, d)
        output[1 + d] = lengths[d]
        for x in inputs:
            x[1 + d] = (lengths[d] - 1) * along.stride + along.kernel
    if padding:
        attributes["padding"] = tuple(0 if d in cut else n for d, n in enumerate(padding))
    found = resized(shape, tuple(map(tuple, inputs)), tuple(output))
    return found.model_copy(update={"attributes": attributes})


def resized(shape: LayerShape, inputs: tuple[Shape, ...], output: Shape) -> LayerShape:
    """A layer on inputs of other lengths; what an operator keeps grows with its output."""
    update: dict[str, object] = {"input_shapes": inputs, "output_shape": output}
    if shape.operator is not None:
        share = math.prod(output) / math.prod(shape.output_shape)
        update["operator"] = shape.operator.on_share(share)
    return shape.model_copy(update=update)
