"""Cutting images into parts: which rows each rank owns, needs from its neighbours, and runs on.

A part of a convolution or pooling runs without padding in the cut dimensions, on rows that hold the
halo, and zeros (max pooling: -inf) beyond the image. So all parts of equal output length are one
shape. Outputs are cut as evenly as possible, and a layer's input as its producer's output is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate, pairwise

from foundation.errors import InputError
from foundation.layers import LayerShape, split_sizes
from oracle.model import ModelSpec

WINDOWED = ("conv", "max_pool", "avg_pool")
POINTWISE = ("relu", "batch_norm", "add", "concat", "dropout")
DIMENSIONS = ("height", "width", "depth")  # names for messages: first, second, third


@dataclass(frozen=True)
class Window:
    """Kernel, stride and padding of a layer along one dimension; of a pointwise one 1, 1, 0."""

    kernel: int = 1
    stride: int = 1
    padding: int = 0

    def inputs_of(self, outputs: tuple[int, int]) -> tuple[int, int]:
        """The input rows [from, to) that outputs [from, to) read, padding included."""
        first, stop = outputs
        start = first * self.stride - self.padding
        return start, (stop - 1) * self.stride - self.padding + self.kernel

    def outputs_of(self, inputs: tuple[int, int]) -> tuple[int, int]:
        """The outputs [from, to) that read input rows [from, to), were the image endless."""
        first, stop = inputs
        start = -((self.kernel - 1 - first - self.padding) // self.stride)
        return start, (stop - 1 + self.padding) // self.stride + 1


def part_ranges(n: int, parts: int) -> list[tuple[int, int]]:
    """The parts of `split_sizes` as [from, to)."""
    return list(pairwise(accumulate(split_sizes(n, parts), initial=0)))


def window(shape: LayerShape, dimension: int) -> Window:
    """The window of a layer along a spatial dimension (0 is the first after the channels)."""
    if shape.kind not in WINDOWED:
        return Window()
    values = [shape.attributes[name] for name in ("kernel", "stride", "padding")]
    kernel, stride, padding = (v[dimension] if isinstance(v, tuple) else int(v) for v in values)
    return Window(kernel, stride, padding)


def halo_rows(shape: LayerShape, dimension: int, parts: int) -> tuple[int, int]:
    """The most rows that a part takes from one neighbour: of x (forward) and of dL/dy (backward).

    For a convolution of stride 1 that keeps the length both are kernel // 2 (formulas.md); aligned
    pooling takes none. Raises InputError where a part is empty or shorter than the halo.
    """
    along = window(shape, dimension)
    inputs = part_ranges(shape.input_shapes[0][1 + dimension], parts)
    outputs = part_ranges(shape.output_shape[1 + dimension], parts)
    reads = [_read(along, part, inputs[-1][1]) for part in outputs]
    writes = [_readers(along, part, outputs[-1][1]) for part in inputs]
    where = f"its {DIMENSIONS[dimension]} of {inputs[-1][1]} in {parts} parts"
    if inputs[-1][0] == inputs[-1][1] or outputs[-1][0] == outputs[-1][1]:
        raise InputError(f"{where} leaves a part without a row")
    return _taken(inputs, reads, where), _taken(outputs, writes, where)


def _read(along: Window, outputs: tuple[int, int], end: int) -> tuple[int, int] | None:
    """Input rows [from, to) of 0 to `end` that outputs read; None where all is padding."""
    windows = [along.inputs_of((output, output + 1)) for output in range(*outputs)]
    met = [(max(a, 0), min(b, end)) for a, b in windows if max(a, 0) < min(b, end)]
    return (met[0][0], met[-1][1]) if met else None


def _readers(along: Window, inputs: tuple[int, int], end: int) -> tuple[int, int] | None:
    """Outputs [from, to) of 0 to `end` that read some of the input rows; None where none does."""
    first, stop = inputs
    start, until = along.outputs_of(inputs)
    windows = {o: along.inputs_of((o, o + 1)) for o in range(max(start, 0), min(until, end))}
    met = [o for o, (a, b) in windows.items() if a < stop and first < b]
    return (met[0], met[-1] + 1) if met else None


def _taken(owned: list[tuple[int, int]], needed: list[tuple[int, int] | None], where: str) -> int:
    """The most rows that a part takes from one neighbour. Raises InputError."""
    most = 0
    for index, ((first, stop), rows_needed) in enumerate(zip(owned, needed, strict=True)):
        if rows_needed is None:
            continue
        above, below = first - rows_needed[0], rows_needed[1] - stop
        for rows, other in ((above, index - 1), (below, index + 1)):
            if rows > 0 and rows > owned[other][1] - owned[other][0]:
                raise InputError(f"{where} is shorter than the halo of {rows}")
            most = max(most, rows)
    return most


def why_whole(shape: LayerShape, grid: tuple[int, ...]) -> str:
    """Why a layer cannot be cut into this grid of parts; nothing where it can."""
    if shape.kind not in (*WINDOWED, *POINTWISE):
        return f"a {shape.kind} layer needs the whole image"
    if len(shape.output_shape) <= len(grid):
        return f"it has {len(shape.output_shape) - 1} spatial dimensions"
    for dimension, parts in enumerate(grid):
        reason = _why_not(shape, dimension, parts)
        if reason:
            return reason
    return ""


def _why_not(shape: LayerShape, dimension: int, parts: int) -> str:
    """Why one dimension cannot be cut into so many parts; nothing where it can."""
    along = window(shape, dimension)
    length, output = shape.input_shapes[0][1 + dimension], shape.output_shape[1 + dimension]
    beyond = along.inputs_of((0, output))[1] > length + along.padding
    if shape.kind == "avg_pool" and beyond and parts > 1:
        return "an average over a window cut off by ceil_mode has another divisor"
    try:
        halo_rows(shape, dimension, parts)
    except InputError as error:
        return str(error)
    return ""


def first_whole_layer(model: ModelSpec, grid: tuple[int, ...]) -> int:
    """Index of the first layer that cannot be cut so: it and all after it are whole on every PE."""
    for index, layer in enumerate(model.layers):
        if why_whole(layer.shape, grid):
            return index
    return len(model.layers)


def require_grid(model: ModelSpec, grid: tuple[int, ...]) -> None:
    """Raise InputError with the PE limit where not even the first layer can be cut so."""
    if math.prod(grid) == 1:
        return
    first = model.layers[0]
    reason = why_whole(first.shape, grid)
    if reason:
        limits = _most_parts(first.shape)
        most = f"at most {' x '.join(map(str, limits))} PEs" if limits else "it needs images"
        raise InputError(
            f"spatial parallelism of {model.name} on {' x '.join(map(str, grid))} PEs: the first "
            f"layer, {first.name}, cannot be split: {reason}; {most}"
        )


def _most_parts(shape: LayerShape) -> list[int]:
    """The most parts that the first one or two dimensions can each be cut into."""
    dimensions = min(2, len(shape.output_shape) - 1)
    if shape.kind not in (*WINDOWED, *POINTWISE):
        return []
    return [
        max(parts for parts in range(1, shape.output_shape[1 + dimension] + 1)
            if parts == 1 or not _why_not(shape, dimension, parts))
        for dimension in range(dimensions)
    ]  # fmt: skip


def best_grid(model: ModelSpec, parts: int) -> tuple[int, ...]:
    """(parts,) where the height can be cut so, else the tallest (rows, columns) that is possible.

    Where none is, (parts,): `require_grid` then says why.
    """
    first = model.layers[0].shape
    tall = [
        (parts // columns, columns)
        for columns in range(2, math.isqrt(parts) + 1)
        if parts % columns == 0
    ]
    grids: list[tuple[int, ...]] = [(parts,), *tall]
    return next((grid for grid in grids if not why_whole(first, grid)), (parts,))


def part_sizes(shape: LayerShape, grid: tuple[int, ...]) -> list[list[int]]:
    """Output lengths of the parts along each cut dimension."""
    return [split_sizes(shape.output_shape[1 + d], parts) for d, parts in enumerate(grid)]


def spatial_part(shape: LayerShape, lengths: tuple[int, ...]) -> LayerShape:
    """The part of a layer whose output has `lengths` along the first spatial dimensions.

    A window runs without padding there, on (length - 1) stride + kernel rows; a dimension of which
    the part has the whole length is as it was.
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
    return shape.model_copy(
        update={
            "input_shapes": tuple(map(tuple, inputs)),
            "output_shape": tuple(output),
            "attributes": attributes,
        }
    )
