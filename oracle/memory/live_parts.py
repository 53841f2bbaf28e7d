"""Live bytes of layers that ranks share: the copies made by joining, cutting and summing.

The operations are those of training/split/: shared_layers.py and moves.py (filter and channel),
regions.py (tensor), sequence.py, and spatial_layers.py, halo.py and gather.py (spatial), each with what
autograd keeps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

from calib.foundation.division import Division
from calib.foundation.layers import INDEX_BYTES, ITEM_TYPES, LayerShape, Shape
from calib.oracle.layout.regions import regions
from calib.oracle.layout.shards import biases, largest_parts, split_places
from calib.oracle.layout.spatial import (
    WINDOWED,
    Axis,
    axis,
    outputs_reading,
    part_range,
    resized,
    rows_read,
)
from calib.oracle.layout.units import units_of
from calib.oracle.memory.live_layers import cast, cast_weights, line, run_layer, weight_bytes
from calib.oracle.memory.liveness import NOTHING, Back, ByteLine, HeldTensor, Tape
from calib.oracle.model.graph import INPUT
from calib.oracle.model.layer import Layer
from calib.oracle.model.spec import ModelSpec


class RankLayers(Protocol):
    """A rank's layers, by index in the model."""

    landing: ByteLine  # the receive buffer that all allgathers share
    given: ByteLine  # the rank's part of the model's input
    loss: LayerShape  # of what the rank has
    # what was made for several layers, until the last of them has run
    shared: dict[object, HeldTensor]

    def run(self, tape: Tape, index: int, inputs: Sequence[HeldTensor]) -> HeldTensor:
        """The output of a layer, held once."""

    def read(self, tape: Tape, index: int, name: str, value: HeldTensor) -> HeldTensor:
        """The output of `name` as layer `index` reads it: that tensor, or a new one held once."""


def input_bytes(model: ModelSpec) -> int:
    """Bytes of an item of the model's input: indices are as wide as torch looks them up."""
    for layer in model.layers:
        for number, name in enumerate(layer.inputs):
            if name == INPUT and layer.shape.kind == "embedding":
                return INDEX_BYTES
            if name == INPUT and layer.shape.operator is not None:
                return ITEM_TYPES.get(layer.shape.operator.type(number), model.items.weight_bytes)
    return model.items.weight_bytes


def named_weights(layer: Layer) -> tuple[object, ...]:
    """A name for each weight of a layer that shares some: the layer that has it first, and its shape."""
    owners = [
        layer.shared_parameters.get(at, layer.name)
        for at in range(len(layer.shape.parameter_shapes))
    ]
    return tuple(zip(owners, layer.shape.parameter_shapes, strict=True))


class WholeLayers:
    """Every layer whole."""

    def __init__(self, model: ModelSpec) -> None:
        self._layers, self._items = model.layers, model.items
        self._owners = {owner for of in model.layers for owner in of.shared_parameters.values()}
        self.landing = NOTHING
        self.given = line(model.input_shape, 1.0, input_bytes(model))
        self.loss = model.layers[-1].shape
        self.shared: dict[object, HeldTensor] = {}

    def shape(self, index: int) -> LayerShape:
        """What a layer's own module runs."""
        return self._layers[index].shape

    def run(self, tape: Tape, index: int, inputs: Sequence[HeldTensor]) -> HeldTensor:
        """Run the layer's own module."""
        layer = self._layers[index]
        if layer.shared_parameters or layer.name in self._owners:
            tape.named = named_weights(layer)
        found = run_layer(tape, self.shape(index), inputs)
        tape.named = ()
        return found

    def read(self, tape: Tape, index: int, name: str, value: HeldTensor) -> HeldTensor:
        """The tensor as it is."""
        return value


class UnitLayers(WholeLayers):
    """Fully sharded: layers whole, and a unit's gradients gone when the last of them is made."""

    def __init__(self, model: ModelSpec) -> None:
        super().__init__(model)
        self._unit_of = units_of(of.name for of in self._layers if of.shape.parameter_shapes)

    def run(self, tape: Tape, index: int, inputs: Sequence[HeldTensor]) -> HeldTensor:
        """Run the layer's own module."""
        tape.unit = self._unit_of.get(self._layers[index].name)
        return super().run(tape, index, inputs)


