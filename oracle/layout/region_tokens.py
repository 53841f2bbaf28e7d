"""Sequence parallelism of tensor: between regions every rank has 1/p of the tokens.

Korthikanti et al. 2022 (arXiv:2205.05198), section 4.2.2: what works token by token between regions
(norms, dropout, residuals) runs on a part of the tokens. The linear layers that end a region scatter the
sums of their terms along the tokens; where a region begins, the parts are gathered. A whole tensor that
such a part is added to is sliced, for all that could read a part of it. What passes no part on (a head,
a class token, a mean over tokens) reads all parts, gathered. Linear layers with whole weights stay
whole: what they make, as logits, may be wider than what they read.
"""

from __future__ import annotations

from collections.abc import Mapping

from calib.foundation.layers import LOSSES, Shape
from calib.foundation.operators import PRIME
from calib.oracle.layout.cuts import Cut, Cuts, Passed, linear_weights, passed_apart
from calib.oracle.layout.regions import region_cuts, regions
from calib.oracle.layout.tokens import TokenParts, TokenWalk, Way
from calib.oracle.model.layer import Layer
from calib.oracle.model.spec import ModelSpec
from calib.oracle.once import once

BEGIN = Way("allgather", "reduce_scatter", narrows=True)
END = Way("reduce_scatter", "allgather", narrows=True)


@once
def token_parts(model: ModelSpec) -> TokenParts:
    """How the tokens between the regions of a model are cut, the same for any number of parts."""
    entered = dict[str, Cut]()
    while True:  # what reads a tensor that is sliced later on may have come before
        walk = _Walk(model, entered)
        found = walk.walk()
        if walk.entered == entered:
            return found
        entered = walk.entered


def token_cut(size: Shape) -> Cut | None:
    """The cut of the tokens of a linear layer's output: of its first axis beside batch and features."""
    for axis, length in enumerate(size[:-1]):
        if length > PRIME and length % PRIME == 0:  # (samples * tokens, features)
            return Cut(axis, PRIME)
        if length not in (1, PRIME):
            return Cut(axis)
    return None


class _Walk(TokenWalk):
    """From the ends of regions on; `entered` grows by what their parts are added to."""

    slice = Way(None, "allgather")  # what made it has the whole gradient

    def __init__(self, model: ModelSpec, entered: Mapping[str, Cut]) -> None:
        super().__init__(model, entered)
        self._inside = region_cuts(model)
        self._columns = {at for region in regions(model) for at in region.columns}
        self._rows = {at for region in regions(model) for at in region.rows}
        self._shared = {owner for of in model.layers for owner in of.shared_parameters.values()}

    def meet(self, at: int, layer: Layer, have: Cuts) -> None:
        """Columns read what is gathered, rows scatter what they make; parts are passed on between."""
        if at in self._columns:
            ((name,), (cut,)) = layer.inputs, have
            if cut and name not in self.cuts:
                self.move(at, name, None, cut, self.slice)
            if cut:
                self.move(at, name, cut, None, BEGIN)
        elif at in self._rows:
            if cut := token_cut(self.sizes[layer.name]):
                self.move(at, layer.name, None, cut, END)
                self.cuts[layer.name] = cut
        elif passed := self._pass(at, layer, have):
            whole = zip(layer.inputs, passed.inputs, strict=True)
            self.entered |= {name: cut for name, cut in whole if cut and name not in self.cuts}
            self.divide(at, passed)
        else:
            self.gather(at)

    def _pass(self, at: int, layer: Layer, have: Cuts) -> Passed | None:
        """What it adds to a rank's own part may be cut, too, but for weights and constants.

        Of a whole tensor that it reads every rank would make a part of the gradient alone.
        """
        if not any(have) or not self._may_pass(at, layer):
            return None
        found = passed_apart(layer.shape, have, cuts_whole=True)
        if found is None or found.beside:
            return None
        inputs = [*zip(layer.inputs, have, found.inputs, strict=True)]
        whole = {name for name, _, cut in inputs if not cut}
        cuts_more = any(cut and not before for _, before, cut in inputs)
        if whole & self.with_gradient or (cuts_more and self.cuts.keys().isdisjoint(layer.inputs)):
            return None
        return found

    def _may_pass(self, at: int, layer: Layer) -> bool:
        """Whether it has gradients, one output, no weights of other layers, and makes no product."""
        shared = bool(layer.shared_parameters) or layer.name in self._shared
        one = len(layer.outputs) == 1 and layer.shape.kind not in LOSSES
        is_product = linear_weights(layer.shape) is not None
        return layer.has_gradient and one and not (shared or is_product or at in self._inside)
