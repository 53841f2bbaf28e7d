"""What sequence parallelism divides: layers on parts of the tokens, attention on parts of the heads.

Jacobs et al. 2023 (DeepSpeed-Ulysses), section 3: layers that work token by token run on a rank's tokens
with whole weights. Before the products of attention, queries, keys and values are switched to all tokens
of a rank's heads, and behind them back, each by an all-to-all. Found in the graph, whatever the layers'
names (tokens.py): the parts begin with the first tensor whose parts reach the products of attention, and
end at layers that do not pass them on, which run whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from calib.foundation.layers import Shape
from calib.foundation.operators import PRIME
from calib.oracle.layout.cuts import Cut, Cuts, Passed, passed_apart, sizes_of
from calib.oracle.layout.regions import Narrowest, narrowest_of
from calib.oracle.layout.tokens import TokenParts, TokenWalk, Way, narrowest_tokens, tensor_sizes
from calib.oracle.model.layer import Layer
from calib.oracle.model.spec import ModelSpec
from calib.oracle.once import once

# products of attention: of each head by itself, but of all its tokens
PRODUCTS = ("scaled_dot_product_attention", "matmul", "bmm")
# of a part, of which its rank alone has a gradient
BESIDE_ZEROS = Way(None, None)


@once
def sequence_parts(model: ModelSpec) -> TokenParts | None:
    """What is divided; None for a model without attention whose tokens can be cut."""
    if not any(layer.shape.name in PRODUCTS for layer in model.layers):
        return None
    readers: dict[str, list[Layer]] = defaultdict(list)
    for layer in model.layers:
        for name in layer.inputs:
            readers[name].append(layer)
    for name, size in tensor_sizes(model).items():
        # behind a change of view alone the same parts begin, and a flattened axis may have more
        made = [of for layer in readers[name] for of in _views(layer)]
        if size[:1] != (PRIME,) or (made and all(of[:1] == (PRIME,) for of in made)):
            continue
        for axis in range(1, len(size)):
            if size[axis] > 1:
                walk = _Walk(model, {name: Cut(axis)})
                found = walk.walk()
                if walk.attends:
                    return found
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


class SequenceLimit(NamedTuple):
    """The tokens and the heads that are cut."""

    tokens: Narrowest
    heads: Narrowest

    @property
    def why(self) -> str:
        """What p divides, and what it is at most."""
        tokens, heads = self.tokens, self.heads
        first = "is at most" if tokens.filled else "divides"
        then = "and divides" if tokens.filled else "and"
        of_tokens = f"{tokens.fewest} tokens ({tokens.name})"
        return f"p {first} {of_tokens} {then} {heads.fewest} heads ({heads.name})"

    @property
    def most(self) -> int:
        """The largest p."""
        each = range(self.heads.common, 0, -1)
        return next(p for p in each if self.heads.allows(p) and self.tokens.allows(p))


@once
def sequence_limit(model: ModelSpec) -> SequenceLimit | None:
    """What limits p; None as in the search."""
    found = sequence_parts(model)
    if found is None:
        return None
    tokens = narrowest_tokens(model, found)
    heads = narrowest_of(model, {at: found.passed[at] for at in sorted(found.by_heads)})
    assert tokens is not None and heads is not None, "tokens are switched to heads"
    return SequenceLimit(tokens, heads)


class _Walk(TokenWalk):
    """What is divided if a rank has a part of one tensor, which is whole, too."""

    slice = BESIDE_ZEROS

    def __init__(self, model: ModelSpec, entered: Mapping[str, Cut]) -> None:
        super().__init__(model, entered)
        # where the tokens of all parts are; of tensors cut by heads beside the cut
        self._tokens = {**entered}
        self._behind: set[str] = set()  # made of tensors that were joined again
        self.attends = False  # whether parts of the tokens reach attention

    def meet(self, at: int, layer: Layer, have: Cuts) -> None:
        """As they are, else by heads, else by tokens; whole behind what was joined."""
        joined = not self._behind.isdisjoint(layer.inputs)
        if any(have) and not joined:
            for wanted in self._ways(layer, have):
                passed = self._pass(at, wanted)
                if passed is not None:
                    self._follow(at, layer, passed)
                    return
        if self.gather(at) or joined:
            self._behind.update(layer.outputs)

    def _ways(self, layer: Layer, have: Cuts) -> Iterator[Cuts]:
        """How a layer may read its parts."""
        yield have
        sizes = [self.sizes[name] for name in layer.inputs]
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
        layer = self.layers[at]
        if at < len(self.layers) - 1:
            return passed_apart(layer.shape, cuts, cuts_whole=True)
        # the mean of equal parts' means is the mean of all
        if len(cuts) > 1 or cuts[0] is None or cuts[0].blocks > 1 or not layer.shape.places:
            return None
        classes = (
            len(layer.shape.input_shapes[0]) if "classes_last" in layer.shape.attributes else 1
        )
        apart = layer.shape.kind == "mse" or cuts[0].axis != classes
        return Passed(cuts, (None,)) if apart else None

    def _follow(self, at: int, layer: Layer, passed: Passed) -> None:
        """A layer runs on parts: where the tokens are in what it makes."""
        for name, cut in zip(layer.inputs, passed.inputs, strict=True):
            if cut is not None and name in self._tokens and cut != self._tokens[name]:
                self.by_heads.add(at)
                self.attends |= cut != self.cuts.get(name)
        self.divide(at, passed)
        tokens = self._tokens_behind(layer, passed) if at in self.by_heads else passed.outputs
        self._tokens |= {
            name: of for name, of in zip(layer.outputs, tokens, strict=True) if of is not None
        }

    def _tokens_behind(self, layer: Layer, passed: Passed) -> Cuts:
        """Where the tokens are in the outputs of a layer that is cut by heads; None: not known."""
        if layer.shape.name in PRODUCTS:  # rows of the first factor
            return (Cut(len(self.sizes[layer.name]) - 2),)
        tokens = [
            self._tokens.get(name) if cut is not None else None
            for name, cut in zip(layer.inputs, passed.inputs, strict=True)
        ]
        found = passed_apart(layer.shape, tuple(tokens), cuts_whole=True) if any(tokens) else None
        return (None,) * len(passed.outputs) if found is None else found.outputs
