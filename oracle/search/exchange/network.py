"""What the exchange of a slice costs, and on which lane of the network it goes.

allreduce: a ring over all devices, one slice at a time (one lane). server: one server on each machine
(on each device, where there is one machine), each with a lane of its own. A slice belongs to one of
the N servers, which gets it from the N - 1 others and sends them the sum: 2 (N - 1) (alpha + m beta) on
its link; devices of a machine sum it before and share it after (an allreduce among them).
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace
from typing import Literal

from oracle.cost import NOTHING, Cost, total
from oracle.search.exchange.simulation import Job, Order
from oracle.search.exchange.work import Work
from oracle.search.links import Group, Links
from oracle.search.request import Devices

Architecture = Literal["allreduce", "server"]
ITEM_BYTES = 4
WHOLE = 0  # as a slice size: tensors are not cut


class Network:
    """Prices of slices by their items. `bandwidth` multiplies that of every link, `scale` all costs."""

    def __init__(
        self,
        links: Links,
        devices: Devices,
        architecture: Architecture,
        bandwidth: float = 1.0,
        scale: float = 1.0,
    ) -> None:
        self._links, self._devices, self._architecture = links, devices, architecture
        self._bandwidth, self._scale = bandwidth, scale
        self._seconds: dict[int, float] = {}
        servers = devices.nodes if devices.nodes > 1 else devices.per_node
        self.lanes = servers if architecture == "server" and devices.p > 1 else 1

    def other(self, bandwidth: float = 1.0, scale: float = 1.0) -> Network:
        """The same network with other links."""
        return Network(self._links, self._devices, self._architecture, bandwidth, scale)

    def cost(self, items: int) -> Cost:
        """A slice of so many items, at the links' own bandwidth, with its interval."""
        devices, nbytes = self._devices, float(ITEM_BYTES * items)
        if devices.p == 1 or not items:
            return NOTHING
        if self._architecture == "allreduce":
            return self._links.cost("allreduce", nbytes, Group(devices.nodes, devices.per_node), 1)
        between = devices.nodes > 1
        sent = self._links.p2p(nbytes, between, 2.0 * (self.lanes - 1))
        if not between or devices.per_node == 1:
            return sent
        return total([sent, self._links.cost("allreduce", nbytes, Group(1, devices.per_node))])

    def seconds(self, items: int) -> float:
        """The same at this bandwidth: what grows with the bytes takes 1 / bandwidth of its time."""
        found = self._seconds.get(items)
        if found is None:
            least, whole = self.cost(1).seconds if items else 0.0, self.cost(items).seconds
            start = min(least, whole)
            found = self._scale * (start + (whole - start) / self._bandwidth)
            self._seconds[items] = found
        return found

    def alpha_s(self) -> float:
        """What a slice costs whatever its size: the exchange of one item."""
        return self.seconds(1)

    def tensor_s(self, items: int, slice_items: int) -> float:
        """All slices of a tensor, one after the other."""
        full, last = cut(items, slice_items)
        return full * self.seconds(min(items, slice_items or items)) + self.seconds(last)

    def jobs(
        self, work: Work, releases_s: Sequence[float], slice_items: int, order: Order
    ) -> list[list[Job]]:
        """The slices on each lane; a server gets them so that all have as many bytes as can be.

        In the order in which gradients are made, each to the server with the fewest so far.
        """
        lanes: list[list[Job]] = [[] for _ in range(self.lanes)]
        loads = [(0, number) for number in range(self.lanes)]
        heapify(loads)
        made = sorted(range(len(work.tensors)), key=lambda t: (-work.tensors[t].layer, t))
        for place, tensor in enumerate(made):
            items, layer = work.tensors[tensor].items, work.tensors[tensor].layer
            size = min(items, slice_items or items)
            full, last = cut(items, slice_items)
            counts, rest = [full // self.lanes] * self.lanes, [0] * self.lanes
            loads = sorted((load + size * counts[number], number) for load, number in loads)
            for piece in [size] * (full % self.lanes) + ([last] if last else []):
                load, number = loads[0]
                if piece == size:
                    counts[number] += 1
                else:
                    rest[number] = piece
                heapreplace(loads, (load + piece, number))
            key = place if order == "fifo" else layer * len(made) + tensor
            for number, of in enumerate(lanes):
                if counts[number] or rest[number]:
                    of.append(Job(tensor, releases_s[layer], key, counts[number],
                                  self.seconds(size), self.seconds(rest[number])))  # fmt: skip
        return lanes


def cut(items: int, slice_items: int) -> tuple[int, int]:
    """(full slices, items of a last one that is smaller, 0: none); WHOLE makes one of all items."""
    return divmod(items, min(items, slice_items or items)) if items else (0, 0)


def slices(work: Work, slice_items: int) -> int:
    """How many there are of all tensors."""
    return sum(
        full + (last > 0) for full, last in (cut(t.items, slice_items) for t in work.tensors)
    )
