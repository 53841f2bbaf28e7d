"""Layer-wise configurations: the part of each tensor that a device owns and needs.

A configuration cuts a layer's output into equal parts along sample, channel and the spatial dimensions
(Jia et al., "Exploring Hidden Dimensions", section 4). Its parts are on devices 0, 1, ... in the order
of their coordinates (sample slowest, then channel, spatial, input); other devices are idle. `input` is
ParaDL's channel parallelism: parts of the input channels give partial sums of the same output, which
are reduce-scattered along the channels. Every item of a tensor has one owner; several parts may read
it. Searches price what is sent, training sends it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from calib.foundation.layers import LayerShape, Shape
from calib.oracle.layout.spatial import (
    POINTWISE,
    WINDOWED,
    part_range,
    rows_read,
    spatial_part,
    why_not_along,
    window,
)

Range = tuple[int, int]
Box = tuple[Range, ...]  # [from, to) of samples, then of every dimension of a sample
SPATIAL_NAMES = ("height", "width", "depth")
# cut by samples only
WHOLE_KINDS = ("softmax", "cross_entropy", "mse", "layer_norm", "operator")


@dataclass(frozen=True, order=True)
class Configuration:
    """Degrees of one layer; `spatial` along height, width, depth (1 if missing)."""

    sample: int = 1
    channel: int = 1
    spatial: tuple[int, ...] = ()
    input: int = 1

    @property
    def parts(self) -> int:
        """The number of busy devices."""
        return self.sample * self.channel * math.prod(self.spatial) * self.input

    @property
    def degrees(self) -> dict[str, int]:
        """Degrees over 1, by the name of the dimension."""
        named = {
            "sample": self.sample,
            "channel": self.channel,
            "input": self.input,
            **dict(zip(SPATIAL_NAMES, self.spatial, strict=False)),
        }
        return {name: degree for name, degree in named.items() if degree > 1}

    @classmethod
    def of(cls, degrees: dict[str, int]) -> Configuration:
        """The configuration of these degrees."""
        spatial = tuple(degrees.get(name, 1) for name in SPATIAL_NAMES)
        while spatial and spatial[-1] == 1:
            spatial = spatial[:-1]
        return cls(
            degrees.get("sample", 1), degrees.get("channel", 1), spatial, degrees.get("input", 1)
        )

    def __str__(self) -> str:
        return " ".join(f"{name}={n}" for name, n in self.degrees.items()) or "one device"

    def place(self, part: int) -> PartPlace:
        """The coordinates of a part."""
        part, of_input = divmod(part, self.input)
        spatial: list[int] = []
        for degree in reversed(self.spatial):
            part, at = divmod(part, degree)
            spatial.insert(0, at)
        sample, channel = divmod(part, self.channel)
        return PartPlace(sample, channel, tuple(spatial), of_input)


class PartPlace(NamedTuple):
    """Coordinates of a part of a Configuration."""

    sample: int
    channel: int
    spatial: tuple[int, ...]
    input: int


def channel_axis(shape: LayerShape) -> int:
    """The dimension of a sample's output that `channel` cuts: the last of linear and embedding."""
    return len(shape.output_shape) - 1 if shape.kind in ("linear", "embedding") else 0


def why_impossible(shape: LayerShape, of: Configuration, batch: int) -> str:
    """Why a layer cannot be cut so; "" if it can."""
    if batch % of.sample:
        return f"{of.sample} does not divide the batch of {batch} samples"
    if shape.kind in WHOLE_KINDS and of.parts > of.sample:
        what = f"a {shape.kind} layer" if shape.operator is None else shape.operator.name
        return f"{what} is cut by samples only"
    if of.input > 1 and shape.kind not in ("conv", "linear"):
        return f"a {shape.kind} layer has no terms to sum"
    why = _why_no_channels(shape, of) if of.channel * of.input > 1 else ""
    return why or (_why_not_in_space(shape, of) if math.prod(of.spatial) > 1 else "")


def _why_not_in_space(shape: LayerShape, of: Configuration) -> str:
    output = shape.output_shape
    if shape.kind not in (*WINDOWED, *POINTWISE):
        return f"a {shape.kind} layer is not cut in space"
    if len(of.spatial) >= max(1, len(output)):
        return f"it has {len(output) - 1} spatial dimensions"
    for d, parts in enumerate(of.spatial):
        if output[1 + d] % parts:
            return f"{parts} does not divide its {SPATIAL_NAMES[d]} of {output[1 + d]}"
        why = why_not_along(shape, d, parts) if parts > 1 else ""
        if why:
            return why
    return ""


def _why_no_channels(shape: LayerShape, of: Configuration) -> str:
    if shape.kind == "conv" and shape.attributes.get("groups", 1) != 1:
        return "a grouped convolution is not cut by channels"
    if not shape.output_shape:
        return "its output is a number"
    channels = shape.output_shape[channel_axis(shape)]
    if shape.kind == "flatten":  # whole channels of what it flattens
        channels = shape.input_shapes[0][0]
    if channels % (of.channel * of.input):
        return f"{of.channel * of.input} does not divide its {channels} output channels"
    inputs = shape.parameter_shapes[0][1] if of.input > 1 else 1
    if inputs % of.input:
        return f"{of.input} does not divide its {inputs} input channels"
    return ""


