"""Sequence parallelism of tensor: between regions every rank has 1/p of the tokens.

Korthikanti et al. 2022 (arXiv:2205.05198), section 4.2.2: what works token by token between regions
(norms, dropout, residuals) runs on a part of the tokens. The linear layers that end a region scatter the
sums of their terms along the tokens; where a region begins, the parts are gathered. A whole tensor that
such a part is added to is sliced, for all that could read a part of it. What passes no part on (a head,
a class token, a mean over tokens) reads all parts, gathered. Linear layers with whole weights stay
whole: what they make, as logits, may be wider than what they read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from calib.foundation.layers import LOSSES, Shape
from calib.foundation.operators import PRIME
from calib.oracle.layout.cuts import Cut, Cuts, Passed, linear_weights, passed_apart, sizes_of
from calib.oracle.layout.regions import narrowest_of, region_cuts, regions
from calib.oracle.model.graph import INPUT
from calib.oracle.model.layer import Layer
from calib.oracle.model.spec import ModelSpec
from calib.oracle.once import once


class TokenTensor(NamedTuple):
    """A tensor that is cut along its tokens: how, its tokens, and the items of each, of one sample."""

    cut: Cut
    tokens: int
    items: int


@dataclass(frozen=True)
class TokenParts:
    """What is cut along the tokens; layers by place, tensors by name.

    `layers` run on parts; `rows` end a region, and scatter their sums. `sliced` are whole tensors of
    which each rank takes its part. `entries` are tensors that regions begin with, by the first column
    that reads them, and `ends` those that whole layers read. Both are gathered.
    """

    layers: dict[int, Passed] = field(default_factory=dict)
    rows: dict[int, Passed] = field(default_factory=dict)
    tensors: dict[str, TokenTensor] = field(default_factory=dict)
    sliced: tuple[str, ...] = ()
    entries: dict[int, str] = field(default_factory=dict)
    ends: tuple[str, ...] = ()


@once
def token_parts(model: ModelSpec) -> TokenParts:
    """How the tokens between the regions of a model are cut, the same for any number of parts."""
    search, sliced = _Search(model), dict[str, Cut]()
    while True:  # what reads a tensor that is sliced later on may have come before
        found, more = search.run(sliced)
        if not more:
            return found
        sliced |= more


@once
def narrowest_tokens(model: ModelSpec) -> tuple[int, int, str] | None:
    """What the number of parts divides, the fewest tokens of a layer, and its name; None without any."""
    found = token_parts(model)
    return narrowest_of(model, {**found.layers, **found.rows})


def first_whole_readers(model: ModelSpec, parts: TokenParts) -> dict[str, int]:
    """Of the tensors that whole layers read, gathered, the first of these layers."""
    found: dict[str, int] = {}
    cut = {*parts.layers, *(at for region in regions(model) for at in region.columns)}
    for at, layer in enumerate(model.layers):
        for name in layer.inputs if at not in cut else ():
            if name in parts.ends:
                found.setdefault(name, at)
    return found


def token_cut(size: Shape) -> Cut | None:
    """The cut of the tokens of a linear layer's output: of its first axis beside batch and features."""
    for axis, length in enumerate(size[:-1]):
        if length > PRIME and length % PRIME == 0:  # (samples * tokens, features)
            return Cut(axis, PRIME)
        if length not in (1, PRIME):
            return Cut(axis)
    return None


