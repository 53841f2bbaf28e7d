"""A rank's tokens and heads: tensors that are cut, switched between ranks, and joined.

Jacobs et al. 2023 (DeepSpeed-Ulysses), section 3; calib.oracle.layout.sequence says where. Each rank
has the mean loss of its own places, or all have that of whole tensors. The model's loss is the mean over
the ranks, and so is every gradient: the backward of a move is its transpose for that mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor, fx, nn

from calib.foundation.operators import PRIME, Operator
from calib.oracle.layout.cuts import Cut, Passed
from calib.oracle.layout.sequence import Move, SequenceParts
from calib.training.split.linear_map import mapped
from calib.training.split.moves import GroupLink, narrowed
from calib.training.split.regions import ProgramParts

# which torch has no types for
_unflatten: Callable[[Tensor, int, Sequence[int]], Tensor] = Tensor.unflatten


def apart(x: Tensor, cut: Cut, parts: int) -> Tensor:
    """A view with the parts along the first axis, each (..., blocks, width, ...)."""
    return _unflatten(x, cut.axis, (cut.blocks, parts, -1)).movedim(cut.axis + 1, 0)


def own_part(x: Tensor, cut: Cut, link: GroupLink) -> Tensor:
    """This rank's part of a whole tensor; of one block a view."""
    return apart(x, cut, link.group.size)[link.group.rank].flatten(cut.axis, cut.axis + 1)


def empty_in_order(like: Tensor, size: list[int]) -> Tensor:
    """Room for a dense tensor whose axes are in the same order in memory as those of `like`."""
    strides = like.stride()
    order = sorted(range(like.dim()), key=lambda axis: -strides[axis])
    back = sorted(range(like.dim()), key=lambda axis: order[axis])
    return like.new_empty([size[axis] for axis in order]).permute(back)


class Slice(nn.Module):
    """This rank's part of a whole tensor; backward: zeros beside the gradient of the part."""

    def __init__(self, cut: Cut, link: GroupLink) -> None:
        super().__init__()
        self._cut, self._link = cut, link

    def forward(self, x: Tensor) -> Tensor:
        """A copy, so that the whole one can be freed."""

        def there(x: Tensor) -> Tensor:
            before = self._link.switch("pack")
            mine = own_part(x, self._cut, self._link)
            part = empty_in_order(x, [*mine.shape]).copy_(mine)
            self._link.switch(before)
            return part

        def back(gradient: Tensor) -> Tensor:
            before = self._link.switch("pack")
            whole = gradient.new_zeros(size)
            mine = apart(whole, self._cut, self._link.group.size)[self._link.group.rank]
            mine.copy_(_unflatten(gradient, self._cut.axis, (self._cut.blocks, -1)))
            self._link.switch(before)
            return whole

        size = x.shape
        return mapped(x, there, back)


class Gather(nn.Module):
    """The whole tensor from all parts; backward: this rank's part, times the number of ranks.

    All ranks go on alike with the whole tensor, and have the same gradient of it.
    """

    def __init__(self, cut: Cut, link: GroupLink) -> None:
        super().__init__()
        self._cut, self._link = cut, link

    def forward(self, part: Tensor) -> Tensor:
        """In the order in memory of the part."""
        return mapped(part, self._gather, self._own)

    def _gather(self, part: Tensor) -> Tensor:
        link, cut = self._link, self._cut
        parts = link.group.size
        before = link.switch("pack")
        mine = part.contiguous()
        landed = mine.new_empty((parts, *mine.shape))
        link.switch("layerwise")
        link.group.allgather(mine.view(-1), landed.view(-1))
        link.switch("pack")
        size = [*part.shape]
        size[cut.axis] *= parts
        whole = empty_in_order(part, size)
        apart(whole, cut, parts).copy_(_unflatten(landed, 1 + cut.axis, (cut.blocks, -1)))
        link.switch(before)
        return whole

    def _own(self, gradient: Tensor) -> Tensor:
        before = self._link.switch("pack")
        part = own_part(gradient, self._cut, self._link) * self._link.group.size
        self._link.switch(before)
        return part


