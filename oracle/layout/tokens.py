"""Parts of the tokens: which layers run on them, and which tensors are moved for that.

One walk over the graph for both strategies that cut tokens: a layer runs on parts of what it reads if
its operator passes them on (cuts.py), else whole, on what is gathered. Where parts begin, what else
passes none on, and what is sent for a gradient, each strategy says: sequence.py, and region_tokens.py of
tensor.

Where p does not divide the tokens (17 with a class token), every rank has ceil(tokens / p): the last
parts are filled up. What fills them up is left out where parts are joined, so attention masks nothing.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from calib.foundation.collectives import Operation
from calib.foundation.layers import Shape
from calib.foundation.operators import PRIME
from calib.oracle.layout.cuts import Cut, Cuts, Passed, sizes_of
from calib.oracle.layout.item_bytes import item_bytes
from calib.oracle.layout.regions import Narrowest, narrowest_of
from calib.oracle.model.graph import INPUT
from calib.oracle.model.layer import Layer
from calib.oracle.model.recomputed import read_again, run_again
from calib.oracle.model.spec import ModelSpec
from calib.oracle.once import once


class Way(NamedTuple):
    """What is sent for a tensor, and for its gradient; None: nothing.

    `narrows`: it travels in the type of the products that read or make it.
    """

    forward: Operation | None
    backward: Operation | None
    narrows: bool = False


GATHER = Way("allgather", None)  # all go on alike
SWITCH = Way("all_to_all", "all_to_all", narrows=True)


@dataclass(frozen=True)
class Move:
    """A tensor that layers read otherwise than a rank has it: cut as `after`, not as `before`.

    None: whole, or where it is scattered a term of a sum, of the one layer that makes it. `size` is that
    of the whole tensor at PRIME samples, `readers` are the places of the layers, and `has_gradient` says
    whether one comes back.
    """

    name: str
    before: Cut | None
    after: Cut | None
    size: Shape
    way: Way
    has_gradient: bool
    readers: tuple[int, ...] = ()

    @property
    def forward(self) -> Operation | None:
        """What is sent in the forward."""
        return self.way.forward

    @property
    def backward(self) -> Operation | None:
        """What is sent in the backward."""
        return self.way.backward if self.has_gradient else None

    @property
    def is_slice(self) -> bool:
        """Whether a rank cuts its part out of a whole tensor."""
        return self.forward is None

    @property
    def is_gather(self) -> bool:
        """Whether the parts of all ranks are joined on each."""
        return self.after is None

    @property
    def is_scatter(self) -> bool:
        """Whether a rank keeps its part of a sum."""
        return self.forward == "reduce_scatter"

    def shape(self, cut: Cut | None, parts: int) -> Shape:
        """The size of one sample, or without one, on a rank that has it cut so."""
        size = self.size if cut is None else cut.part(self.size, parts)
        return tuple([n // PRIME if n % PRIME == 0 else n for n in size])

    def items(self, parts: int) -> int:
        """Of all parts of one sample, with what fills up the last ones."""
        cuts = [cut for cut in (self.before, self.after) if cut is not None]
        return parts * max(math.prod(self.shape(cut, parts)) for cut in cuts)

    def copies(self, parts: int) -> list[tuple[Literal["split", "concat"], str, Shape]]:
        """The copies that a rank makes, of x and of dL/dx: the tensor, with the cut axis in front.

        What it sends is split, and what has come is joined; of a slice or an allgather that is one of
        the two each way. Nothing for a tensor without samples, which is small.
        """
        if all(n % PRIME for n in self.size):
            return []

        def shape(cut_as: Cut | None, axis: int) -> Shape:
            sizes = self.shape(cut_as, parts)
            others = [n for at, n in enumerate(sizes) if at != axis and self.size[at] != PRIME]
            return (sizes[axis], *others)

        found: list[tuple[Literal["split", "concat"], str, Shape]] = []
        ways = [("x", self.before, self.after)]
        ways += [("dL/dx", self.after, self.before)] if self.has_gradient else []
        for what, before, after in ways:
            if after is not None:
                found.append(("split", what, shape(before, after.axis)))
            if before is not None:
                found.append(("concat", what, shape(after, before.axis)))
        return found


@dataclass(frozen=True)
class TokenParts:
    """Layers on parts, by place, and the moves of tensors, by their first readers.

    `by_heads` are the layers that have all tokens of some heads.
    """

    passed: Mapping[int, Passed]
    moves: tuple[Move, ...]
    by_heads: frozenset[int] = frozenset()

    @property
    def gathered(self) -> dict[int, Move]:
        """By layers that read what is gathered."""
        return {at: move for move in self.moves if move.is_gather for at in move.readers}

    @property
    def scattered(self) -> dict[int, Move]:
        """By layers that make terms of a sum."""
        return {at: move for move in self.moves if move.is_scatter for at in move.readers}


NO_PARTS = TokenParts({}, ())


def sent_bytes(model: ModelSpec, move: Move) -> int:
    """Bytes of an item of a tensor that is moved."""
    return model.items.activation_bytes if move.way.narrows else item_bytes(model)[move.name]


def moves_again(model: ModelSpec, move: Move) -> bool:
    """Whether the backward moves a tensor again: it runs what makes it, or needs what is read."""
    again = run_again(model) if move.is_scatter else read_again(model)
    return again[move.readers[0]]


def narrowest_tokens(model: ModelSpec, found: TokenParts) -> Narrowest | None:
    """Tokens of all layers on parts of them; None without any.

    Parts are not filled up where each rank has the loss of its own, whose mean would be another.
    """
    ends = {at: Passed((None,), (of.after,)) for at, of in found.scattered.items()}
    passed = {at: of for at, of in found.passed.items() if at not in found.by_heads}
    return narrowest_of(model, {**passed, **ends}, fills=len(model.layers) - 1 not in passed)


@once
def tensor_sizes(model: ModelSpec) -> dict[str, Shape]:
    """Of every tensor at PRIME samples, in order."""
    sizes: dict[str, Shape] = {INPUT: (PRIME, *model.input_shape)}
    for layer in model.layers:
        sizes |= zip(layer.outputs, sizes_of(layer.shape)[1], strict=True)
    return sizes


class TokenWalk(ABC):
    """A walk over the layers, in their order; `entered` are whole tensors of which ranks cut parts."""

    slice: Way

    def __init__(self, model: ModelSpec, entered: Mapping[str, Cut]) -> None:
        self.model, self.layers, self.entered = model, model.layers, {**entered}
        self.cuts: dict[str, Cut] = {}  # of tensors of which a rank has a part only
        self.passed: dict[int, Passed] = {}
        self.by_heads: set[int] = set()
        self.sizes = tensor_sizes(model)
        self.with_gradient = {
            name for layer in model.layers for name, has in layer.gradients.items() if has
        }
        self._moves: dict[Move, list[int]] = {}

    def walk(self) -> TokenParts:
        """What is on parts."""
        for at, layer in enumerate(self.layers):
            self.meet(at, layer, tuple([self.have(name) for name in layer.inputs]))
        moves = [Move(**{**vars(of), "readers": tuple(at)}) for of, at in self._moves.items()]
        return TokenParts(self.passed, tuple(moves), frozenset(self.by_heads))

    def have(self, name: str) -> Cut | None:
        """How a rank's part of a tensor is cut; None: it has no part."""
        return self.cuts.get(name) or self.entered.get(name)

    @abstractmethod
    def meet(self, at: int, layer: Layer, have: Cuts) -> None:
        """Let a layer run on its parts, or whole."""

    def divide(self, at: int, passed: Passed) -> None:
        """A layer runs on parts."""
        layer = self.layers[at]
        self.passed[at] = passed
        for name, cut in zip(layer.inputs, passed.inputs, strict=True):
            before = self.cuts.get(name)
            if cut != before:
                self.move(at, name, before, cut, SWITCH if before else self.slice)
        outputs = zip(layer.outputs, passed.outputs, strict=True)
        self.cuts |= {name: cut for name, cut in outputs if cut is not None}

    def gather(self, at: int) -> bool:
        """A layer runs whole; says whether on what is gathered."""
        cut = [name for name in self.layers[at].inputs if name in self.cuts]
        for name in cut:
            self.move(at, name, self.cuts[name], None, GATHER)
        return len(cut) > 0

    def move(self, at: int, name: str, before: Cut | None, after: Cut | None, way: Way) -> None:
        """A layer reads a tensor so."""
        of = Move(name, before, after, self.sizes[name], way, name in self.with_gradient)
        readers = self._moves.setdefault(of, [])
        readers += [] if at in readers else [at]
