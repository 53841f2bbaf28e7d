"""A rank's tokens and heads: all layers that can be on parts of the tokens are.

Jacobs et al. 2023 (DeepSpeed-Ulysses), section 3; calib.oracle.layout.sequence says where. Each rank
has the mean loss of its own places, or all have that of whole tensors. The model's loss is the mean over
the ranks, and so is every gradient: the backward of a move is its transpose for that mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import fx

from calib.foundation.operators import Operator
from calib.oracle.layout.cuts import Passed
from calib.oracle.layout.sequence import BESIDE_ZEROS
from calib.oracle.layout.tokens import TokenParts
from calib.training.split.regions import ProgramParts
from calib.training.split.tokens import Moved


class SequenceProgram(ProgramParts):
    """A program whose layers run on a rank's tokens, and attention on its heads."""

    averages = True

    def divide(self, found: TokenParts) -> None:
        """Let this rank compute its part."""
        for move in found.moves:
            self._move(move)
        for at, passed in found.passed.items():
            if at < len(self._layers) - 1:
                self._slice_beside(at, passed)
                self._localize(at)
                self._draw(at)
            self._tell(at, passed)

    def _slice_beside(self, at: int, passed: Passed) -> None:
        """Let a layer read this rank's part of parameters and constants."""
        if not passed.beside:
            return
        shape, node = self._layers[at].shape, self._calls[self._layers[at].name]
        of = shape.operator
        assert of is not None
        first = len(shape.parameter_shapes)
        places = {"parameter": 0, "constant": first}
        for what, number, held in list(_tensors(node, of)):
            if what in places and (cut := passed.beside[places[what] + number]) is not None:
                sizes = [*shape.parameter_shapes, *(size for size, _ in of.constants)]
                own = self._parts_of(cut, sizes[places[what] + number])
                moved = Moved(BESIDE_ZEROS, None, own, self._link, self.averages)
                node.replace_input_with(held, self._call(moved, held, node))


def _tensors(node: fx.Node, of: Operator) -> Iterator[tuple[str, int, fx.Node]]:
    """What an operator's node reads: "input", "parameter" or "constant", its number, and the node."""

    def found(given: Any, said: Any) -> Iterator[tuple[str, int, fx.Node]]:
        if isinstance(said, list):
            for pair in zip(given, said, strict=True):
                yield from found(*pair)
        elif isinstance(said, dict) and isinstance(given, fx.Node):
            ((what, number),) = said.items()
            yield what, number, given

    first = len(node.args) - len(of.positional)  # behind what it is called through
    yield from found([*node.args[first:]], of.positional)
    yield from found([node.kwargs.get(name) for name in of.named], [*of.named.values()])
