"""Halo exchange: rows from neighbouring parts, and their gradients back.

One dimension after the other, each in one call with all its messages, so that the corners that diagonal
neighbours have come along: along the second dimension a message is longer by the halo of the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from calib.microbench.communicator import TorchGroup
from calib.training.clock import PhaseClock
from calib.training.split.windows import Reach

Message = tuple[int, int, int]  # first row, rows, the other rank


class TensorHalo:
    """The halo exchange of one tensor of one layer on this rank.

    `reaches`: one for each cut dimension, with the ranks of `team` before and after (any number where
    nothing is sent). `fill` is what lies beyond the image.
    """

    def __init__(
        self,
        reaches: Sequence[tuple[Reach, int, int]],
        team: TorchGroup,
        clock: PhaseClock,
        fill: float = 0.0,
    ) -> None:
        self._sides = [
            _HaloDimension(*of, team, clock, fill) for of in reaches if not of[0].is_nothing
        ]

    def extend(self, x: Tensor) -> Tensor:
        """`x` with what the part needs and without what it does not; without a copy where possible."""
        for side in self._sides:
            x = side.extend(x)
        return x

    def give_back(self, gradient: Tensor) -> Tensor:
        """The transpose of `extend`: dL/dx of own rows, with what the neighbours' copies of them add.

        `gradient` is that of the extended tensor, and is overwritten.
        """
        for side in reversed(self._sides):
            gradient = side.give_back(gradient)
        return gradient


class _HaloDimension:
    """One dimension of a halo."""

    def __init__(
        self,
        reach: Reach,
        before: int,
        after: int,
        team: TorchGroup,
        clock: PhaseClock,
        fill: float,
    ) -> None:
        self._reach, self._dimension, self._team, self._fill = reach, reach.dimension, team, fill
        self._switch = clock.switch  # a context takes more than twice the Python
        last = reach.owns - reach.to_below
        # own rows that neighbours need, and rows that arrive
        given = [(0, reach.to_above, before), (last, reach.to_below, after)]
        taken = [(0, reach.above, before), (reach.above + reach.owns, reach.below, after)]
        self._given = [of for of in given if of[1]]
        self._taken = [of for of in taken if of[1]]
        # the parts that are used of [rows from above, own rows, rows from below]
        borders = (0, reach.above, reach.above + reach.owns, reach.above + reach.owns + reach.below)
        self._kept = [
            (
                max(reach.keep[0], start) - start,
                min(reach.keep[1], stop) - max(reach.keep[0], start),
            )
            for start, stop in pairwise(borders)
        ]

    def extend(self, x: Tensor) -> Tensor:
        reach, dimension = self._reach, self._dimension
        landed: list[Tensor] = []
        before = self._switch("pack")
        if reach.sends:
            leaving = [x.narrow(dimension, first, rows) for first, rows, _ in self._given]
            landed = self._exchange(x, leaving, self._given, self._taken)
        if reach.joins:
            x = self._join(x, landed)
        else:
            first, stop = reach.keep
            if stop - first != reach.owns:
                x = x.narrow(dimension, first, stop - first)
        self._switch(before)
        return x

    def give_back(self, gradient: Tensor) -> Tensor:
        reach = self._reach
        if not reach.sends:
            return self._part(gradient, reach.above, reach.owns)
        before = self._switch("pack")
        leaving = [self._part(gradient, first, rows) for first, rows, _ in self._taken]
        own = self._part(gradient, reach.above, reach.owns)
        landed = self._exchange(gradient, leaving, self._taken, self._given)
        for piece, (first, rows, _) in zip(landed, self._given, strict=True):
            own.narrow(self._dimension, first, rows).add_(piece)
        self._switch(before)
        return own

    def _exchange(
        self, like: Tensor, leaving: list[Tensor], sends: list[Message], receives: list[Message]
    ) -> list[Tensor]:
        """Send the rows `leaving` of `like`; returns the rows that arrive."""
        outgoing = [(x.contiguous(), rank) for x, (*_, rank) in zip(leaving, sends, strict=True)]
        incoming = [(self._rows(like, rows), rank) for _, rows, rank in receives]
        self._switch("halo")
        self._team.exchange(outgoing, incoming)
        self._switch("pack")
        return [piece for piece, _ in incoming]

    def _join(self, x: Tensor, landed: list[Tensor]) -> Tensor:
        reach, dimension = self._reach, self._dimension
        above = landed[0] if reach.above else None
        below = landed[-1] if reach.below else None
        pieces = []
        if reach.before:
            pieces.append(self._rows(x, reach.before).fill_(self._fill))
        for piece, (first, rows) in zip((above, x, below), self._kept, strict=True):
            if piece is not None and rows > 0:
                whole = rows == piece.shape[dimension]
                pieces.append(piece if whole else piece.narrow(dimension, first, rows))
        if reach.after:
            pieces.append(self._rows(x, reach.after).fill_(self._fill))
        return torch.cat(pieces, dimension)

    def _part(self, gradient: Tensor, first: int, rows: int) -> Tensor:
        """The gradient of some rows of above + own + below; zero where they were not used."""
        reach, dimension = self._reach, self._dimension
        start, stop = max(first, reach.keep[0]), min(first + rows, reach.keep[1])
        used = max(0, stop - start)
        at = start - reach.keep[0] + reach.before
        if used == rows:
            return gradient.narrow(dimension, at, rows)
        part = self._rows(gradient, rows).zero_()
        if used:
            part.narrow(dimension, start - first, used).copy_(gradient.narrow(dimension, at, used))
        return part

    def _rows(self, like: Tensor, rows: int) -> Tensor:
        """An uninitialised tensor like `like` with so many rows along this dimension."""
        shape = list(like.shape)
        shape[self._dimension] = rows
        return like.new_empty(shape)