class _Search:
    """One layer after the other, in their order."""

    def __init__(self, model: ModelSpec) -> None:
        self._layers, self._of_region = model.layers, region_cuts(model)
        # of the first that reads it, the tensor that columns read
        self._columns = {at: "" for region in regions(model) for at in region.columns}
        self._columns |= {at: of for region in regions(model) for of, at in region.entries.items()}
        self._rows = {at for region in regions(model) for at in region.rows}
        self._sizes: dict[str, Shape] = {INPUT: (PRIME, *model.input_shape)}
        for layer in model.layers:
            self._sizes |= zip(layer.outputs, sizes_of(layer.shape)[1], strict=True)
        self._shared = {owner for of in model.layers for owner in of.shared_parameters.values()}
        self._with_gradient = {
            name for layer in model.layers for name, has in layer.gradients.items() if has
        }
        self._alike, self._known = model.alike, dict[tuple[object, ...], Passed | None]()

    def run(self, sliced: Mapping[str, Cut]) -> tuple[TokenParts, dict[str, Cut]]:
        """What is cut where these tensors are sliced, and others that must be, too."""
        layers, rows, entries = dict[int, Passed](), dict[int, Passed](), dict[int, str]()
        ends, more = dict[str, None](), dict[str, Cut]()
        own = dict[str, Cut]()  # tensors of which a rank makes its part alone
        for at, layer in enumerate(self._layers):
            cuts = tuple([own.get(name) or sliced.get(name) for name in layer.inputs])
            made: Cut | None = None
            if at in self._columns:
                entries |= {at: self._columns[at]} if any(cuts) and self._columns[at] else {}
                continue
            if at in self._rows:
                made = token_cut(self._sizes[layer.name])
                rows |= {at: Passed((None,), (made,))} if made else {}
            elif passed := self._apart(at, cuts, own):
                layers[at] = passed
                (made,) = passed.outputs
                inputs = zip(layer.inputs, passed.inputs, cuts, strict=True)
                more |= {name: cut for name, cut, before in inputs if cut and not before}
            else:
                ends |= dict.fromkeys(name for name in layer.inputs if name in own)
            own |= {layer.name: made} if made else {}
        read = {name for at in layers for name in self._layers[at].inputs}
        whole = tuple(
            [name for name in sliced if name not in own and name in {*read, *entries.values()}]
        )
        tensors = {
            name: self._tensor(name, cut)
            for name, cut in {**sliced, **own}.items()
            if name in own or name in whole
        }
        return TokenParts(layers, rows, tensors, whole, entries, tuple(ends)), more

    def _tensor(self, name: str, cut: Cut) -> TokenTensor:
        size = self._sizes[name]
        tokens = cut.width(size)
        return TokenTensor(cut, tokens, math.prod(size) // (PRIME * tokens))

    def _apart(self, at: int, cuts: Cuts, own: Mapping[str, Cut]) -> Passed | None:
        """How a layer passes parts on; what it adds to a rank's own part may be cut, too.

        Of a whole tensor that it reads every rank would make a part of the gradient alone.
        """
        layer = self._layers[at]
        if not any(cuts) or not self._may_pass(at):
            return None
        found = self._passed(at, cuts)
        if found is None and any(name in own for name in layer.inputs):
            found = self._passed(at, self._aligned(layer, cuts))
        if found is None:
            return None
        whole = {name for name, cut in zip(layer.inputs, found.inputs, strict=True) if not cut}
        return None if whole & self._with_gradient else found

    def _may_pass(self, at: int) -> bool:
        """Whether it has gradients, one output, no weights of other layers, and makes no product."""
        layer = self._layers[at]
        shared = bool(layer.shared_parameters) or layer.name in self._shared
        one = len(layer.outputs) == 1 and layer.shape.kind not in LOSSES
        is_product = linear_weights(layer.shape) is not None
        return layer.has_gradient and one and not (shared or is_product or at in self._of_region)

    def _passed(self, at: int, cuts: Cuts) -> Passed | None:
        """As in cuts.py, once for equal layers."""
        key = self._alike[at], cuts
        if key not in self._known:
            self._known[key] = passed_apart(self._layers[at].shape, cuts)
        return self._known[key]

    def _aligned(self, layer: Layer, cuts: Cuts) -> Cuts:
        """Whole inputs cut, too, where they have all items along the axis that is cut in another."""
        sizes = [self._sizes[name] for name in layer.inputs]
        cut, size = next((cut, size) for cut, size in zip(cuts, sizes, strict=True) if cut)
        behind, length = len(size) - cut.axis, size[cut.axis]

        def aligned(own: Cut | None, of: Shape) -> Cut | None:
            axis = len(of) - behind
            return own or (Cut(axis, cut.blocks) if axis >= 0 and of[axis] == length else None)

        return tuple(map(aligned, cuts, sizes))
