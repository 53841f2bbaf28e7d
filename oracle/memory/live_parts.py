"""What a PE runs of a layer that it shares: the copies that joining, cutting and summing make.

The operations are training/split/shared_layers.py's and training/split/moves.py's (filter and
channel), each with what autograd keeps of it; oracle/memory/live_spatial.py has those of spatial.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from calib.foundation.layers import LayerShape
from calib.oracle.division import Division
from calib.oracle.layout.shards import largest_part, split_flags
from calib.oracle.memory.live_layers import line, run_layer, weight_bytes
from calib.oracle.memory.liveness import NOTHING, Back, Line, Tape, Value
from calib.oracle.model.spec import ModelSpec


class Parts(Protocol):
    """A PE's layers, by their index in the model."""

    landing: Line  # of a buffer that all allgathers share
    given: Line  # the model's input, as the PE has it

    def run(self, tape: Tape, index: int, inputs: Sequence[Value]) -> Value:
        """The output of a layer, held once."""

    def read(self, tape: Tape, index: int, name: str, value: Value) -> Value:
        """What layer `index` reads of the output of `name`: that, or a new tensor held once."""


class WholeLayers:
    """All layers whole."""

    def __init__(self, model: ModelSpec) -> None:
        self._layers = model.layers
        self.landing = NOTHING
        self.given = line(model.input_shape)

    def run(self, tape: Tape, index: int, inputs: Sequence[Value]) -> Value:
        """As the layer's module."""
        return run_layer(tape, self._layers[index].shape, inputs)

    def read(self, tape: Tape, index: int, name: str, value: Value) -> Value:
        """As it is."""
        return value


class SharedLayers(WholeLayers):
    """Filter and channel: some layers by a part of their weights, the others whole."""

    def __init__(self, model: ModelSpec, division: Division) -> None:
        super().__init__(model)
        self._of = model
        self._is_filter = division.strategy != "channel"
        self._parts: dict[int, LayerShape] = {}
        known: dict[int, LayerShape] = {}
        for index, is_split in enumerate(split_flags(model, division)):
            if is_split:
                first = model.alike[index]
                if first not in known:
                    known[first] = largest_part(self._layers[index].shape, division)
                self._parts[index] = known[first]
        landed = [line(of) for index in self._parts for of in self._landed(index)]
        self.landing = max(landed, default=NOTHING)

    def _landed(self, index: int) -> list[tuple[int, ...]]:
        """What an allgather of the layer brings: y of filter, dL/dx of channel."""
        layer = self._of.layers[index]
        if self._is_filter:
            return [layer.shape.output_shape]
        return [layer.shape.input_shapes[0]] if layer.needs_input_grad else []

    def run(self, tape: Tape, index: int, inputs: Sequence[Value]) -> Value:
        """A part between what joins it to the others' parts, or the whole layer."""
        part = self._parts.get(index)
        if part is None:
            return super().run(tape, index, inputs)
        of = _filters if self._is_filter else _channels
        return of(tape, self._layers[index].shape, part, inputs[0])


def _filters(tape: Tape, whole: LayerShape, part: LayerShape, x: Value) -> Value:
    """The part's y is copied into the whole (join); its gradient is cut out of the whole one."""
    own = run_layer(tape, part, [x])
    y = tape.run([own], line(whole.output_shape), Back((own.size,)))
    tape.ledger.drop(own.tensor)
    return y


def _channels(tape: Tape, whole: LayerShape, part: LayerShape, x: Value) -> Value:
    """Its part of x is copied and kept (cut); the sum of y is in the place of the part's terms."""
    own = tape.run([x], line(part.input_shapes[0]), Back((x.size,)))
    y = run_layer(tape, part, [own])
    tape.ledger.drop(own.tensor)
    biases = weight_bytes(whole)[1:]
    if not biases:
        return y
    summed = tape.run([y], None, Back((None,), biases))
    tape.ledger.drop(y.tensor)
    return summed
