"""Tensors that are moved where tokens are cut: sliced, gathered, scattered, switched to heads and back.

As oracle/layout/tokens.py has them. The backward of a move is its transpose. Where ranks make terms of
their own of what is gathered, gradients are summed and scattered. Where all go on alike with it, they
have the same gradient, of which each takes its part; times the number of ranks, if gradients are
averaged after the backward.

Where parts do not divide the tokens (17 with a class token), the last ones are filled up with copies of
the last token, which are left out where parts are joined, and have no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from calib.oracle.layout.tokens import Way
from calib.training.split.linear_map import mapped
from calib.training.split.moves import GroupLink, narrowed

# which torch has no types for
_unflatten: Callable[[Tensor, int, Sequence[int]], Tensor] = Tensor.unflatten


class Parts(NamedTuple):
    """`number` equal parts of each of the `blocks` of an axis, which are `width` long."""

    axis: int
    blocks: int
    width: int
    number: int

    @property
    def each(self) -> int:
        """Items of a block that a part has, some of which may fill it up."""
        return -(-self.width // self.number)

    def size(self, like: Tensor, each: int) -> list[int]:
        """That of `like`, with `each` items of a block."""
        return [*like.shape[: self.axis], self.blocks * each, *like.shape[self.axis + 1 :]]

    def owned(self, index: int) -> tuple[int, int]:
        """The first item of a part, and how many are its own."""
        first = min(index * self.each, self.width)
        return first, min(self.each, self.width - first)

    def in_blocks(self, x: Tensor) -> Tensor:
        """A view (..., blocks, items of each, ...)."""
        return _unflatten(x, self.axis, (self.blocks, -1))

    def cut(self, whole: Tensor, index: int, part: Tensor, fills: bool) -> Tensor:
        """Copy a part into (..., blocks, each, ...); what is left is the last item again, or zero."""
        axis, (first, count), x = self.axis + 1, self.owned(index), self.in_blocks(whole)
        part.narrow(axis, 0, count).copy_(x.narrow(axis, first, count))
        left = part.narrow(axis, count, self.each - count)
        if left.numel():
            last = x.narrow(axis, self.width - 1, 1)
            left.copy_(last.expand_as(left)) if fills else left.zero_()
        return part

    def join(self, pieces: Tensor, whole: Tensor) -> Tensor:
        """Copy all parts, each (..., blocks, each, ...), into the whole tensor."""
        axis, x = self.axis + 1, self.in_blocks(whole)
        if self.each * self.number == self.width:
            apart = _unflatten(x, axis, (self.number, -1)).movedim(axis, 0)
            apart.copy_(pieces)
            return whole
        for index, piece in enumerate(pieces):
            first, count = self.owned(index)
            x.narrow(axis, first, count).copy_(piece.narrow(axis, 0, count))
        return whole

    def all_cut(self, whole: Tensor, fills: bool) -> Tensor:
        """All parts, one behind the other, each (..., blocks, each, ...)."""
        if self.each * self.number == self.width:
            apart = _unflatten(whole, self.axis, (self.blocks, self.number, -1))
            apart = apart.movedim(self.axis + 1, 0)
            return apart.clone(memory_format=torch.contiguous_format)
        size = self.in_blocks(whole).shape
        cut = [*size[: self.axis + 1], self.each, *size[self.axis + 2 :]]
        made = whole.new_empty([self.number, *cut])
        for index in range(self.number):
            self.cut(whole, index, made[index], fills)
        return made


def empty_in_order(like: Tensor, size: list[int]) -> Tensor:
    """Room for a dense tensor whose axes are in the same order in memory as those of `like`."""
    strides = like.stride()
    order = sorted(range(like.dim()), key=lambda axis: -strides[axis])
    back = sorted(range(like.dim()), key=lambda axis: order[axis])
    return like.new_empty([size[axis] for axis in order]).permute(back)


class Moved(nn.Module):
    """A tensor that is moved from some parts to others, and its gradient back; None: whole.

    All keep the order of axes in memory. `averages`: gradients of weights are averaged after the
    backward, not summed.
    """

    def __init__(
        self, way: Way, before: Parts | None, after: Parts | None, link: GroupLink, averages: bool
    ) -> None:
        super().__init__()
        self._way, self._before, self._after, self._link = way, before, after, link
        self._times = link.group.size if averages else 1

    def forward(self, x: Tensor) -> Tensor:
        """x as its readers have it."""
        return mapped(narrowed(x) if self._way.narrows else x, self._there, self._back)

    def _there(self, x: Tensor) -> Tensor:
        return self._moved(x, self._way.forward, self._before, self._after, fills=True)

    def _back(self, gradient: Tensor) -> Tensor:
        return self._moved(gradient, self._way.backward, self._after, self._before, fills=False)

    def _moved(
        self,
        x: Tensor,
        operation: str | None,
        before: Parts | None,
        after: Parts | None,
        fills: bool,
    ) -> Tensor:
        link = self._link
        phase = link.switch("pack")
        if before is None:
            assert after is not None
            made = self._scattered(x, after, fills) if operation else self._own(x, after, fills)
        elif after is None:
            made = self._gathered(x, before) if operation else self._beside_zeros(x, before)
        else:
            made = self._switched(x, before, after, fills)
        link.switch(phase)
        return made

    def _own(self, whole: Tensor, parts: Parts, fills: bool) -> Tensor:
        """A copy of this rank's part, so that the whole tensor can be freed."""
        part = empty_in_order(whole, parts.size(whole, parts.each))
        parts.cut(whole, self._link.group.rank, parts.in_blocks(part), fills)
        return part if fills or self._times == 1 else part.mul_(self._times)

    def _beside_zeros(self, part: Tensor, parts: Parts) -> Tensor:
        """A whole tensor that has this rank's part alone."""
        whole = part.new_zeros(parts.size(part, parts.width))
        first, count = parts.owned(self._link.group.rank)
        mine = parts.in_blocks(whole).narrow(parts.axis + 1, first, count)
        mine.copy_(parts.in_blocks(part).narrow(parts.axis + 1, 0, count))
        return whole

    def _gathered(self, part: Tensor, parts: Parts) -> Tensor:
        """The whole tensor from all ranks' parts."""
        link, mine = self._link, part.contiguous()
        landed = link.landing(mine, mine.numel() * parts.number)
        link.switch("layerwise")
        link.group.allgather(mine.view(-1), landed)
        link.switch("pack")
        pieces = landed.view(parts.number, *parts.in_blocks(part).shape)
        return parts.join(pieces, empty_in_order(part, parts.size(part, parts.width)))

    def _scattered(self, term: Tensor, parts: Parts, fills: bool) -> Tensor:
        """This rank's part of the sum of all ranks' tensors."""
        link, outgoing = self._link, parts.all_cut(term, fills)
        part = term.new_empty(parts.size(term, parts.each))
        link.switch("layerwise")
        link.group.reduce_scatter(outgoing.view(-1), part.view(-1))
        link.switch("pack")
        return part

    def _switched(self, part: Tensor, before: Parts, after: Parts, fills: bool) -> Tensor:
        """The part cut as `after` of the tensor of which every rank has that cut as `before`."""
        link, outgoing = self._link, after.all_cut(part, fills)
        incoming = outgoing.new_empty(outgoing.shape)
        link.switch("layerwise")
        link.group.all_to_all(outgoing.view(-1), incoming.view(-1))
        link.switch("pack")
        del outgoing
        like = incoming[0].flatten(after.axis, after.axis + 1)
        made = empty_in_order(part, before.size(like, before.width))
        pieces = incoming.flatten(1 + after.axis, 2 + after.axis)
        return before.join(_unflatten(pieces, 1 + before.axis, (before.blocks, -1)), made)