class SharedLayers(WholeLayers):
    """Filter and channel: some layers with a part of their weights, the others whole."""

    def __init__(self, model: ModelSpec, division: Division) -> None:
        super().__init__(model)
        self._is_filter = division.traits.cuts != "channels"
        self._parts = largest_parts(model, division)
        each = model.items.activation_bytes
        landed = [line(of, 1.0, each) for index in self._parts for of in self._landed(index)]
        self.landing = max(landed, default=NOTHING)

    def _landed(self, index: int) -> list[tuple[int, ...]]:
        """What the layer's allgather receives: y under filter, dL/dx under channel."""
        layer = self._layers[index]
        if self._is_filter:
            return [layer.shape.output_shape]
        return [layer.shape.input_shapes[0]] if layer.needs_input_grad else []

    def run(self, tape: Tape, index: int, inputs: Sequence[HeldTensor]) -> HeldTensor:
        """A part and its communication, or the whole layer."""
        part = self._parts.get(index)
        if part is None:
            return super().run(tape, index, inputs)
        run = _filters if self._is_filter else _channels
        return run(tape, self._layers[index].shape, part, inputs[0])


class RegionLayers(WholeLayers):
    """Tensor: parts of layers on parts of their tensors, but for the sums where a region ends."""

    def __init__(self, model: ModelSpec, division: Division) -> None:
        super().__init__(model)
        self._parts = largest_parts(model, division)
        self._rows = {at for region in regions(model) for at in region.rows}
        # of the layers that begin a region the tensor that they share, with the last of its readers
        columns = sorted(at for region in regions(model) for at in region.columns)
        self._entries = {at: self._layers[at].inputs[0] for at in columns}
        self._last = {name: at for at, name in self._entries.items()}
        self._begins = {at for at in columns if self._layers[at].needs_input_grad}

    def run(self, tape: Tape, index: int, inputs: Sequence[HeldTensor]) -> HeldTensor:
        """A part, with biases added to the sum, or the whole layer."""
        part, name = self._parts.get(index), self._entries.get(index)
        if part is None:
            return super().run(tape, index, inputs)
        if name is None or index not in self._begins:
            y = run_layer(tape, part, inputs)
            ends = index in self._rows and not tape.is_over
            return self._ended(tape, index, y) if ends else y
        if name not in self.shared:  # once for all of them
            self.shared[name] = self._begun(tape, index, inputs[0])
        y = run_layer(tape, part, [self.shared[name]])
        if self._last[name] == index:
            tape.ledger.drop(self.shared.pop(name).tensor)
        return y

    def _begun(self, tape: Tape, index: int, x: HeldTensor) -> HeldTensor:
        """What the first layers of a region share, held once more: x, cast."""
        return _shared(tape, x)

    def _ended(self, tape: Tape, index: int, y: HeldTensor) -> HeldTensor:
        """The sum of the terms y, in the memory of one, with the layer's biases."""
        _sum(tape, y)
        return biased(tape, self._layers[index].shape, y)


def _shared(tape: Tape, x: HeldTensor) -> HeldTensor:
    """x, cast and held once more; in the backward ranks sum its gradients in place."""
    part = cast(tape, x, tape.items.activation_bytes)
    copies = tape.summing(part.item_bytes, part.size)
    if not copies or part.node is None:
        return part
    found = tape.run([part], None, Back((None,), first=copies))
    tape.ledger.drop(part.tensor)
    return found


def _sum(tape: Tape, y: HeldTensor) -> None:
    """Ranks sum their terms y in place, unless a region that runs again has ended."""
    for copy in () if tape.is_over else tape.summing(y.item_bytes, y.size):
        tape.ledger.drop(tape.ledger.make(copy))


def _filters(tape: Tape, whole: LayerShape, part: LayerShape, x: HeldTensor) -> HeldTensor:
    """Join: the part's y is copied into the whole y, and its gradient cut out of the whole one."""
    shared = _shared(tape, x)
    own = run_layer(tape, part, [shared])
    tape.ledger.drop(shared.tensor)
    if tape.is_over:
        return own
    y = tape.run([own], line(whole.output_shape, 1.0, own.item_bytes), Back((own.size,)))
    tape.ledger.drop(own.tensor)
    return y


def _channels(tape: Tape, whole: LayerShape, part: LayerShape, x: HeldTensor) -> HeldTensor:
    """Cut: the part of x is copied and kept; y is summed in place."""
    own = tape.run([x], line(part.input_shapes[0], 1.0, x.item_bytes), Back((x.size,)))
    y = run_layer(tape, part, [own])
    tape.ledger.drop(own.tensor)
    _sum(tape, y)
    return biased(tape, whole, y)


