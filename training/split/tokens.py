"""Moves between a whole tensor and the part with this rank's tokens (sequence parallelism).

As oracle/layout/tokens.py cuts them. Where ranks make terms of their own of gathered parts, gradients
are summed and scattered; where all make the same of them, each rank takes its part of the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from calib.foundation.operators import PRIME
from calib.microbench.tensors import concat_shards, split_shards
from calib.oracle.layout.cuts import Cut
from calib.training.split.linear_map import mapped
from calib.training.split.moves import GroupLink, narrowed


class TokenMoves:
    """The moves of one tensor, at `batch` samples."""

    def __init__(self, link: GroupLink, cut: Cut, batch: int) -> None:
        self._link, self._axis, self._parts = link, cut.axis, link.group.size
        each, rest = divmod(cut.blocks, PRIME)  # as many for each sample
        self._blocks = cut.blocks if rest else each * batch

    def _rows(self, of: Tensor) -> tuple[int, int, int]:
        """The shape of a tensor, or of a part, with its tokens along the second axis."""
        at, blocks = self._axis, self._blocks
        rows, items = math.prod(of.shape[:at]) * blocks, math.prod(of.shape[at + 1 :])
        return rows, of.shape[at] // blocks, items

    def cut(self, whole: Tensor) -> Tensor:
        """This rank's part, contiguous."""
        rows, tokens, items = self._rows(whole)
        before, each = self._link.switch("pack"), tokens // self._parts
        part = whole.reshape(rows, tokens, items).narrow(1, each * self._link.group.rank, each)
        # a copy also where a view would do (one sample): the whole tensor can be freed
        part = part.clone(memory_format=torch.contiguous_format)
        part = part.view(self._sized(whole, whole.shape[self._axis] // self._parts))
        self._link.switch(before)
        return part

    def gather(self, part: Tensor) -> Tensor:
        """The whole tensor from all ranks' parts."""
        link, (rows, tokens, items) = self._link, self._rows(part)
        before = link.switch("pack")
        part = part.contiguous()
        landed = link.landing(part, part.numel() * self._parts)
        link.switch("layerwise")
        link.group.allgather(part.view(-1), landed)
        link.switch("pack")
        whole = concat_shards(landed, (rows, tokens * self._parts, items), self._parts)
        whole = whole.view(self._sized(part, part.shape[self._axis] * self._parts))
        link.switch(before)
        return whole

    def scatter(self, term: Tensor) -> Tensor:
        """This rank's part of the sum of all ranks' tensors."""
        link = self._link
        before = link.switch("pack")
        flat = split_shards(term.reshape(self._rows(term)), self._parts)
        part = term.new_empty(self._sized(term, term.shape[self._axis] // self._parts))
        link.switch("layerwise")
        link.group.reduce_scatter(flat, part.view(-1))
        link.switch(before)
        return part

    def _sized(self, like: Tensor, length: int) -> tuple[int, ...]:
        return (*like.shape[: self._axis], length, *like.shape[self._axis + 1 :])


class Moved(nn.Module):
    """A tensor that is moved by one map, and its gradient by the other.

    `narrows`: it travels in the type in which its readers compute.
    """

    def __init__(
        self,
        there: Callable[[Tensor], Tensor],
        back: Callable[[Tensor], Tensor],
        narrows: bool = False,
    ) -> None:
        super().__init__()
        self._there, self._back, self._narrows = there, back, narrows

    def forward(self, x: Tensor) -> Tensor:
        """x, moved."""
        return mapped(narrowed(x) if self._narrows else x, self._there, self._back)
