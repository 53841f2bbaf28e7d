"""Grids of image parts: which are possible, the most parts, and the best grid.

formulas.md, "PE limits": p <= min over split layers of prod(spatial dims), and every part at least as
long as the halo. The dimensions are cut independently (oracle/layout/spatial.py), so their limits
multiply.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate

from calib.foundation.layers import LayerShape
from calib.oracle.layout.spatial import Axis, axes_of, first_whole_layer, why_not, why_whole
from calib.oracle.model.layer import Layer
from calib.oracle.model.spec import ModelSpec
from calib.oracle.once import once

# a grid of fewer dimensions, which sends fewer messages, may have this much more work: a convention
SIMPLER = 0.1


def must_split(model: ModelSpec, split_until: str = "") -> tuple[Layer, ...]:
    """The layers that must be cut: all up to `split_until`, or the first alone."""
    if split_until:
        for index, layer in enumerate(model.layers):
            if layer.name == split_until:
                return model.layers[: index + 1]
    return model.layers[:1]


def why_no_grid(model: ModelSpec, grid: tuple[int, ...], split_until: str = "") -> list[str]:
    """Why a layer that must be cut cannot be cut so, with the rank limit; empty if all can."""
    if math.prod(grid) == 1:
        return []
    needed = must_split(model, split_until)
    for layer in needed:
        reason = why_whole(layer.shape, grid)
        if layer.name in model.tied_layers:
            reason = "it shares weights with another layer"
        if reason:
            limits = most_parts(layer.shape)
            most = f"at most {' x '.join(map(str, limits))} ranks" if limits else "it needs images"
            which = "the first layer" if layer is needed[0] else "a layer before the split's end"
            return [
                f"spatial parallelism of {model.name} on {' x '.join(map(str, grid))} ranks: {which}, "
                f"{layer.name}, cannot be split: {reason}; {most}"
            ]
    return []


def most_parts(shape: LayerShape) -> list[int]:
    """The most parts along each spatial dimension; empty if the layer has no image."""
    return [_most_along(axis, d) for d, axis in enumerate(axes_of(shape))]


@lru_cache(maxsize=1 << 10)
def _most_along(axis: Axis, dimension: int) -> int:
    """The most parts along one dimension."""
    return next(
        parts
        for parts in range(axis.output, 0, -1)
        if parts == 1 or not why_not(axis, dimension, parts)
    )


@once
def most_cuts(model: ModelSpec, split_until: str = "") -> tuple[tuple[int, str], ...]:
    """By dimension: the most parts of the layers that must be cut, and the layer that limits them.

    Every part has at least one row and is as long as its halo, so p <= the product of these, which is
    at most the smallest product of spatial dimensions. Empty if a layer needs the whole image.
    """
    needed = must_split(model, split_until)
    cuts = [(most_parts(layer.shape), layer) for layer in needed]
    dimensions = min(len(parts) for parts, _ in cuts)
    return tuple(
        _most_of_all(needed, d, *min(((parts[d], of) for parts, of in cuts), key=lambda c: c[0]))
        for d in range(dimensions)
    )


def _most_of_all(
    layers: tuple[Layer, ...], dimension: int, most: int, narrow: Layer
) -> tuple[int, str]:
    """The most parts, at most `most`, that all layers can be cut into, and the layer that limits them.

    Not monotonic: parts of unequal length have longer halos, so a layer may allow more parts and not
    fewer.
    """
    refusing = narrow
    axes = [(axes_of(layer.shape)[dimension], layer) for layer in layers]
    for parts in range(most, 1, -1):
        found = next((x for axis, x in axes if why_not(axis, dimension, parts)), None)
        if found is None:
            return parts, refusing.name
        refusing = found
    return min(most, 1), refusing.name


@once
def best_grid(model: ModelSpec, parts: int, split_until: str = "") -> tuple[int, ...]:
    """The grid of so many parts with the least work per rank; of nearly equal ones the simplest.

    (parts,) along the height, unless its split ends so early that another grid saves more than SIMPLER
    of the work; then the one with the fewest dimensions, the tallest first. If no grid can cut what must
    be cut, (parts,): `why_no_grid` then gives the reason.
    """
    needed = [layer.shape for layer in must_split(model, split_until)]
    sides = needed[0].output_shape[1:]
    most = [cut for cut, _ in most_cuts(model, split_until)]
    even = len(set(sides)) <= 1  # then a grid and its transpose are equivalent
    grids = [
        grid
        for n in range(1, max(1, len(sides)) + 1)
        for grid in _grids(parts, n, even, most)
        if not any(why_whole(shape, grid) for shape in needed)
    ] or [(parts,)]
    work = [_work(model, grid) for grid in grids] if len(grids) > 1 else [0.0]
    enough = min(work) * (1 + SIMPLER)
    return next(grid for grid, of in zip(grids, work, strict=True) if of <= enough)


def _work(model: ModelSpec, grid: tuple[int, ...]) -> float:
    """A rank's forward FLOPs per sample: its part of the split layers, and all of the others."""
    until = _flops_before(model)
    split = until[first_whole_layer(model, grid)]
    return split / math.prod(grid) + until[-1] - split


@once
def _flops_before(model: ModelSpec) -> list[float]:
    """Forward FLOPs of the layers before each, and of all."""
    return list(accumulate((x.shape.forward_flops(1) for x in model.layers), initial=0.0))


def _grids(
    parts: int, dimensions: int, falling: bool, most: Sequence[int]
) -> Iterator[tuple[int, ...]]:
    """Grids of `parts` in so many dimensions, tallest first; the last dimension is always cut.

    No dimension exceeds its `most`. `falling`: no dimension exceeds the one before, so all are cut.
    """
    if len(most) < dimensions or parts > math.prod(most[:dimensions]):
        return
    if dimensions == 1:
        if parts <= most[0]:
            yield (parts,)
        return
    for rows in range(min(parts // 2, most[0]), 1 if falling else 0, -1):
        if parts % rows == 0:
            for rest in _grids(parts // rows, dimensions - 1, falling, most[1:]):
                if rest[-1] > 1 and (rest[0] <= rows or not falling):
                    yield (rows, *rest)
