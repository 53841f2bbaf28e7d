"""Gradients in one flat buffer, exchanged after the backward: packed, summed, unpacked."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from calib.foundation.division import Division
from calib.microbench.communicator import TorchGroup
from calib.microbench.tensors import flat_buffer, pack, unpack
from calib.training.teams import Teams
from calib.training.worker import Held


class FlatAllreduce:
    """All gradients, summed by the communicator's allreduce and divided.

    `divisor` is what the sums are divided by: the ranks of the communicator where none is given.
    """

    def __init__(
        self, parameters: Sequence[Tensor], communicator: TorchGroup, divisor: int = 0
    ) -> None:
        self._communicator = communicator
        self._divisor = divisor or communicator.size
        first = parameters[0]
        self._flat = flat_buffer([tuple(p.shape) for p in parameters], first.dtype, first.device)

    def pack(self, gradients: Sequence[Tensor]) -> None:
        """Copy the gradients into the flat buffer."""
        pack(gradients, self._flat)

    def exchange(self) -> None:
        """Sum the flat buffer over the ranks."""
        self._communicator.allreduce(self._flat)

    def unpack(self, gradients: Sequence[Tensor]) -> None:
        """Average and copy back."""
        unpack(self._flat, gradients, self._divisor)


class GroupSums:
    """Gradients that several ranks have terms of, summed over those ranks; the others stay.

    `groups`: places among the rank's parameters with the communicator of the ranks that share them, in
    the same order on every rank, so that no two groups wait for one another. One allreduce for each.
    """

    def __init__(
        self, parameters: Sequence[Tensor], groups: Sequence[tuple[Sequence[int], TorchGroup]]
    ) -> None:
        self._sums = [
            (places, FlatAllreduce([parameters[i] for i in places], group, divisor=1))
            for places, group in groups
        ]

    def pack(self, gradients: Sequence[Tensor]) -> None:
        """Copy the gradients into the flat buffers."""
        for places, flat in self._sums:
            flat.pack([gradients[i] for i in places])

    def exchange(self) -> None:
        """Sum them, group by group."""
        for _, flat in self._sums:
            flat.exchange()

    def unpack(self, gradients: Sequence[Tensor]) -> None:
        """Copy the sums back."""
        for places, flat in self._sums:
            flat.unpack([gradients[i] for i in places])


class GroupedGradients:
    """The gradients of spatial and data+spatial: parts summed, replicas averaged.

    One flat buffer of all weights, summed over all p ranks. A split layer's gradients ("partial", first
    in the buffer) are each rank's part of the sum; a whole layer's are the same on all ranks of a group,
    so that the sum over a group is p2 times as large.

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
        self._everyone = division.gradients == "all" and teams.across is not None
        # a reduce-scatter takes equal slices
        padding = -sum(items) % division.parts if self._everyone else 0
        shapes = [*(tuple(p.shape) for p in parameters), (padding,)]
        self._flat = flat_buffer(shapes, first.dtype, first.device)
        self._flat.zero_()
        pieces = torch.split(self._flat, [*items, padding])[: len(items)]
        views = {
            i: piece.view_as(p) for i, piece, p in zip(self._order, pieces, parameters, strict=True)
        }
        self._views = [views[i] for i in range(len(held))]
        self._gradients = self._flat[: sum(items)]
        partial = sum(h.parameter.numel() for h in held if h.gradient == "partial")
        self._partial, self._same = self._gradients[:partial], self._gradients[partial:]
        self._slice = self._flat.new_empty(
            len(self._flat) // division.parts if self._everyone else 0
        )

    def pack(self, gradients: Sequence[Tensor]) -> None:
        """Copy the gradients into the flat buffer."""
        torch.cat([gradients[i].reshape(-1) for i in self._order], out=self._gradients)

    def exchange(self) -> None:
        """Sum the flat buffer over all ranks."""
        group, across, leaders = self._teams.group, self._teams.across, self._teams.leaders
        if group is None or across is None:
            self._teams.world.allreduce(self._flat)
        elif self._everyone:
            group.reduce_scatter(self._flat, self._slice)
            across.allreduce(self._slice)
            group.allgather(self._slice, self._flat)
        else:
            group.reduce(self._flat, 0)
            if leaders is not None:
                leaders.allreduce(self._flat)
            group.broadcast(self._flat, 0)

    def unpack(self, gradients: Sequence[Tensor]) -> None:
        """The gradients of the mean over all samples, back in their places."""
        if self._replicas > 1:
            self._partial.div_(self._replicas)
        self._same.div_(self._p)
        torch._foreach_copy_(list(gradients), self._views)
