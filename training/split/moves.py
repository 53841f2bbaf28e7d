"""Join, cut and sum tensors between ranks that share a layer's weights.

Every rank of a group has the same samples. A whole tensor (batch, channels, ...) is cut along its
channels into the parts of calib.oracle.layout.spatial.part_range, and each operation's backward is the
other's forward (ParaDL A.1.4, A.1.5). Messages are contiguous and flat; collectives count as
"layerwise", copies as "pack".
"""

from __future__ import annotations

import torch
from torch import Tensor

from calib.foundation.layers import split_sizes
from calib.microbench.communicator import TorchGroup
from calib.microbench.tensors import concat_shards
from calib.oracle.layout.partitions import Range
from calib.oracle.layout.spatial import part_range
from calib.training.clock import PhaseClock
from calib.training.split.linear_map import mapped


class GroupLink:
    """The group of this rank, its clock, and one buffer per item type for all allgathers.

    Results are copied out before the next allgather begins.
    """

    def __init__(self, group: TorchGroup, clock: PhaseClock) -> None:
        self.group = group
        self.switch = clock.switch  # a context takes more than twice the Python
        # by item type: views of the longest buffer, by number of items
        self._landings: dict[torch.dtype, dict[int, Tensor]] = {}

    def landing(self, like: Tensor, items: int) -> Tensor:
        """Room for so many items of the type and on the device of `like` (always the same device)."""
        views = self._landings.setdefault(like.dtype, {})
        if items not in views:
            longest = max(views, default=0)
            if items > longest:
                views.clear()
                views[items] = like.new_empty(items)
            else:
                views[items] = views[longest][:items]
        return views[items]

    def sum_up(self, term: Tensor) -> Tensor:
        """The sum of all ranks' tensors, in the memory of `term` if that is contiguous."""
        before = self.switch("pack")
        term = term.contiguous()
        self.switch("layerwise")
        self.group.allreduce(term.view(-1))
        self.switch(before)
        return term


class Channels:
    """Channels of which this rank has `own`, [from, to)."""

    def __init__(self, link: GroupLink, channels: int) -> None:
        self.link, self.channels = link, channels
        group = link.group
        self.own: Range = part_range(channels, group.size, group.rank)
        self._sizes = split_sizes(channels, group.size)

    def cut(self, whole: Tensor) -> Tensor:
        """This rank's part of (batch, channels, ...), contiguous."""
        first, stop = self.own
        before = self.link.switch("pack")
        part = whole.narrow(1, first, stop - first).contiguous()
        self.link.switch(before)
        return part

    def join(self, part: Tensor) -> Tensor:
        """The whole (batch, channels, ...) from all ranks' parts."""
        link, group = self.link, self.link.group
        before = link.switch("pack")
        part = part.contiguous()
        first, stop = self.own
        each = part.numel() // (stop - first)
        landed = link.landing(part, each * self.channels)
        link.switch("layerwise")
        if self.channels % group.size == 0:
            group.allgather(part.view(-1), landed)
        else:
            group.allgatherv(part.view(-1), landed, [size * each for size in self._sizes])
        link.switch("pack")
        shape = (part.shape[0], self.channels, *part.shape[2:])
        whole = concat_shards(landed, shape, group.size)
        link.switch(before)
        return whole


def narrowed(x: Tensor) -> Tensor:
    """x in the type to which autocast would cast it later: so its gradient travels in that, too."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind) and x.dtype == torch.float32:
        return x.to(torch.get_autocast_dtype(kind))
    return x


def join(part: Tensor, channels: Channels) -> Tensor:
    """Join (batch, own channels, ...) of all ranks; backward: this rank's part of the gradient.

    All ranks compute the same loss from the same whole, so nothing is sent in the backward.
    """
    return mapped(part, channels.join, channels.cut)


def cut(whole: Tensor, channels: Channels) -> Tensor:
    """This rank's part of (batch, channels, ...); backward: join the gradients of all parts."""
    return mapped(whole, channels.cut, channels.join)


def share(whole: Tensor, link: GroupLink) -> Tensor:
    """The tensor itself, which all ranks read; backward: the sum of their gradients.

    In place: the next layer made the gradient for this reader alone, and nothing has saved it.
    """
    return mapped(whole, lambda x: x.view_as(x), link.sum_up)


def summed(term: Tensor, link: GroupLink) -> Tensor:
    """The sum of all ranks' terms, in the memory of `term`, which no backward may need.

    Its gradient is every term's gradient, so nothing is sent in the backward.
    """
    link.sum_up(term.detach())
    return term
