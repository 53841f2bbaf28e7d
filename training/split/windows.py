"""The rows that a part takes, gives and runs on along one dimension. Pure geometry.

The rules are those of oracle/layout/spatial.py, so that what is sent is what oracle/layout/traffic.py
counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from calib.oracle.layout.partitions import Range
from calib.oracle.layout.spatial import Window, outputs_reading, part_range, rows_read

# [from, to) of all rows that a part runs on, and of those among them that are in the image
Needs = Callable[[int], tuple[Range, Range | None]]


class Reach(NamedTuple):
    """What a part that `owns` rows runs on along a dimension of a tensor.

    `above` and `below` rows come from the part before and the part after, to which `to_above` first and
    `to_below` last rows of its own go. Of above + owned + below the rows `keep` = [from, to) are used,
    between `before` and `after` rows of filling (beyond the image).
    """

    dimension: int
    owns: int
    above: int
    below: int
    to_above: int
    to_below: int
    keep: Range
    before: int
    after: int

    @property
    def sends(self) -> bool:
        """Whether there is a message to or from a neighbour."""
        return any((self.above, self.below, self.to_above, self.to_below))

    @property
    def joins(self) -> bool:
        """Whether the part runs on more rows than it owns."""
        return any((self.above, self.below, self.before, self.after))

    @property
    def is_nothing(self) -> bool:
        """Whether the part runs on exactly what it owns, which no neighbour needs."""
        return not self.sends and not self.joins and self.keep == (0, self.owns)


def reach(dimension: int, length: int, parts: int, index: int, needs: Needs) -> Reach:
    """The reach of part `index` of `parts` of `length` rows, where `needs` says what each runs on."""

    def taken(part: int) -> tuple[int, int]:
        if not 0 <= part < parts:
            return 0, 0
        first, stop = part_range(length, parts, part)
        _, rows = needs(part)
        return (max(0, first - rows[0]), max(0, rows[1] - stop)) if rows else (0, 0)

    first, stop = part_range(length, parts, index)
    above, below = taken(index)
    low, high = first - above, stop + below
    start, end = needs(index)[0]
    keep = min(max(start, low), high), min(max(end, low), high)
    return Reach(
        dimension,
        stop - first,
        above,
        below,
        to_above=taken(index - 1)[1],
        to_below=taken(index + 1)[0],
        keep=(keep[0] - low, keep[1] - low),
        before=max(0, min(end, low) - start),
        after=max(0, end - max(start, high)),
    )


def reach_of_x(
    dimension: int, along: Window, length: int, output: int, parts: int, index: int
) -> Reach:
    """The reach in x of a part of y: Window.inputs_of."""

    def needs(part: int) -> tuple[Range, Range | None]:
        outputs = part_range(output, parts, part)
        return along.inputs_of(outputs), rows_read(along, outputs, length)

    return reach(dimension, length, parts, index, needs)


def reach_of_dy(
    dimension: int, along: Window, length: int, output: int, parts: int, index: int
) -> Reach:
    """The reach in dL/dy of a part of x: Window.outputs_of, within the image."""

    def needs(part: int) -> tuple[Range, Range | None]:
        rows = outputs_reading(along, part_range(length, parts, part), output)
        first, _ = part_range(output, parts, part)
        return rows or (first, first), rows

    return reach(dimension, output, parts, index, needs)


class Transposed(NamedTuple):
    """The transposed convolution from rows of dL/dy to the rows of dL/dx that a part owns.

    With `padding` it makes `size` rows, of which `front` and `back` are cut off (where negative, added
    as zeros, which no output reads).
    """

    padding: int
    size: int
    front: int
    back: int


def transposed(along: Window, outputs: Range, rows: Range) -> Transposed:
    """From dL/dy of `outputs` (at least one) to `rows` of dL/dx; padding cuts off what it can."""
    size = (outputs[1] - 1 - outputs[0]) * along.stride + along.kernel
    first = outputs[0] * along.stride - along.padding
    front, back = rows[0] - first, first + size - rows[1]
    padding = max(0, min(front, back))
    # the input also has the rows that a stride steps over at the end
    more = min(max(0, padding - back), along.stride - 1)
    return Transposed(padding, size - 2 * padding + more, front - padding, back - padding + more)
