"""What sequence parallelism divides: layers on parts of the tokens, attention on parts of the heads.

Jacobs et al. 2023 (DeepSpeed-Ulysses), section 3: layers that work token by token run on a rank's tokens
with whole weights. Before the products of attention, queries, keys and values are switched to all tokens
of a rank's heads, and behind them back, each by an all-to-all. Found in the graph, whatever the layers'
names, by how operators pass a cut on (cuts.py): the parts begin with the first tensor whose parts reach
the products of attention, and end at layers that they do not pass, which run whole.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from calib.foundation.layers import Shape
from calib.foundation.operators import PRIME
from calib.oracle.layout.cuts import Cut, Cuts, Passed, passed_apart, sizes_of
from calib.oracle.model.graph import INPUT
from calib.oracle.model.layer import Layer
from calib.oracle.model.spec import ModelSpec
from calib.oracle.once import once

# products of attention: of each head by itself, but of all its tokens
PRODUCTS = ("scaled_dot_product_attention", "matmul", "bmm")


@dataclass(frozen=True)
class Move:
    """A tensor that layers read otherwise than a rank has it: cut as `after`, not as `before`.

    None: whole. So it is a slice (nothing is sent), an all-to-all, or an allgather. `size` is that of
    the whole tensor at PRIME samples, `readers` are the places of the layers, and `has_gradient` says
    whether one comes back.
    """

    name: str
    before: Cut | None
    after: Cut | None
    size: Shape
    readers: tuple[int, ...]
    has_gradient: bool

    @property
    def is_slice(self) -> bool:
        """Whether a rank cuts its part out of a whole tensor."""
        return self.before is None

    @property
    def is_gather(self) -> bool:
        """Whether the parts of all ranks are joined on each."""
        return self.after is None

    @property
    def items(self) -> int:
        """Of the whole tensor of one sample."""
        return math.prod(self.of_sample)

    @property
    def of_sample(self) -> Shape:
        """The size of one sample, or without one."""
        return tuple([n // PRIME if n % PRIME == 0 else n for n in self.size])

    def copies(self, parts: int) -> list[tuple[Literal["split", "concat"], str, Shape]]:
        """The copies that a rank makes, of x and of dL/dx: the tensor, with the cut axis in front.

        What it sends is split, and what has come is joined; of a slice or an allgather that is one of
        the two each way. Nothing for a tensor without samples, which is small.
        """
        if all(n % PRIME for n in self.size):
            return []

        def shape(cut_as: Cut | None, axis: int) -> Shape:
            sizes = [*self.of_sample]
            if cut_as is not None:
                sizes[cut_as.axis] //= parts
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
class SequenceParts:
    """Layers on parts, by place, and the moves of tensors, by their first readers.

    `by_heads` are the layers that have all tokens of some heads.
    """

    passed: Mapping[int, Passed]
    moves: tuple[Move, ...]
    by_heads: frozenset[int]


@once
def sequence_parts(model: ModelSpec) -> SequenceParts | None:
    """What is divided; None for a model without attention whose tokens can be cut."""
    if not any(layer.shape.name in PRODUCTS for layer in model.layers):
        return None
    readers: dict[str, list[int]] = defaultdict(list)
    for at, layer in enumerate(model.layers):
        for name in layer.inputs:
            readers[name].append(at)
    tensors = [(INPUT, (PRIME, *model.input_shape))]
    for layer in model.layers:
        tensors += zip(layer.outputs, sizes_of(layer.shape)[1], strict=True)
    for name, size in tensors:
        # behind a change of view alone the same parts begin, and a flattened axis may have more
        made = [of for at in readers[name] for of in _views(model.layers[at])]
        if size[0] != PRIME or (made and all(of[:1] == (PRIME,) for of in made)):
            continue
        for axis in range(1, len(size)):
            search = _Search(model, readers, name, Cut(axis))
            if size[axis] > 1 and search.run():
                return search.found()
    return None


def _views(layer: Layer) -> list[Shape]:
    """The sizes of what a layer makes, if it only changes the view; else one of no axes."""
    return sizes_of(layer.shape)[1] if layer.shape.is_free else [()]


@once
def loss_cut(model: ModelSpec) -> Cut | None:
    """How the loss's input is cut, where each rank has the mean of its own places; None: it is whole."""
    parts = sequence_parts(model)
    last = len(model.layers) - 1
    return parts.passed[last].inputs[0] if parts is not None and last in parts.passed else None


@once
def narrowest_parts(model: ModelSpec) -> dict[str, tuple[int, str]] | None:
    """The fewest "tokens" and "heads" that are cut, and a layer that has them; None as in the search.

    The number of parts divides both.
    """
    parts = sequence_parts(model)
    if parts is None:
        return None
    fewest: dict[str, tuple[int, str]] = {}
    for place, passed in sorted(parts.passed.items()):
        layer = model.layers[place]
        inputs, outputs = sizes_of(layer.shape)
        cuts = zip((*inputs, *outputs), (*passed.inputs, *passed.outputs), strict=True)
        width = math.gcd(*[cut.width(size) for size, cut in cuts if cut is not None])
        what = "heads" if place in parts.by_heads else "tokens"
        if what not in fewest or width < fewest[what][0]:
            fewest[what] = width, layer.name
    return fewest


