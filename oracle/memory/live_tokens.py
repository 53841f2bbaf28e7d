"""Layers on parts of the tokens: tensor's between its regions, and those of sequence."""

from __future__ import annotations

from collections.abc import Sequence

from calib.foundation.division import Division
from calib.foundation.layers import LayerShape
from calib.oracle.layout.sequence import Move, sequence_parts
from calib.oracle.layout.shards import largest_parts
from calib.oracle.layout.tokens import token_parts
from calib.oracle.memory.live_layers import cast
from calib.oracle.memory.live_parts import RegionLayers, WholeLayers
from calib.oracle.memory.liveness import NOTHING, Back, ByteLine, HeldTensor, Tape
from calib.oracle.model.spec import ModelSpec


class TokenLayers(RegionLayers):
    """Tensor with sequence parallelism: parts of tokens between regions, moved by split/tokens.py.

    Of a tensor that is sliced, or gathered for whole layers, a rank may have both forms.
    """

    def __init__(self, model: ModelSpec, division: Division) -> None:
        super().__init__(model, division)
        self._tokens, self._p = token_parts(model), division.p
        self._wholes = {
            name: ByteLine(of.tokens * of.items) for name, of in self._tokens.tensors.items()
        }
        cut = {*self._tokens.entries.values()}
        self._begins |= {at for at, name in self._entries.items() if name in cut}
        self._of_part = self._tokens.layers.keys() | self._entries.keys()
        # by tensor: the last layer that reads the form in which it was made, and the last of the other
        self._as_made, self._other = dict[str, int](), dict[str, int]()
        for index, layer in enumerate(self._layers):
            for name in layer.inputs:
                reads_part = index in self._of_part
                if name in self._tokens.sliced:
                    (self._other if reads_part else self._as_made)[name] = index
                elif name in self._tokens.ends:
                    (self._as_made if reads_part else self._other)[name] = index
        self.landing = self._landing(model)

    def _landing(self, model: ModelSpec) -> ByteLine:
        """The longest tensor that is gathered; under autocast also one in the type of the weights."""
        items, tokens = model.items, self._tokens
        rows = [self._layers[at].name for at in tokens.rows]
        narrow = [self._wholes[name] for name in (*tokens.entries.values(), *rows)]
        wide = [self._wholes[name] for name in (*tokens.ends, *tokens.sliced)]
        if not items.mixed:
            return NOTHING.plus(max([*narrow, *wide], default=NOTHING), items.activation_bytes)
        most = NOTHING.plus(max(narrow, default=NOTHING), items.activation_bytes)
        return most.plus(max(wide, default=NOTHING), items.weight_bytes)

    def _sizes(self, name: str, item_bytes: int) -> tuple[ByteLine, ByteLine]:
        """Of a tensor, and of a rank's part of it."""
        of = self._wholes[name]
        return NOTHING.plus(of, item_bytes), NOTHING.plus(of, item_bytes / self._p)

    def read(self, tape: Tape, index: int, name: str, value: HeldTensor) -> HeldTensor:
        """The form that was made, or the other where the first is not read any more."""
        is_part = index in self._of_part
        if name not in self._other or is_part != (name in self._tokens.sliced):
            return value
        whole, part = self._sizes(name, value.item_bytes)
        made = part if is_part else whole
        if ("other", name) in self.shared or value.size == made:
            return value
        other = tape.run([value], made, Back((value.size,)))
        if self._as_made.get(name, -1) > index:
            self.shared["other", name] = other
            return value
        tape.ledger.drop(value.tensor)
        return other

    def run(self, tape: Tape, index: int, inputs: Sequence[HeldTensor]) -> HeldTensor:
        """As its layer is cut; each input in the form that it reads."""
        is_part, names = index in self._of_part, self._layers[index].inputs
        given = [
            self.shared.get(("other", name), value)
            if is_part == (name in self._tokens.sliced)
            else value
            for name, value in zip(names, inputs, strict=True)
        ]
        made = super().run(tape, index, given)
        for name in dict.fromkeys(names):
            if self._other.get(name) == index and ("other", name) in self.shared:
                tape.ledger.drop(self.shared.pop(("other", name)).tensor)
        return made

    def _begun(self, tape: Tape, index: int, x: HeldTensor) -> HeldTensor:
        """Gathered; in the backward summed and scattered."""
        part = super()._begun(tape, index, x)
        if index not in self._tokens.entries:
            return part
        whole, own = self._sizes(self._tokens.entries[index], part.item_bytes)
        gathered = tape.run([part], whole, Back((own,), first=(whole,)))
        tape.ledger.drop(part.tensor)
        return gathered

    def _ended(self, tape: Tape, index: int, y: HeldTensor) -> HeldTensor:
        """Scattered; in the backward gathered."""
        if index in self._tokens.rows:
            whole, own = self._sizes(self._layers[index].name, y.item_bytes)
            part = tape.run([y], own, Back((whole,)), first=[whole])
            tape.ledger.drop(y.tensor)
            y = part
        return super()._ended(tape, index, y)