def biased(tape: Tape, whole: LayerShape, y: HeldTensor) -> HeldTensor:
    """A sum with the layer's biases, in its own memory."""
    added = tuple([float(tape.items.weight_bytes * math.prod(of)) for of in biases(whole)])
    if not added:
        return y
    summed = tape.run([y], None, Back((None,), added))
    tape.ledger.drop(y.tensor)
    return summed


class PartRows(NamedTuple):
    """Rows of one part along one dimension: what it owns and runs on, and what is sent.

    x is extended to `runs_on` rows if `joins_x`, dL/dy to `dy` rows if `joins_dy`, which give `dx` rows
    of dL/dx. `halo` rows of x arrive or leave. `alone`: the layer's own module needs no neighbours.
    """

    owns: int
    runs_on: int
    joins_x: bool
    halo: int
    dy: int
    joins_dy: bool
    dx: int
    alone: bool


@lru_cache(maxsize=1 << 12)
def rows_of(of: Axis, parts: int, index: int) -> PartRows:
    """The rows of part `index` of `parts`, by the rules of training/split/windows.py."""
    _, along, length, output = of
    first, stop = part_range(length, parts, index)
    outputs = part_range(output, parts, index)
    start, end = along.inputs_of(outputs)
    taken = _taken(of, parts, index)
    given = sum(
        of_side
        for other, side in ((index - 1, 1), (index + 1, 0))
        if 0 <= other < parts
        for of_side in [_taken(of, parts, other)[side]]
    )
    beyond = max(0, -start) + max(0, end - length)
    reading = outputs_reading(along, (first, stop), output)
    dy, dx, joins_dy = 0, stop - first, False
    if reading is not None:
        dy = reading[1] - reading[0]
        joins_dy = reading[0] < outputs[0] or reading[1] > outputs[1]
        size = (dy - 1) * along.stride + along.kernel
        at = reading[0] * along.stride - along.padding
        front, back = first - at, at + size - stop
        padding = max(0, min(front, back))
        dx = size - 2 * padding + min(max(0, padding - back), along.stride - 1)
    fits = along.padding == 0 and start == first and 0 <= stop - end < along.stride
    return PartRows(
        owns=stop - first,
        runs_on=end - start,
        joins_x=any((*taken, beyond)),
        halo=sum(taken) + given,
        dy=dy,
        joins_dy=joins_dy,
        dx=max(dx, stop - first),
        alone=fits and not any((*taken, given, joins_dy)),
    )


def _taken(of: Axis, parts: int, index: int) -> tuple[int, int]:
    """Rows of x from the previous part and from the next."""
    read = rows_read(of.along, part_range(of.output, parts, index), of.length)
    first, stop = part_range(of.length, parts, index)
    return (max(0, first - read[0]), max(0, read[1] - stop)) if read else (0, 0)


