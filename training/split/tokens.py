"""Tensors that are moved where tokens are cut: sliced, gathered, scattered, switched to heads and back.

As oracle/layout/tokens.py has them. The backward of a move is its transpose. Where ranks make terms of
their own of what is gathered, gradients are summed and scattered. Where all go on alike with it, they
have the same gradient, of which each takes its part; times the number of ranks, if gradients are
averaged after the backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from calib.oracle.layout.cuts import Cut
from calib.oracle.layout.tokens import Way
from calib.training.split.linear_map import mapped
from calib.training.split.moves import GroupLink, narrowed

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


class Moved(nn.Module):
    """A tensor that is moved from one cut to another, and its gradient back; None: whole.

    All keep the order of axes in memory. `averages`: gradients of weights are averaged after the
    backward, not summed.
    """

    def __init__(
        self, way: Way, before: Cut | None, after: Cut | None, link: GroupLink, averages: bool
    ) -> None:
        super().__init__()
        self._way, self._before, self._after, self._link = way, before, after, link
        self._times = link.group.size if averages else 1

    def forward(self, x: Tensor) -> Tensor:
        """x as its readers have it."""
        return mapped(narrowed(x) if self._way.narrows else x, self._there, self._back)

    def _there(self, x: Tensor) -> Tensor:
        """Without a gradient."""
        before = self._link.switch("pack")
        made = self._sent(x, self._way.forward, self._before, self._after)
        if made is None:
            assert self._after is not None
            mine = own_part(x, self._after, self._link)
            # a copy, so that the whole one can be freed
            made = empty_in_order(x, [*mine.shape]).copy_(mine)
        self._link.switch(before)
        return made

    def _back(self, gradient: Tensor) -> Tensor:
        """That of x."""
        before = self._link.switch("pack")
        made = self._sent(gradient, self._way.backward, self._after, self._before)
        if made is None and self._before is not None:
            made = own_part(gradient, self._before, self._link) * self._times
        elif made is None:
            made = self._beside_zeros(gradient)
        self._link.switch(before)
        return made

    def _beside_zeros(self, gradient: Tensor) -> Tensor:
        """Of a whole tensor that has the gradient of this rank's part."""
        cut, link = self._after, self._link
        assert cut is not None
        size = [*gradient.shape]
        size[cut.axis] *= link.group.size
        whole = gradient.new_zeros(size)
        mine = apart(whole, cut, link.group.size)[link.group.rank]
        mine.copy_(_unflatten(gradient, cut.axis, (cut.blocks, -1)))
        return whole

    def _sent(
        self, x: Tensor, operation: str | None, before: Cut | None, after: Cut | None
    ) -> Tensor | None:
        """What comes of x when ranks send; None if nothing is sent."""
        if operation == "allgather":
            assert before is not None
            return self._gathered(x, before)
        if operation == "reduce_scatter":
            assert after is not None
            return self._scattered(x, after)
        if operation == "all_to_all":
            assert before is not None and after is not None
            return self._switched(x, before, after)
        return None

    def _gathered(self, part: Tensor, cut: Cut) -> Tensor:
        """The whole tensor from all ranks' parts."""
        link, parts = self._link, self._link.group.size
        mine = part.contiguous()
        landed = link.landing(mine, mine.numel() * parts)
        link.switch("layerwise")
        link.group.allgather(mine.view(-1), landed)
        link.switch("pack")
        size = [*part.shape]
        size[cut.axis] *= parts
        whole = empty_in_order(part, size)
        pieces = landed.view(parts, *part.shape)
        apart(whole, cut, parts).copy_(_unflatten(pieces, 1 + cut.axis, (cut.blocks, -1)))
        return whole

    def _scattered(self, term: Tensor, cut: Cut) -> Tensor:
        """This rank's part of the sum of all ranks' tensors."""
        link, parts = self._link, self._link.group.size
        outgoing = apart(term, cut, parts).clone(memory_format=torch.contiguous_format)
        part = outgoing.new_empty(outgoing[0].flatten(cut.axis, cut.axis + 1).shape)
        link.switch("layerwise")
        link.group.reduce_scatter(outgoing.view(-1), part.view(-1))
        link.switch("pack")
        return part

    def _switched(self, part: Tensor, before: Cut, after: Cut) -> Tensor:
        """The part cut as `after` of the tensor of which every rank has that cut as `before`."""
        link, parts = self._link, self._link.group.size
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
        return made