def computed(shape: LayerShape, of: Configuration, batch: int, part: int) -> Box:
    """The output that a part computes; with `input` > 1 partial sums, which `owned` divides.

    Raises IndexError for a part that the configuration does not have.
    """
    return _output(shape, of, batch, part, of.channel, of.place(part).channel)


def owned(shape: LayerShape, of: Configuration, batch: int, part: int) -> Box:
    """The output that a part owns in the end; these boxes are disjoint and cover the output."""
    place = of.place(part)
    return _output(
        shape, of, batch, part, of.channel * of.input, place.channel * of.input + place.input
    )


def _output(
    shape: LayerShape, of: Configuration, batch: int, part: int, channels: int, channel: int
) -> Box:
    if not 0 <= part < of.parts:
        raise IndexError(f"{of} has no part {part}")
    place, whole = of.place(part), shape.output_shape
    ranges = [(0, n) for n in whole]
    if channels > 1:
        axis = channel_axis(shape)
        ranges[axis] = part_range(whole[axis], channels, channel)
    for d, (parts, at) in enumerate(zip(of.spatial, place.spatial, strict=True)):
        if parts > 1:
            ranges[1 + d] = part_range(whole[1 + d], parts, at)
    return (part_range(batch, of.sample, place.sample), *ranges)


def needed(shape: LayerShape, of: Configuration, batch: int, part: int, which: int = 0) -> Box:
    """The box of input number `which` that a part reads in the forward; empty if it reads nothing.

    Its gradient of that input has the same box; where boxes of several parts overlap, gradients add up.
    """
    output, source = computed(shape, of, batch, part), shape.input_shapes[which]
    samples, kind = output[0], shape.kind
    ranges: list[Range] = [(0, n) for n in source]
    if kind in (*WINDOWED, *POINTWISE):
        for d in range(1, len(source)):
            rows = rows_read(window(shape, d - 1), output[1 + d], source[d])
            ranges[d] = rows or (0, 0)
    if kind in ("conv", "linear"):
        if of.input > 1:
            axis = len(source) - 1 if kind == "linear" else 0
            ranges[axis] = part_range(source[axis], of.input, of.place(part).input)
        if kind == "linear":
            ranges[:-1] = output[1:-1]
    elif kind == "concat":
        before = sum(shape.input_shapes[n][0] for n in range(which))
        first, stop = (max(0, min(source[0], end - before)) for end in output[1])
        ranges[0] = (first, stop)
    elif kind == "flatten":
        each = math.prod(source[1:])
        ranges[0] = (output[1][0] // each, output[1][1] // each)
    elif kind == "embedding":
        ranges = list(output[1:-1])
    elif kind not in WHOLE_KINDS and source:
        ranges[0] = output[1]
    return (samples, *ranges)


def items(box: Box) -> int:
    """Number of items of a box."""
    return math.prod(b - a for a, b in box)


def overlap(one: Box, other: Box) -> Box:
    """The intersection of two boxes, with an empty range if they are disjoint."""
    return tuple(
        [(max(a, c), max(min(b, d), a, c)) for (a, b), (c, d) in zip(one, other, strict=True)]
    )


class Move(NamedTuple):
    """A box that device `source` sends to `target`; nothing travels if they are the same."""

    source: int
    target: int
    box: Box


def moves(owners: Sequence[Box], readers: Sequence[Box]) -> Iterator[Move]:
    """The non-empty boxes that each reader needs from each owner, reader by reader."""
    for target, need in enumerate(readers):
        for source, own in enumerate(owners):
            common = overlap(own, need)
            if items(common):
                yield Move(source, target, common)


def part_shape(shape: LayerShape, of: Configuration) -> LayerShape:
    """The layer as the largest part runs it: the shape whose time is looked up."""
    part = shape
    if math.prod(of.spatial) > 1:
        lengths = tuple(n // d for n, d in zip(shape.output_shape[1:], of.spatial, strict=False))
        part = spatial_part(shape, lengths)
    if of.channel * of.input == 1:
        return part
    return _fewer_channels(part, of)


def _fewer_channels(shape: LayerShape, of: Configuration) -> LayerShape:
    def cut(sizes: Shape, axis: int, degree: int) -> Shape:
        return (*sizes[:axis], sizes[axis] // degree, *sizes[axis + 1 :])

    axis, inputs, parameters = channel_axis(shape), shape.input_shapes, shape.parameter_shapes
    output = cut(shape.output_shape, axis, of.channel)
    if shape.kind in ("conv", "linear"):
        weight = cut(cut(parameters[0], 0, of.channel), 1, of.input)
        parameters = (weight, *(cut(bias, 0, of.channel) for bias in parameters[1:]))
        if of.input > 1:  # partial sums have no bias
            parameters = parameters[:1]
            at = len(inputs[0]) - 1 if shape.kind == "linear" else 0
            inputs = (cut(inputs[0], at, of.input),)
    elif shape.kind == "embedding":
        parameters = (cut(parameters[0], 1, of.channel),)
    else:
        inputs = tuple(cut(x, 0, of.channel) for x in inputs)
        parameters = tuple(cut(w, 0, of.channel) for w in parameters)
    return shape.model_copy(
        update={"output_shape": output, "input_shapes": inputs, "parameter_shapes": parameters}
    )