class SpatialLayers(WholeLayers):
    """Spatial: the first layers on part `cell` (in every cut dimension) of an image, others whole."""

    def __init__(self, model: ModelSpec, division: Division, cell: int) -> None:
        super().__init__(model)
        self._until = len(split_places(model, division))
        self._grid = division.cells
        self._at = [min(cell, parts - 1) for parts in division.cells]
        self._place = {layer.name: index for index, layer in enumerate(model.layers)}
        self._input_shape = model.input_shape
        self._known: dict[int, tuple[LayerShape, list[PartRows]]] = {}
        self._alike = model.alike
        self.given = line(self._own(model.input_shape), 1.0, input_bytes(model))

    def _own(self, shape: Shape) -> Shape:
        """This part of a tensor of one sample."""
        lengths = []
        for n, parts, index in zip(shape[1:], self._grid, self._at, strict=False):
            first, stop = part_range(n, parts, index)
            lengths.append(stop - first)
        return (shape[0], *lengths, *shape[1 + len(self._grid) :])

    def run(self, tape: Tape, index: int, inputs: Sequence[HeldTensor]) -> HeldTensor:
        """A part with its halos, or the whole layer."""
        if index >= self._until:
            return super().run(tape, index, inputs)
        shape = self._layers[index].shape
        if shape.kind == "dropout":
            return self._dropout(tape, shape, inputs[0])
        part, rows = self._part(index)
        if not rows or all(of.alone for of in rows):
            return run_layer(tape, part, inputs)
        if shape.kind == "conv":
            return self._convolution(tape, shape, rows, inputs[0])
        return self._pool(tape, part, rows, inputs[0])

    def _part(self, index: int) -> tuple[LayerShape, list[PartRows]]:
        """The shape that a part runs, and its rows along the cut dimensions if it has a window."""
        first = self._alike[index]
        if first not in self._known:
            shape = self._layers[index].shape
            rows = []
            if shape.kind in WINDOWED:
                rows = [
                    rows_of(axis(shape, d), parts, at)
                    for d, (parts, at) in enumerate(zip(self._grid, self._at, strict=True))
                    if parts > 1
                ]
            inputs = tuple([self._own(of) for of in shape.input_shapes])
            if rows and not all(of.alone for of in rows):
                inputs = (self._extended(shape, rows),)
            self._known[first] = resized(shape, inputs, self._own(shape.output_shape)), rows
        return self._known[first]

    def _cut(self) -> list[int]:
        return [1 + d for d, parts in enumerate(self._grid) if parts > 1]

    def _extended(self, shape: LayerShape, rows: list[PartRows]) -> Shape:
        """The shape of x with its halo."""
        found = list(self._own(shape.input_shapes[0]))
        for dimension, of in zip(self._cut(), rows, strict=True):
            found[dimension] = of.runs_on
        return tuple(found)

    def _travels(self, shape: LayerShape, rows: list[PartRows], item_bytes: int) -> ByteLine:
        """Bytes of the rows of x that leave or arrive."""
        own = self._own(shape.input_shapes[0])
        items = math.prod(own)
        halo = sum(items // own[d] * of.halo for d, of in zip(self._cut(), rows, strict=True))
        return ByteLine(item_bytes * halo)

    def _convolution(
        self, tape: Tape, shape: LayerShape, rows: list[PartRows], x: HeldTensor
    ) -> HeldTensor:
        """Keeps x with its halo; the backward holds dL/dy with its halo, and dL/dx."""
        each = self._items.activation_bytes
        y = line(self._own(shape.output_shape), 1.0, each)
        grown, made = list(self._own(shape.output_shape)), list(self._own(shape.input_shapes[0]))
        for dimension, of in zip(self._cut(), rows, strict=True):
            grown[dimension], made[dimension] = of.dy, of.dx
        joined = [line(tuple(grown), 1.0, each)] if any(of.joins_dy for of in rows) else []
        dx = line(tuple(made), 1.0, x.item_bytes)
        first = (*joined, dx) if x.node is not None else ()
        kept, halves = cast_weights(tape, shape)
        back = Back((dx,), weight_bytes(shape, self._items.weight_bytes), first, halves)
        extended = tape.ledger.hold(x.tensor)
        if any(of.joins_x for of in rows):
            travels = tape.ledger.make(self._travels(shape, rows, x.item_bytes))
            tape.ledger.drop(extended)
            extended = tape.ledger.make(line(self._extended(shape, rows), 1.0, each))
            tape.ledger.drop(travels)
        saves = [extended, *kept[:1]]
        output = tape.run([x], y, back, saves=saves, item_bytes=each, saves_late=True)
        tape.ledger.drop(extended)
        return output

    def _pool(
        self, tape: Tape, part: LayerShape, rows: list[PartRows], x: HeldTensor
    ) -> HeldTensor:
        """Runs on x with its halo; the gradient returns rows in place."""
        if not any(of.joins_x for of in rows):
            return run_layer(tape, part, [x])
        travels = ByteLine(x.size.each * sum(of.halo / of.owns for of in rows))
        whole = line(part.input_shapes[0], 1.0, x.item_bytes)
        extended = tape.run([x], whole, Back((None,)), first=[travels])
        y = run_layer(tape, part, [extended])
        tape.ledger.drop(extended.tensor)
        return y

    def _dropout(self, tape: Tape, shape: LayerShape, x: HeldTensor) -> HeldTensor:
        """Draws the mask of the whole image and keeps its product with ones."""
        whole = line(shape.output_shape, 1.0, x.item_bytes)
        ones, mask, product = (tape.ledger.make(whole) for _ in range(3))
        tape.ledger.drop(mask)
        y = tape.run([x], x.size, Back((x.size,)), saves=[product])
        for tensor in (ones, product):
            tape.ledger.drop(tensor)
        return y

    def read(self, tape: Tape, index: int, name: str, value: HeldTensor) -> HeldTensor:
        """Gather a cut tensor that a whole layer reads."""
        place = -1 if name == INPUT else self._place.get(name, self._until)
        if index < self._until or place >= self._until:
            return value
        shape = self._input_shape if place < 0 else self._layers[place].shape.output_shape
        whole = line(shape, 1.0, value.item_bytes)
        if whole == value.size:  # already gathered
            return value
        gathered = tape.run([value], whole, Back((value.size,)), first=[whole])
        tape.ledger.drop(value.tensor)
        return gathered
