"""Cost of a slice's exchange, and the lane of the network that it takes.

allreduce: a ring over all devices, one slice at a time (one lane). server: one server on each machine
(on each device, where there is one machine), each with its own lane. A slice belongs to one of the N
servers, which gets it from the N - 1 others and sends them the sum: 2 (N - 1) (alpha + m beta) on its
link; the devices of a machine sum it before and share it after (an allreduce among them).

Whole tensors lie on servers as in MXNet's KVStore (src/kvstore/kvstore_dist.h, EncodeDefaultKey): one
of BIG_ITEMS or more is split evenly over all servers, a smaller one is on server (key 9973) mod N, its
key being its place among the model's tensors.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from heapq import heapreplace
from itertools import pairwise
from typing import Literal

from calib.foundation.layers import ITEM_BYTES
from calib.oracle.cost import NOTHING, Cost, total
from calib.search.exchange.simulation import Order, SliceJob
from calib.search.exchange.work import ExchangeWork
from calib.search.links import LinkGroup, Links

Architecture = Literal["allreduce", "server"]
PlacedLane = tuple[int, int, int]  # full slices, the items of one, items of a smaller last one
WHOLE = 0  # as a slice size: tensors are not cut
# MXNet: MXNET_KVSTORE_BIGARRAY_BOUND, and what spreads small tensors over servers
BIG_ITEMS, SPREAD = 1_000_000, 9973


class SliceNetwork:
    """Prices of slices by items. `bandwidth` multiplies that of every link, `scale` all costs."""

    def __init__(
        self,
        links: Links,
        architecture: Architecture,
        bandwidth: float = 1.0,
        scale: float = 1.0,
        item_bytes: int = ITEM_BYTES,
    ) -> None:
        self._links, self._devices, self._architecture = links, links.devices, architecture
        self._bandwidth, self._scale, self._item_bytes = bandwidth, scale, item_bytes
        self._seconds: dict[int, float] = {}
        devices = links.devices
        servers = devices.nodes if devices.nodes > 1 else devices.per_node
        self.lanes = servers if architecture == "server" and devices.p > 1 else 1

    def other(self, bandwidth: float = 1.0, scale: float = 1.0) -> SliceNetwork:
        """The same network with other links."""
        return SliceNetwork(self._links, self._architecture, bandwidth, scale, self._item_bytes)

    def cost(self, items: int) -> Cost:
        """A slice of so many items at the links' own bandwidth, with its interval."""
        devices, nbytes = self._devices, float(self._item_bytes * items)
        if devices.p == 1 or not items:
            return NOTHING
        if self._architecture == "allreduce":
            return self._links.cost(
                "allreduce", nbytes, LinkGroup(devices.nodes, devices.per_node), 1
            )
        between = devices.nodes > 1
        sent = self._links.p2p(nbytes, between, 2.0 * (self.lanes - 1))
        if not between or devices.per_node == 1:
            return sent
        return total([sent, self._links.cost("allreduce", nbytes, LinkGroup(1, devices.per_node))])

    def seconds(self, items: int) -> float:
        """The same at this bandwidth: what grows with the bytes takes 1 / bandwidth of its time."""
        if items not in self._seconds:
            least, whole = self.cost(1).seconds if items else 0.0, self.cost(items).seconds
            start = min(least, whole)
            self._seconds[items] = self._scale * (start + (whole - start) / self._bandwidth)
        return self._seconds[items]

    def whole(self, items: int, key: int) -> list[int]:
        """Items of a whole tensor on each lane, as in MXNet."""
        if self.lanes > 1 and items >= BIG_ITEMS:
            ends = [math.floor(items / self.lanes * k + 0.5) for k in range(self.lanes + 1)]
            return [end - first for first, end in pairwise(ends)]
        return [items * (number == key * SPREAD % self.lanes) for number in range(self.lanes)]

    def pieces(self, items: int, slice_items: int) -> dict[int, int]:
        """How many pieces of which size a tensor has: slices, the last of which may be smaller."""
        if slice_items == WHOLE:
            return dict(Counter(filter(None, self.whole(items, 0))))
        full, last = cut(items, slice_items)
        return {size: n for size, n in ((min(items, slice_items), full), (last, 1)) if size and n}

    def tensor_s(self, items: int, slice_items: int) -> float:
        """Seconds of all pieces of a tensor, one after the other."""
        pieces = self.pieces(items, slice_items).items()
        return sum(count * self.seconds(size) for size, count in pieces)

    def slices(self, work: ExchangeWork, slice_items: int) -> int:
        """Number of pieces of all tensors."""
        return sum(sum(self.pieces(of.items, slice_items).values()) for of in work.tensors)

    def jobs(
        self, work: ExchangeWork, releases_s: Sequence[float], slice_items: int, order: Order
    ) -> list[list[SliceJob]]:
        """The pieces on each lane, in the order in which the backward makes them.

        Each slice goes to the server with the fewest items so far; whole tensors as in MXNet.
        """
        lanes: list[list[SliceJob]] = [[] for _ in range(self.lanes)]
        placed = self._by_key if slice_items == WHOLE else _Evenly(self.lanes).placed
        made = sorted(range(len(work.tensors)), key=lambda t: (-work.tensors[t].layer, t))
        for place, tensor in enumerate(made):
            _, layer, items = work.tensors[tensor]
            key = place if order == "fifo" else layer * len(made) + tensor
            pieces = placed(tensor, items, slice_items)
            for lane, (full, size, last) in zip(lanes, pieces, strict=True):
                if full or last:
                    each = (full, self.seconds(size), self.seconds(last))
                    lane.append(SliceJob(tensor, releases_s[layer], key, *each))
        return lanes

    def _by_key(self, tensor: int, items: int, slice_items: int) -> list[PlacedLane]:
        return [(min(piece, 1), piece, 0) for piece in self.whole(items, tensor)]


class _Evenly:
    """Slices on the servers with the fewest items so far."""

    def __init__(self, servers: int) -> None:
        self._servers = servers
        self._loads = [(0, number) for number in range(servers)]

    def placed(self, tensor: int, items: int, slice_items: int) -> list[PlacedLane]:
        """The slices of a tensor on each server."""
        size = min(items, slice_items)
        full, last = cut(items, slice_items)
        counts, rest = [full // self._servers] * self._servers, [0] * self._servers
        loads = sorted((load + size * counts[number], number) for load, number in self._loads)
        for piece in [size] * (full % self._servers) + ([last] if last else []):
            load, number = loads[0]
            if piece == size:
                counts[number] += 1
            else:
                rest[number] = piece
            heapreplace(loads, (load + piece, number))
        self._loads = loads
        return [(full, size, last) for full, last in zip(counts, rest, strict=True)]


def cut(items: int, slice_items: int) -> tuple[int, int]:
    """(full slices, items of a smaller last one, 0: none); WHOLE makes one slice of all items."""
    return divmod(items, min(items, slice_items or items)) if items else (0, 0)
