"""Layers on parts of the tokens, and the tensors that are moved for them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from calib.foundation.division import Division
from calib.foundation.layers import LayerShape
from calib.oracle.layout.region_tokens import BEGIN, END, token_parts
from calib.oracle.layout.shards import largest_parts, parts_of_tokens
from calib.oracle.layout.tokens import Move, sent_bytes
from calib.oracle.memory.live_layers import cast
from calib.oracle.memory.live_parts import RegionLayers, WholeLayers, biased
from calib.oracle.memory.liveness import Back, ByteLine, HeldTensor, Tape
from calib.oracle.model.spec import ModelSpec


class MovedTensors:
    """Tensors that layers read otherwise than a rank has them, each moved once for all that read it so.

    The one that was made is freed when no later layer reads it, or has it moved; else the one that was
    moved is in `shared` (see RankLayers).
    """

    def __init__(
        self, model: ModelSpec, moves: Iterable[Move], ranks: int, shared: dict[object, HeldTensor]
    ) -> None:
        self._layers, self._ranks, self._shared = model.layers, ranks, shared
        self._item_bytes = model.items.activation_bytes
        self._moves = {(at, move.name): move for move in moves for at in move.readers}
        # by tensor the last layer that reads it as it was made, or moves it
        self._needed: dict[str, int] = {}
        for at, layer in enumerate(model.layers):
            for name in layer.inputs:
                move = self._moves.get((at, name))
                if move is None or move.readers[0] == at:
                    self._needed[name] = at

    def read(self, tape: Tape, index: int, name: str, value: HeldTensor) -> HeldTensor:
        """The tensor that was made, or in its place the one that was moved."""
        move = self._moves.get((index, name))
        if move is None or move.readers[0] != index:
            return value
        moved = self._moved(tape, move, value)
        if self._needed[name] > index:
            self._shared[move] = moved
            return value
        tape.ledger.drop(value.tensor)
        return moved

    def given(self, index: int, inputs: Sequence[HeldTensor]) -> list[HeldTensor]:
        """What a layer reads."""
        moves = [self._moves.get((index, name)) for name in self._layers[index].inputs]
        pairs = zip(moves, inputs, strict=True)
        return [value if move is None else self._shared.get(move, value) for move, value in pairs]

    def free(self, tape: Tape, index: int) -> None:
        """What a layer was the last to read."""
        for move in [of for of in self._shared if isinstance(of, Move) and of.readers[-1] == index]:
            tape.ledger.drop(self._shared.pop(move).tensor)

    def _moved(self, tape: Tape, move: Move, x: HeldTensor) -> HeldTensor:
        """As training/split/tokens.py does it."""
        before, after = (math.prod(move.shape(of, self._ranks)) for of in (move.before, move.after))
        times = after / before
        size = ByteLine(times * x.size.each, times * x.size.fixed)
        if move.is_slice or move.is_gather:
            return tape.run([x], size, Back((x.size,)))
        part = cast(tape, x, self._item_bytes)
        size = ByteLine(times * part.size.each, times * part.size.fixed)
        # what is sent, and what comes, with what fills up parts; then what comes, and what is made
        most = max(size, part.size)
        y = tape.run(
            [part],
            size,
            Back((part.size,), first=(_beside(most, part.size),)),
            first=[_beside(most, size)],
        )
        tape.ledger.drop(part.tensor)
        return y


def _beside(most: ByteLine, made: ByteLine) -> ByteLine:
    return most.plus(most).plus(made, -1.0)


def landing(model: ModelSpec, moves: Iterable[Move], ranks: int) -> ByteLine:
    """The longest tensor of each item type that is gathered."""
    longest = dict[int, int]()
    for move in moves:
        if "allgather" in (move.forward, move.backward):
            each = sent_bytes(model, move)
            longest[each] = max(longest.get(each, 0), move.items(ranks))
    return ByteLine(sum(each * most for each, most in longest.items()))


class MovingLayers(WholeLayers):
    """Layers that read tensors as they were moved for them."""

    _tensors: MovedTensors

    def read(self, tape: Tape, index: int, name: str, value: HeldTensor) -> HeldTensor:
        """The tensor, moved."""
        return self._tensors.read(tape, index, name, value)

    def run(self, tape: Tape, index: int, inputs: Sequence[HeldTensor]) -> HeldTensor:
        """The layer on what it reads."""
        y = super().run(tape, index, self._tensors.given(index, inputs))
        self._tensors.free(tape, index)
        return y


class TokenLayers(MovingLayers, RegionLayers):
    """Tensor with sequence parallelism: parts of tokens between regions."""

    def __init__(self, model: ModelSpec, division: Division) -> None:
        super().__init__(model, division)
        found = token_parts(model)
        self._gathered, self._scattered = found.gathered, found.scattered
        self._begins |= self._entries.keys() & self._gathered.keys()
        between = [move for move in found.moves if move.way not in (BEGIN, END)]
        self._tensors = MovedTensors(model, between, division.p, self.shared)
        self._p, self.landing = division.p, landing(model, found.moves, division.p)

    def _sizes(self, move: Move, item_bytes: int) -> tuple[ByteLine, ByteLine, ByteLine]:
        """Of a tensor, of a rank's part of it, and of all parts."""
        items, parts = math.prod(move.shape(None, self._p)), move.items(self._p)
        each = items * item_bytes, parts // self._p * item_bytes, parts * item_bytes
        return ByteLine(each[0]), ByteLine(each[1]), ByteLine(each[2])

    def _begun(self, tape: Tape, index: int, x: HeldTensor) -> HeldTensor:
        """Gathered; in the backward summed and scattered."""
        if index not in self._gathered:
            return super()._begun(tape, index, x)
        part = cast(tape, x, self._items.activation_bytes)
        whole, own, sent = self._sizes(self._gathered[index], part.item_bytes)
        first = sent, *tape.summing(part.item_bytes, sent, own)
        gathered = tape.run([part], whole, Back((own,), first=first))
        tape.ledger.drop(part.tensor)
        return gathered

    def _ended(self, tape: Tape, index: int, y: HeldTensor) -> HeldTensor:
        """Scattered; in the backward gathered."""
        if index in self._scattered:
            whole, own, sent = self._sizes(self._scattered[index], y.item_bytes)
            first = [sent, *tape.summing(y.item_bytes, sent, own)]
            part = tape.run([y], own, Back((whole,)), first=first)
            tape.ledger.drop(y.tensor)
            return biased(tape, self._layers[index].shape, part)
        return super()._ended(tape, index, y)


class SequenceLayers(MovingLayers):
    """Sequence: layers on parts of their tensors, with whole weights."""

    def __init__(self, model: ModelSpec, division: Division) -> None:
        super().__init__(model)
        self._parts = largest_parts(model, division)
        self.loss = self.shape(len(model.layers) - 1)
        moves = parts_of_tokens(model, division).moves
        self._tensors = MovedTensors(model, moves, division.parts, self.shared)
        self.landing = landing(model, moves, division.parts)

    def shape(self, index: int) -> LayerShape:
        """A part, or the whole; gradients are those of whole weights."""
        whole, part = super().shape(index), self._parts.get(index)
        if part is None or part.parameter_shapes == whole.parameter_shapes:
            return part or whole
        return part.model_copy(update={"parameter_shapes": whole.parameter_shapes})
