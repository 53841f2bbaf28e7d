"""Tensors between layers cut in different ways: boxes fetched from owners, gradients back.

Each exchange is one call of the communicator's posted receives and sends. They form a chain: each takes
a token from the one before, so that the backward passes through them in the opposite order on every
rank, whatever the branches of the model, and also where a rank has no part of the next layer. Ranks
therefore meet in the same order in both directions and cannot deadlock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from calib.microbench.communicator import TorchGroup
from calib.oracle.layout.partitions import Box, items, overlap
from calib.training.clock import PhaseClock
from calib.training.plans.routes import InputRoute


class ExchangeToken:
    """The token of an iteration, which the next exchange takes."""

    def __init__(self) -> None:
        self.token: Tensor | None = None
        self.linked = False

    def begin(self, like: Tensor) -> None:
        """A new iteration."""
        self.token = like.new_zeros((), requires_grad=True)
        self.linked = False

    def roots(self) -> tuple[list[Tensor], list[Tensor | None]]:
        """Further roots of the backward and their gradients; none where nothing was exchanged."""
        if not self.linked or self.token is None:
            return [], []
        return [self.token], [torch.zeros_like(self.token)]

    def link(self, x: Tensor | None, work: Any) -> Tensor | None:
        """`work.there(x)`, whose backward is `work.back`, after the exchanges so far."""
        found: tuple[Tensor, Tensor | None] = _linked(self.token, x, work)
        self.token, y = found
        self.linked = True
        return y


class _Linked(Function):
    @staticmethod
    def forward(ctx: Any, token: Tensor, x: Tensor | None, work: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.work, ctx.has_input = work, x is not None
        return token.view_as(token), work.there(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, token: Tensor, gradient: Tensor | None) -> Any:
        found = ctx.work.back(gradient)
        return token, found if ctx.has_input else None, None


_linked: Any = _Linked.apply  # torch has no types for it


class CutBox:
    """Cuts `box` out of a tensor of the box `within`: a view."""

    def __init__(self, box: Box, within: Box) -> None:
        self._along = [
            (d, a - at, b - a)
            for d, ((a, b), (at, to)) in enumerate(zip(box, within, strict=True))
            if (a, b) != (at, to)
        ]

    def of(self, whole: Tensor) -> Tensor:
        """The part; the tensor itself where the boxes are equal."""
        for dimension, first, length in self._along:  # in a third of the time of whole[...]
            whole = whole.narrow(dimension, first, length)
        return whole


def sizes(box: Box) -> list[int]:
    """Lengths of its sides."""
    return [b - a for a, b in box]


class JoinBoxes:
    """Joins parts, each with its box, into a tensor of `whole`, with `fill` where there is none.

    One concatenation where the parts line up along one dimension; else they are copied one by one.
    """

    def __init__(self, whole: Box, parts: Sequence[Box], fill: float, like: Tensor) -> None:
        self._sizes, self._fill, self._like = sizes(whole), fill, like
        self._places = [CutBox(part, whole) for part in parts]
        self._tiled = sum(map(items, parts)) == items(whole)
        self._line = self._in_line(whole, parts) if parts else None

    def _in_line(
        self, whole: Box, parts: Sequence[Box]
    ) -> tuple[int, list[tuple[int, Tensor | None]]] | None:
        """The dimension, and the pieces along it in order: a part by its number, or filling."""
        apart = {d for part in parts for d, of in enumerate(part) if of != whole[d]}
        if len(apart) != 1:
            return None
        (dimension,) = apart
        row: list[tuple[int, Tensor | None]] = []
        at, end = whole[dimension]
        for number in sorted(range(len(parts)), key=lambda n: parts[n][dimension]):
            first, stop = parts[number][dimension]
            if first > at:
                row.append((-1, self._filling(dimension, first - at)))
            row.append((number, None))
            at = stop
        return dimension, [*row, *([(-1, self._filling(dimension, end - at))] if end > at else [])]

    def _filling(self, dimension: int, length: int) -> Tensor:
        shape = list(self._sizes)
        shape[dimension] = length
        return self._like.new_full(shape, self._fill)

    def of(self, parts: Sequence[Tensor]) -> Tensor:
        """The whole: a new tensor."""
        if self._line is not None:
            dimension, row = self._line
            pieces = [parts[n] if filling is None else filling for n, filling in row]
            return torch.cat(pieces, dimension)
        whole = (
            self._like.new_empty(self._sizes)
            if self._tiled
            else self._like.new_full(self._sizes, self._fill)
        )
        for piece, place in zip(parts, self._places, strict=True):
            place.of(whole).copy_(piece)
        return whole


class Fetch:
    """Runs a route: `there` goes from what this rank has to what its part runs on, `back` returns.

    `fill` is what lies beyond the image. `fresh`: only this reader has the gradient that comes back, so
    it may be written to. `like` gives item type and device. Copies count as "pack", messages as `phase`.
    """

    def __init__(
        self,
        route: InputRoute,
        team: TorchGroup,
        clock: PhaseClock,
        phase: str,
        fill: float,
        fresh: bool,
        like: Tensor,
    ) -> None:
        self._route, self._team, self._switch, self._phase = route, team, clock.switch, phase
        self._like, of = like, route
        self._leaving = [(CutBox(box, of.own), rank) for rank, box in of.sends] if of.own else []
        self._coming = [(sizes(box), rank) for rank, box in of.receives]
        self._local = CutBox(of.local, of.own) if of.local and of.own else None
        self._join, self._back = None, []
        self._local_back: CutBox | None = None
        if of.whole is not None:
            pieces = [*([of.local] if of.local else []), *(box for _, box in of.receives)]
            if not of.is_direct and pieces != [of.whole]:
                self._join = JoinBoxes(of.whole, pieces, fill, like)
            self._back = [(CutBox(box, of.whole), rank) for rank, box in of.receives]
            # not copied, so with the rows that no window reaches
            read = of.own if of.is_direct and of.own else of.whole
            self._local_back = CutBox(of.local, read) if of.local else None
        self._returning = [(sizes(box), rank) for rank, box in of.sends]
        self._sum = _Sum(route, fresh, like) if of.own is not None else None

    def there(self, x: Tensor | None) -> Tensor | None:
        """What the part runs on: `x` itself, one message as it landed, or a new tensor."""
        before = self._switch("pack")
        landed = self._travel(x, self._leaving, self._coming)
        y = self._whole(x, landed)
        self._switch(before)
        return y

    def back(self, gradient: Tensor | None) -> Tensor | None:
        """dL/dx of what this rank has, from that of what its part ran on (None: zero)."""
        before = self._switch("pack")
        if gradient is None and self._route.whole is not None:
            gradient = self._like.new_zeros(sizes(self._route.whole))
        landed = self._travel(gradient, self._back, self._returning)
        found = None
        if self._sum is not None:
            local = None
            if self._local_back is not None and gradient is not None:
                local = self._local_back.of(gradient)
            found = self._sum.of(local, landed)
        self._switch(before)
        return found

    def _travel(
        self,
        whole: Tensor | None,
        leaving: Sequence[tuple[CutBox, int]],
        coming: Sequence[tuple[list[int], int]],
    ) -> list[Tensor]:
        """Send boxes of a tensor; returns what arrived."""
        outgoing = []
        if leaving:
            assert whole is not None
            outgoing = [(cut.of(whole).contiguous(), rank) for cut, rank in leaving]
        incoming = [(self._like.new_empty(size), rank) for size, rank in coming]
        if outgoing or incoming:
            self._switch(self._phase)
            self._team.exchange(outgoing, incoming)
            self._switch("pack")
        return [piece for piece, _ in incoming]

    def _whole(self, x: Tensor | None, landed: list[Tensor]) -> Tensor | None:
        if self._route.whole is None:
            return None
        if self._route.is_direct:
            assert x is not None
            return x.view_as(x)
        if self._local is not None:
            assert x is not None
            landed.insert(0, self._local.of(x))
        return landed[0] if self._join is None else self._join.of(landed)


class _Sum:
    """Sums the gradient of what a rank has from those of its readers."""

    def __init__(self, route: InputRoute, fresh: bool, like: Tensor) -> None:
        assert route.own is not None
        self._own, self._like, self._fresh = route.own, like, fresh
        boxes = [*([route.local] if route.local else []), *(box for _, box in route.sends)]
        apart = all(not items(overlap(a, b)) for i, a in enumerate(boxes) for b in boxes[i + 1 :])
        # parts that tile it are joined; else they are added to one that covers it, or to zeros
        self._join = None
        if apart and len(boxes) > 1 and sum(map(items, boxes)) == items(route.own):
            self._join = JoinBoxes(route.own, boxes, 0.0, like)
        self._cuts = [CutBox(box, route.own) for box in boxes]
        self._first = boxes.index(route.own) if route.own in boxes else None

    def of(self, local: Tensor | None, landed: list[Tensor]) -> Tensor | None:
        """The sum; `local` is a view of the gradient that came back."""
        pieces = [*([local] if local is not None else []), *landed]
        if not pieces:
            return None
        if self._join is not None:
            return self._join.of(pieces)
        if self._first is not None:
            total = pieces[self._first]
            if total is local and len(pieces) > 1 and not self._fresh:
                total = total.clone(memory_format=torch.contiguous_format)
        else:
            total = self._like.new_zeros(sizes(self._own))
        for number, (piece, cut) in enumerate(zip(pieces, self._cuts, strict=True)):
            if number != self._first:
                cut.of(total).add_(piece)
        return total


class SumTerms:
    """Sums the ranks' terms of one output; each rank keeps its channels of the sum.

    A reduce-scatter along `axis`. In the backward dL/dy of all channels is gathered, because every term
    has all channels.
    """

    def __init__(self, team: TorchGroup, clock: PhaseClock, axis: int) -> None:
        self._team, self._switch, self.axis = team, clock.switch, axis

    def there(self, term: Tensor) -> Tensor:
        """This rank's channels of the sum."""
        before = self._switch("pack")
        outgoing = torch.stack(term.chunk(self._team.size, self.axis))
        mine = torch.empty_like(outgoing[0])
        self._switch("layerwise")
        self._team.reduce_scatter(outgoing.view(-1), mine.view(-1))
        self._switch(before)
        return mine

    def back(self, gradient: Tensor | None) -> Tensor:
        """dL/dy of all channels."""
        before = self._switch("pack")
        assert gradient is not None  # every part of a layer is read
        mine = gradient.contiguous()
        landed = mine.new_empty((self._team.size, *mine.shape))
        self._switch("layerwise")
        self._team.allgather(mine.view(-1), landed.view(-1))
        self._switch("pack")
        whole = torch.cat(landed.unbind(0), self.axis)
        self._switch(before)
        return whole
