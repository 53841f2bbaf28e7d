"""Boxes of all devices and configurations as arrays: who owns and who needs which part of a tensor.

The boxes are those of oracle/layout/partitions.py. A box is a product of ranges, each of which depends
on one coordinate of its part alone, so a few ranges describe all boxes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from calib.foundation.arrays import Integers
from calib.foundation.layers import LayerShape, Shape
from calib.oracle.layout.partitions import Box, Configuration, needed, owned

# (first of each range, end of each) along one dimension of a tensor
Ranges = tuple[Integers, Integers]


@dataclass(frozen=True)
class BoxLayout:
    """Boxes of a tensor of `lengths` (samples first) by configuration, dimension, device.

    `lo`, `hi`: [configurations, dimensions, devices]; an idle device has an empty box. Along dimension d
    the parts of configuration c have `ranges[c][d]`, of which device k has number `index[c, d, k]`.
    `times[c]`: how many parts share a box.
    """

    lengths: Shape
    lo: Integers
    hi: Integers
    ranges: tuple[tuple[Ranges, ...], ...]
    index: Integers
    times: NDArray[np.float64]

    @property
    def key(self) -> bytes:
        """Equal for equal boxes."""
        digest = sha256(repr((self.lengths, self.lo.shape)).encode())
        digest.update(self.lo.tobytes())
        digest.update(self.hi.tobytes())
        return digest.digest()


def owns(shape: LayerShape, of: Sequence[Configuration], batch: int, devices: int) -> BoxLayout:
    """What each device has of a layer's output."""

    def box(one: Configuration, part: int) -> Box:
        return owned(shape, one, one.sample, part)

    return _layout((batch, *shape.output_shape), of, devices, box)


def needs(
    shape: LayerShape, which: int, of: Sequence[Configuration], batch: int, devices: int
) -> BoxLayout:
    """What each device reads of input number `which`."""

    def box(one: Configuration, part: int) -> Box:
        return needed(shape, one, one.sample, part, which)

    return _layout((batch, *shape.input_shapes[which]), of, devices, box)


def _layout(
    lengths: Shape,
    of: Sequence[Configuration],
    devices: int,
    box: Callable[[Configuration, int], Box],
) -> BoxLayout:
    size = (len(of), len(lengths), devices)
    lo, hi, index = (np.zeros(size, np.int64) for _ in range(3))
    times = np.ones(len(of))
    all_ranges = []
    for c, one in enumerate(of):
        ranges, coordinates, times[c] = _ranges(lengths, one, box)
        for d, (first, end) in enumerate(ranges):
            at = coordinates[d]
            lo[c, d, : one.parts], hi[c, d, : one.parts] = first[at], end[at]
            index[c, d, : one.parts] = at
        all_ranges.append(ranges)
    return BoxLayout(lengths, lo, hi, tuple(all_ranges), index, times)


def _ranges(
    lengths: Shape, of: Configuration, box: Callable[[Configuration, int], Box]
) -> tuple[tuple[Ranges, ...], list[Integers], float]:
    """(ranges along each dimension, the number of each part's, how many parts share a box)."""
    sizes = (of.sample, of.channel, *of.spatial, of.input)
    places = np.unravel_index(np.arange(of.parts), sizes)
    each = lengths[0] // of.sample
    starts = np.arange(of.sample, dtype=np.int64) * each
    first = box(of, 0)
    ranges: list[Ranges] = [(starts, starts + each)]
    ranges += [(np.array([a]), np.array([b])) for a, b in first[1:]]
    numbers: list[Integers] = [places[0].astype(np.int64)]
    numbers += [np.zeros(of.parts, np.int64) for _ in first[1:]]
    # channel and input together, as ownership depends on both; then each spatial degree
    joint = places[1] * of.input + places[-1]
    times = of.parts / of.sample
    for n, along in [(of.channel * of.input, joint), *zip(of.spatial, places[2:-1], strict=True)]:
        if n == 1:
            continue
        parts = [int(np.argmax(along == k)) for k in range(n)]  # the first of each coordinate
        boxes = [box(of, part) for part in parts]
        changes = [d for d in range(1, len(first)) if any(other[d] != first[d] for other in boxes)]
        for d in changes:
            ranges[d] = (np.array([b[d][0] for b in boxes]), np.array([b[d][1] for b in boxes]))
            numbers[d] = along.astype(np.int64)
        if changes:
            times /= n
    return tuple(ranges), numbers, times