class _Search:
    """What is divided if a rank has a part of one tensor, `entered`: each layer in its turn."""

    def __init__(
        self, model: ModelSpec, readers: Mapping[str, list[int]], entered: str, cut: Cut
    ) -> None:
        self._model, self._readers = model, readers
        self._sizes = {INPUT: (PRIME, *model.input_shape)}
        self._gradients = {INPUT: False}
        self._entered = {entered: cut}  # which is whole, too
        self._cuts: dict[str, Cut] = {}  # of tensors of which a rank has a part only
        # where the tokens of all parts are; of tensors cut by heads beside the cut
        self._tokens = {entered: cut}
        self._behind: set[str] = set()  # made of tensors that were joined again
        self._moves: dict[tuple[str, Cut | None], list[int]] = {}
        self._passed: dict[int, Passed] = {}
        self._by_heads: set[int] = set()
        self._attends = False
        self._last = max(readers[entered], default=-1)  # reader of a part

    def run(self) -> bool:
        """Whether parts of the tokens reach attention."""
        for at, layer in enumerate(self._model.layers):
            if at > self._last:
                break
            self._sizes |= zip(layer.outputs, sizes_of(layer.shape)[1], strict=True)
            self._gradients |= layer.gradients
            self._meet(at, layer)
        return self._attends

    def found(self) -> SequenceParts:
        """After a run."""
        moves = [
            Move(
                name,
                self._cuts.get(name),
                after,
                self._sizes[name],
                tuple(readers),
                self._gradients[name],
            )
            for (name, after), readers in self._moves.items()
        ]
        return SequenceParts(self._passed, tuple(moves), frozenset(self._by_heads))

    def _meet(self, at: int, layer: Layer) -> None:
        """Let a layer run on parts, if it can, else whole."""
        have = [self._cuts.get(name, self._entered.get(name)) for name in layer.inputs]
        joined = not self._behind.isdisjoint(layer.inputs)
        if any(have) and not joined:
            for wanted in self._ways(layer, have):
                passed = self._pass(at, wanted)
                if passed is not None:
                    self._divide(at, layer, passed)
                    return
        for name in dict.fromkeys(layer.inputs):
            if name in self._cuts:
                self._moves.setdefault((name, None), []).append(at)
                joined = True
        if joined:
            self._behind.update(layer.outputs)

    def _ways(self, layer: Layer, have: list[Cut | None]) -> Iterator[Cuts]:
        """How a layer may read its parts: as they are, else by heads, else by tokens."""
        yield tuple(have)
        sizes = [self._sizes[name] for name in layer.inputs]
        if layer.shape.name in PRODUCTS:
            rank = min(map(len, sizes))
            for axis in range(rank - 3, -1, -1):
                heads = Cut(axis) if axis else Cut(0, PRIME)
                cut = [size for size, of in zip(sizes, have, strict=True) if of is not None]
                if all(size[axis] > heads.blocks for size in cut):
                    yield tuple([of and heads for of in have])
        tokens = [self._tokens.get(name) for name in layer.inputs]
        if all(of is None or to is not None for of, to in zip(have, tokens, strict=True)):
            yield tuple([of and to for of, to in zip(have, tokens, strict=True)])

    def _pass(self, at: int, cuts: Cuts) -> Passed | None:
        layer = self._model.layers[at]
        if at < len(self._model.layers) - 1:
            return passed_apart(layer.shape, cuts, cuts_whole=True)
        # the mean of equal parts' means is the mean of all
        if len(cuts) > 1 or cuts[0] is None or cuts[0].blocks > 1 or not layer.shape.places:
            return None
        classes = (
            len(layer.shape.input_shapes[0]) if "classes_last" in layer.shape.attributes else 1
        )
        apart = layer.shape.kind == "mse" or cuts[0].axis != classes
        return Passed(cuts, (None,)) if apart else None

    def _divide(self, at: int, layer: Layer, passed: Passed) -> None:
        """A layer runs on parts."""
        by_heads = False
        for name, cut in dict(zip(layer.inputs, passed.inputs, strict=True)).items():
            before = self._cuts.get(name)
            if cut != before:
                self._moves.setdefault((name, cut), []).append(at)
            to_heads = cut is not None and name in self._tokens and cut != self._tokens[name]
            self._attends |= to_heads and cut != before
            by_heads |= to_heads
        if by_heads:
            self._by_heads.add(at)
        self._passed[at] = passed
        tokens = self._tokens_behind(layer, passed) if by_heads else passed.outputs
        for name, cut, of in zip(layer.outputs, passed.outputs, tokens, strict=True):
            if cut is not None:
                self._cuts[name] = cut
                self._last = max([self._last, *self._readers[name]])
            if of is not None:
                self._tokens[name] = of

    def _tokens_behind(self, layer: Layer, passed: Passed) -> Cuts:
        """Where the tokens are in the outputs of a layer that is cut by heads; None: not known."""
        if layer.shape.name in PRODUCTS:  # rows of the first factor
            return (Cut(len(sizes_of(layer.shape)[1][0]) - 2),)
        tokens = [
            self._tokens.get(name) if cut is not None else None
            for name, cut in zip(layer.inputs, passed.inputs, strict=True)
        ]
        found = passed_apart(layer.shape, tuple(tokens), cuts_whole=True) if any(tokens) else None
        return (None,) * len(passed.outputs) if found is None else found.outputs
