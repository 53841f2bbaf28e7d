"""The least time of a collective, by what links between nodes carry: no algorithm is faster.

Of n nodes each must send, and receive, at least these multiples of the whole buffer m where switches
do not reduce. With q of the p ranks on a node:

=================================  ===================  =============
operation                          each node, each way  all together
=================================  ===================  =============
allreduce                          2 (n-1)/n            2 (n-1)
allgather, reduce_scatter          (n-1)/n              n-1
all_to_all                         q (p-q)/p            p-q
broadcast, reduce                  1                    n-1
gather, scatter (the root)         1 - q/p              1 - q/p
sendrecv (each to the next)        1                    n
=================================  ===================  =============

The same holds of racks. Pure arithmetic: fitting and predicting share it.

References
----------
Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69
(2009), section 3 (allreduce); Chan, Heimlich, Purkayastha and van de Geijn, "Collective communication:
theory, practice, and experience", CCPE 19 (2007), table I (the others).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from calib.fitting.parameters.algorithms import GroupShape

Sent = tuple[float, float]  # multiples of m: of one part each way, of all parts together


class Parts(NamedTuple):
    """p ranks on n nodes or racks, with at most q on one."""

    p: int
    n: int
    q: int


def _gathered(of: Parts) -> Sent:
    return (of.n - 1) / of.n, of.n - 1.0


def _reduced(of: Parts) -> Sent:
    one, every = _gathered(of)
    return 2.0 * one, 2.0 * every


def _exchanged(of: Parts) -> Sent:
    return of.q * (of.p - of.q) / of.p, float(of.p - of.q)


def _rooted(of: Parts) -> Sent:
    return 1.0, of.n - 1.0


def _spread(of: Parts) -> Sent:
    return 1.0 - of.q / of.p, 1.0 - of.q / of.p


def _passed_on(of: Parts) -> Sent:
    return 1.0, float(of.n)


SENT: dict[str, Callable[[Parts], Sent]] = {
    "allreduce": _reduced,
    "allgather": _gathered,
    "allgatherv": _gathered,
    "reduce_scatter": _gathered,
    "all_to_all": _exchanged,
    "broadcast": _rooted,
    "reduce": _rooted,
    "gather": _spread,
    "scatter": _spread,
    "sendrecv": _passed_on,
}


class Least(NamedTuple):
    """The least time, s, and what carries no more: "links of a node", "" nothing known."""

    seconds: float
    by: str


LINKS, RACKS, SHARED = "the links of a node", "the links above a rack", "links that all nodes share"


class Capacity(NamedTuple):
    """What nodes can send at once, in links of `link_bandwidth` B/s each way; 0 unknown."""

    link_bandwidth: float = 0.0
    links_per_node: int = 0
    nodes_per_rack: int = 0
    rack_links: float = 0.0
    shared_links: float = 0.0

    def least(self, operation: str, shape: GroupShape, nbytes: float, packed: bool) -> Least:
        """The least time of m bytes; `packed` where the nodes of a group are next to one another."""
        found = [Least(0.0, ""), *self.each(operation, shape, nbytes, packed)]
        return max(found)

    def each(
        self, operation: str, shape: GroupShape, nbytes: float, packed: bool
    ) -> Iterator[Least]:
        """The same of all that limit it."""
        sent = SENT.get(operation)
        if sent is None or not self.link_bandwidth or shape.nodes < 2:
            return
        nodes = Parts(shape.ranks, shape.nodes, shape.ranks_per_node)
        one, every = sent(nodes)
        if self.links_per_node:
            yield Least(one * nbytes / (self.links_per_node * self.link_bandwidth), LINKS)
        if self.shared_links:
            yield Least(every * nbytes / (self.shared_links * self.link_bandwidth), SHARED)
        if packed and self.rack_links and 0 < self.nodes_per_rack < shape.nodes:
            full = min(self.nodes_per_rack * shape.ranks_per_node, shape.ranks)
            racks = Parts(shape.ranks, -(-shape.nodes // self.nodes_per_rack), full)
            yield Least(sent(racks)[0] * nbytes / (self.rack_links * self.link_bandwidth), RACKS)
