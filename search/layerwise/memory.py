"""Bytes of live tensors on the device that has the largest part of every layer.

`Memory.peak` walks through an iteration of a plan, as oracle/memory/live_iteration.py does: a tensor
counts once, while PyTorch holds it; what came from other devices counts where it was joined. A search
needs a sum over layers and edges instead: what is there when the forward ends (weights, optimizer
state, the exchange buffer, what the backward will read). No peak is below it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from calib.foundation.arrays import Floats
from calib.foundation.execution import ItemType
from calib.foundation.layers import ITEM_BYTES, LayerShape
from calib.oracle.layout.partitions import Configuration
from calib.oracle.layout.spatial import WINDOWED
from calib.oracle.layout.workload import tensors
from calib.oracle.memory.live_iteration import (
    buffers,
    forward_and_back,
    held_bytes,
    targets,
    update_bytes,
)
from calib.oracle.memory.live_layers import kept_by, line, run_layer
from calib.oracle.memory.live_parts import WholeLayers
from calib.oracle.memory.liveness import NOTHING, Back, ByteLine, HeldTensor, Tape
from calib.oracle.model.graph import INPUT
from calib.oracle.model.layer import Layer
from calib.oracle.model.spec import ModelSpec
from calib.search.layerwise.layouts import BoxLayout, needs
from calib.search.layerwise.prices import LayerPrices, sharers


def outputs_of(model: ModelSpec) -> dict[str, int]:
    """The layer that makes each output."""
    return {name: i for i, layer in enumerate(model.layers) for name in layer.outputs}


def largest(boxes: BoxLayout, item_bytes: int) -> Floats:
    """Bytes of the largest box of each configuration."""
    found: Floats = item_bytes * np.prod(boxes.hi - boxes.lo, axis=1, dtype=np.float64).max(1)
    return found


def fetched(
    own: BoxLayout,
    need: BoxLayout,
    shape: LayerShape,
    of: Sequence[Configuration],
    item_bytes: int = ITEM_BYTES,
) -> Floats:
    """Bytes that the device with most joins anew to read a tensor: [producers', consumers'].

    0 where every device reads what it already has in place. A window may leave the last rows of an uncut
    dimension unread; they are there all the same.
    """
    lo, hi = need.lo.copy(), need.hi.copy()
    if shape.kind in WINDOWED:
        for c, one in enumerate(of):
            for d, length in enumerate(need.lengths[2:]):
                if d >= len(one.spatial) or one.spatial[d] == 1:
                    lo[c, 2 + d, : one.parts], hi[c, 2 + d, : one.parts] = 0, length
    wanted = np.prod(hi - lo, axis=1, dtype=np.float64)
    rows = [
        np.where(((first != lo) | (end != hi)).any(1), wanted, 0.0).max(1)
        for first, end in zip(own.lo, own.hi, strict=True)
    ]
    found: Floats = item_bytes * np.array(rows)
    return found


def made_bytes(layer: Layer, part: LayerShape, samples: float, items: ItemType) -> float:
    """Bytes that a part of so many samples makes and keeps until its backward."""
    if not layer.has_gradient:
        return 0.0
    kept = kept_by(part, items)
    size = line(part.output_shape, 1.0, items.activation_bytes)
    output = size.of(samples) if kept.output else 0.0
    return kept.beside.of(samples) + output


def keepers(model: ModelSpec) -> dict[tuple[int, int], bool]:
    """The (layer, input) pairs that are kept for the backward, and whether the bytes count there.

    A tensor that only its readers keep counts once, at the first of them. Views are left out: their
    bytes are those of what they show.
    """
    index = outputs_of(model)
    found: dict[tuple[int, int], bool] = {}
    counted: set[int] = set()
    for j, layer in enumerate(model.layers):
        kept = kept_by(layer.shape).inputs if layer.has_gradient else ()
        for which, (name, is_kept) in enumerate(zip(layer.inputs, kept, strict=False)):
            if is_kept and name != INPUT:
                own = kept_by(model.layers[index[name]].shape)
                first = index[name] not in counted
                found[j, which] = first and not (own.output or own.is_view)
                counted.add(index[name])
    return found


class Memory:
    """Bytes of a request's layers and edges by configurations, and the peak of a plan."""

    def __init__(self, prices: LayerPrices) -> None:
        self.model, self.batch, self._prices = prices.model, prices.batch, prices
        self._keepers = keepers(prices.model)

    def layer(self, index: int, of: Configuration) -> tuple[float, float]:
        """(kept, unfreed) bytes of a layer by itself, with what it reads of the model's input.

        Kept is what is there when the forward ends; unfreed adds its output and that output's gradient.
        """
        part, samples = self._prices.part(index, of), self.batch / of.sample
        made = made_bytes(self.model.layers[index], part, samples, self.model.items)
        kept = self._standing(index, of) + made + self._given(index, of)
        size = line(part.output_shape, 1.0, self.model.items.activation_bytes)
        return kept, kept + 2.0 * size.of(samples)

    def how(self, j: int, which: int) -> int:
        """What layer j keeps of that input: 0 nothing, 1 what is joined for it, 2 also what is there."""
        return 0 if (j, which) not in self._keepers else 1 + self._keepers[j, which]

    def edge(
        self, j: int, which: int, own: BoxLayout, need: BoxLayout, of: Sequence[Configuration]
    ) -> tuple[Floats, Floats]:
        """(bytes joined anew for layer j to read a tensor, bytes that are kept for it)."""
        each = self.model.items.activation_bytes
        joined, how = fetched(own, need, self.model.layers[j].shape, of, each), self.how(j, which)
        there = largest(own, each)[:, None] if how == 2 else 0.0
        return joined, np.where(joined > 0, joined, there) if how else np.zeros_like(joined)

    def peak(self, of: Sequence[Configuration], joined: Mapping[tuple[int, int], float]) -> int:
        """The peak of an iteration of a plan; `joined` by (layer, input), as `edge` gives it."""
        prices, places = self._prices, range(len(of))
        given = ByteLine(math.fsum(map(self._given, places, of)) / self.batch)
        fetches = {at: ByteLine(nbytes / self.batch) for at, nbytes in joined.items()}
        planned = _Planned(self.model, list(map(prices.part, places, of)), of, given, fetches)
        beside = given.plus(
            targets(self.model.layers[-1].shape, self.model.items.weight_bytes), 1.0 / of[-1].sample
        )
        peaks = forward_and_back(self.model, planned, beside)
        weights = tensors(
            tuple(shape for j in places for shape in prices.weights(j, of[j])), self.model.items
        )
        after = update_bytes(weights, prices.optimizer)
        most = max(line.of(self.batch) for line in peaks)
        standing = math.fsum(map(self._standing, places, of))
        return round(standing + max(most, beside.of(self.batch) + after if after else 0))

    def _standing(self, index: int, of: Configuration) -> float:
        """Held throughout: weights, optimizer state, buffers, the gradients to be exchanged."""
        prices, weights = self._prices, self._prices.weights(index, of)
        shared = sharers(of, prices.devices.per_node).size > 1
        held = tensors(weights, self.model.items)
        flat = held.nbytes if shared else 0.0
        buffered = buffers([prices.part(index, of)], self.model.items.weight_bytes).fixed
        return held_bytes(held, prices.optimizer) + flat + buffered

    def _given(self, index: int, of: Configuration) -> float:
        """Bytes that a part reads of the model's input."""
        layer, p = self.model.layers[index], self._prices.devices.p
        each = self.model.items.weight_bytes
        return sum(
            float(largest(needs(layer.shape, which, [of], self.batch, p), each)[0])
            for which, name in enumerate(layer.inputs)
            if name == INPUT
        )