class SequenceLayers(WholeLayers):
    """Sequence: layers on parts of their tensors, with whole weights, and tensors that are moved."""

    def __init__(self, model: ModelSpec, division: Division) -> None:
        super().__init__(model)
        self._parts, self._ranks = largest_parts(model, division), division.parts
        self.loss = self.shape(len(model.layers) - 1)
        found = sequence_parts(model)
        moves = () if found is None else found.moves
        self._moves = {(at, move.name): move for move in moves for at in move.readers}
        readers: dict[str, list[int]] = {}
        for at, layer in enumerate(model.layers):
            for name in dict.fromkeys(layer.inputs):
                readers.setdefault(name, []).append(at)
        # tensors that all layers read in the same way, for which the one that was moved is freed
        self._alone = {move.name for move in moves if [*move.readers] == readers[move.name]}

    def shape(self, index: int) -> LayerShape:
        """A part, or the whole; gradients are those of whole weights."""
        whole, part = super().shape(index), self._parts.get(index)
        if part is None or part.parameter_shapes == whole.parameter_shapes:
            return part or whole
        return part.model_copy(update={"parameter_shapes": whole.parameter_shapes})

    def read(self, tape: Tape, index: int, name: str, value: HeldTensor) -> HeldTensor:
        """The tensor moved, once for all that read it."""
        move = self._moves.get((index, name))
        if move is None or name not in self._alone or index != move.readers[0]:
            return value
        moved = self._moved(tape, move, value)
        tape.ledger.drop(value.tensor)
        return moved

    def run(self, tape: Tape, index: int, inputs: Sequence[HeldTensor]) -> HeldTensor:
        """The layer on what it reads; of a tensor that others read otherwise a copy beside it."""
        read, names = [*inputs], self._layers[index].inputs
        for number, name in enumerate(names):
            move = self._moves.get((index, name))
            if move is not None and name not in self._alone:
                if move not in self.shared:
                    self.shared[move] = self._moved(tape, move, inputs[number])
                read[number] = self.shared[move]
        y = super().run(tape, index, read)
        for move in [of for of in self.shared if isinstance(of, Move) and of.readers[-1] == index]:
            tape.ledger.drop(self.shared.pop(move).tensor)
        return y

    def _moved(self, tape: Tape, move: Move, x: HeldTensor) -> HeldTensor:
        """As training/split/sequence.py does it."""
        if move.is_slice or move.is_gather:
            times = 1 / self._ranks if move.is_slice else self._ranks
            size = ByteLine(times * x.size.each, times * x.size.fixed)
            landed = [size] if move.is_gather else []
            return tape.run([x], size, Back((x.size,)), first=landed)
        part = cast(tape, x, self._items.activation_bytes)
        y = tape.run([part], part.size, Back((part.size,), first=(part.size,)), first=[part.size])
        tape.ledger.drop(part.tensor)
        return y