class Switch(nn.Module):
    """A rank's part along one axis becomes its part along another: an all-to-all, there and back."""

    def __init__(self, before: Cut, after: Cut, link: GroupLink) -> None:
        super().__init__()
        self._before, self._after, self._link = before, after, link

    def forward(self, part: Tensor) -> Tensor:
        """In the type in which a product reads it."""
        return mapped(narrowed(part), self._there, self._back)

    def _there(self, part: Tensor) -> Tensor:
        return switched(part, self._before, self._after, self._link)

    def _back(self, gradient: Tensor) -> Tensor:
        return switched(gradient, self._after, self._before, self._link)


def switched(part: Tensor, before: Cut, after: Cut, link: GroupLink) -> Tensor:
    """The part cut as `after` of the tensor of which every rank has that cut as `before`."""
    parts = link.group.size
    phase = link.switch("pack")
    outgoing = apart(part, after, parts).contiguous()
    incoming = outgoing.new_empty(outgoing.shape)
    link.switch("layerwise")
    link.group.all_to_all(outgoing.view(-1), incoming.view(-1))
    link.switch("pack")
    del outgoing
    size = [*part.shape]
    size[before.axis] *= parts
    size[after.axis] //= parts
    made = empty_in_order(part, size)
    pieces = incoming.flatten(1 + after.axis, 2 + after.axis)
    apart(made, before, parts).copy_(_unflatten(pieces, 1 + before.axis, (before.blocks, -1)))
    link.switch(phase)
    return made


class SequenceProgram(ProgramParts):
    """A program whose layers run on a rank's tokens, and attention on its heads."""

    def divide(self, found: SequenceParts) -> None:
        """Let this rank compute its part."""
        for move in found.moves:
            self._move(move)
        for at, passed in found.passed.items():
            if at < len(self._layers) - 1:
                self._slice_beside(at, passed)
                self._localize(at)
                self._draw(at)
            self._tell(at, passed)

    def _move(self, move: Move) -> None:
        readers = [self._reader(at) for at in move.readers]
        read = [
            [of for of in node.all_input_nodes if self._program.layer_behind(of) == move.name]
            for node in readers
        ]
        before, after = self._at_batch(move.before), self._at_batch(move.after)
        if before is None:
            assert after is not None
            module: nn.Module = Slice(after, self._link)
        else:
            module = (
                Gather(before, self._link) if after is None else Switch(before, after, self._link)
            )
        moved = self._call(module, read[0][0], readers[0])
        for node, sources in zip(readers, read, strict=True):
            for source in sources:
                node.replace_input_with(source, moved)

    def _call(self, module: nn.Module, source: fx.Node, reader: fx.Node) -> fx.Node:
        name = f"calib_move_{len(self._graph.nodes)}"
        self._program.graph.add_module(name, module)
        with self._graph.inserting_before(reader):
            return self._graph.call_module(name, (source,))

    def _reader(self, at: int) -> fx.Node:
        """The call of a layer; for the loss that of what the model returns."""
        if at == len(self._layers) - 1:
            nodes: list[fx.Node] = list(self._graph.nodes)
            return nodes[-1]
        return self._calls[self._layers[at].name]

    def _at_batch(self, cut: Cut | None) -> Cut | None:
        """Blocks of each sample at this batch."""
        if cut is None or cut.blocks % PRIME:
            return cut
        return Cut(cut.axis, cut.blocks // PRIME * self._batch)

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
                sliced = self._call(Slice(cut, self._link), held, node)
                node.replace_input_with(held, sliced)


def _tensors(node: fx.Node, of: Operator) -> Iterator[tuple[str, int, fx.Node]]:
    """What an operator's node reads: "input", "parameter" or "constant", its number, and the node."""

    def found(given: Any, said: Any) -> Iterator[tuple[str, int, fx.Node]]:
        if isinstance(said, list):
            for pair in zip(given, said, strict=True):
                yield from found(*pair)
        elif isinstance(said, dict) and isinstance(given, fx.Node):
            ((what, number),) = said.items()
            yield what, number, given

    yield from found([*node.args], of.positional)
    yield from found([node.kwargs.get(name) for name in of.named], [*of.named.values()])