class _Planned(WholeLayers):
    """The parts of a plan; what a layer reads is fetched where it is not in place already."""

    def __init__(
        self,
        model: ModelSpec,
        parts: Sequence[LayerShape],
        of: Sequence[Configuration],
        given: ByteLine,
        fetches: Mapping[tuple[int, int], ByteLine],
    ) -> None:
        super().__init__(model)
        self.given, self._parts, self._of, self._fetches = given, parts, of, fetches

    def run(self, tape: Tape, index: int, inputs: Sequence[HeldTensor]) -> HeldTensor:
        """The part's output, held once; terms of a sum are reduce-scattered."""
        of = self._of[index]
        read = [self._fetched(tape, (index, n), value) for n, value in enumerate(inputs)]
        tape.share = 1.0 / of.sample
        y = run_layer(tape, self._parts[index], read)
        for value, there in zip(read, inputs, strict=True):
            if value is not there:
                tape.ledger.drop(value.tensor)
        if of.input == 1:
            return y
        mine = tape.run([y], ByteLine(y.size.each / of.input), Back((y.size,)), first=[y.size])
        tape.ledger.drop(y.tensor)
        return mine

    def _fetched(self, tape: Tape, at: tuple[int, int], value: HeldTensor) -> HeldTensor:
        """Joined from what the device has and what comes, which is at most as much again."""
        size = self._fetches.get(at, NOTHING)
        if not size.each:
            return value
        return tape.run([value], size, Back((value.size,)), first=[size])
