"""The exchange of gradients of spatial and of data+spatial: parts summed, replicas averaged.

A split layer's gradients are each rank's part of the sum; a whole layer's are the same on all ranks of
a group, so that summing them over a group makes them p2 times as large.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from calib.foundation.division import Division
from calib.microbench.tensors import flat_buffer
from calib.training.teams import Teams
from calib.training.worker import Held


class GroupedGradients:
    """One flat buffer of all weights, "partial" ones first, summed over all p ranks.

    spatial: an allreduce. data+spatial (Division.gradients): "leaders", reduce to the first of each
    group, allreduce of those, broadcast in the group (ParaDL section 4.5); "all", reduce-scatter in the
    group, allreduce of each slice across the groups, allgather in the group.
    """

    def __init__(self, held: Sequence[Held], teams: Teams, division: Division) -> None:
        self._teams, self._p, self._replicas = teams, division.p, division.replicas
        self._order = sorted(range(len(held)), key=lambda i: held[i].gradient != "partial")
        parameters = [held[i].parameter for i in self._order]
        first = parameters[0]
        items = [parameter.numel() for parameter in parameters]
        everyone = division.gradients == "all" and teams.across is not None
        # a reduce-scatter takes equal slices
        padding = -sum(items) % division.parts if everyone else 0
        shapes = [*(tuple(p.shape) for p in parameters), (padding,)]
        self._flat = flat_buffer(shapes, first.dtype, first.device)
        self._flat.zero_()
        pieces = torch.split(self._flat, [*items, padding])[: len(items)]
        views = [piece.view_as(p) for piece, p in zip(pieces, parameters, strict=True)]
        place = {index: at for at, index in enumerate(self._order)}
        self._views = [views[place[i]] for i in range(len(held))]
        self._gradients = self._flat[: sum(items)]
        partial = sum(h.parameter.numel() for h in held if h.gradient == "partial")
        self._partial, self._same = self._gradients[:partial], self._gradients[partial:]
        self._slice = self._flat.new_empty(len(self._flat) // division.parts if everyone else 0)
        ways: dict[bool, Callable[[], None]] = {True: self._by_all, False: self._by_leaders}
        self._travel = ways[everyone] if teams.across is not None else self._in_one

    def pack(self, gradients: Sequence[Tensor]) -> None:
        """Copy the gradients into the flat buffer."""
        torch.cat([gradients[i].reshape(-1) for i in self._order], out=self._gradients)

    def exchange(self) -> None:
        """Sum the flat buffer over all ranks."""
        self._travel()

    def unpack(self, gradients: Sequence[Tensor]) -> None:
        """Those of the mean over all samples, back in their places."""
        if self._replicas > 1:
            self._partial.div_(self._replicas)
        self._same.div_(self._p)
        torch._foreach_copy_(list(gradients), self._views)

    def _in_one(self) -> None:
        self._teams.world.allreduce(self._flat)

    def _by_leaders(self) -> None:
        group, leaders = self._teams.group, self._teams.leaders
        assert group is not None
        group.reduce(self._flat, 0)
        if leaders is not None:
            leaders.allreduce(self._flat)
        group.broadcast(self._flat, 0)

    def _by_all(self) -> None:
        group, across = self._teams.group, self._teams.across
        assert group is not None and across is not None
        group.reduce_scatter(self._flat, self._slice)
        across.allreduce(self._slice)
        group.allgather(self._slice, self._flat)
