"""Nodes, racks and links of the parameter file: the cluster's, but where measurements exceed them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from calib.fitting.parameters.capacity import LINKS, RACKS, SHARED, Capacity
from calib.fitting.parameters.collectives import CollectiveFit
from calib.fitting.parameters.scaling import shape_of_fit
from calib.fitting.sections.contention import analytical
from calib.foundation.words import bytes_words, seconds_words
from calib.microbench.records.cluster import Cluster

MANY_FLOWS = 10**6  # more than any node has links
EXCEEDED = 0.9  # of the least time: a measurement below it shows that the declaration is wrong


class Network(NamedTuple):
    """What the parameter file says of the machine's network; 0 unknown."""

    nodes: int
    nodes_per_rack: int
    links_per_node: int
    link_bandwidth: float
    rack_links: float
    shared_links: float

    @property
    def capacity(self) -> Capacity:
        """What its links carry."""
        return Capacity(*(getattr(self, name) for name in Capacity._fields))


def network(cluster: Cluster, collectives: Sequence[CollectiveFit]) -> tuple[Network, list[str]]:
    """The network of a cluster, and a note on each declaration that measured times exceed.

    Where all nodes that were measured are in one rack, how many it could hold is unknown.
    """
    found = _declared(cluster)
    notes = []
    for by, field in ((LINKS, "link_bandwidth"), (RACKS, "rack_links"), (SHARED, "shared_links")):
        if note := _exceeded(found.capacity, by, collectives):
            found = Network(**{**found._asdict(), field: 0})
            notes.append(note)
    return found, notes


def _declared(cluster: Cluster) -> Network:
    """As the Cluster record has it."""
    outer = [level for level in cluster.levels if level.name != "node"]
    nodes = cluster.nodes
    inside = next((level.members for level in outer if level.name == "rack"), 0)
    per_rack = inside if inside < nodes else 0
    # the same count of links as that of the contention records: flows over links, at least 1
    shared = analytical(cluster, "system", MANY_FLOWS)
    links = round(MANY_FLOWS / shared) if shared else 0
    tapering = (outer[-1].tapering if outer else None) or 0.0
    bandwidth = next((level.bandwidth for level in reversed(outer) if level.bandwidth), 0.0)
    return Network(
        nodes,
        per_rack,
        links,
        bandwidth,
        tapering * per_rack * links,
        # all nodes can send at once where the bisection is full, however many there will be
        tapering * nodes * links if not per_rack and tapering < 1 else 0.0,
    )


def _exceeded(capacity: Capacity, by: str, collectives: Sequence[CollectiveFit]) -> str:
    """A note on the measurement that is the furthest below the least time by one capacity."""
    worst, note = EXCEEDED, ""
    for fit in collectives:
        if fit.level == "node":
            continue
        shape, name = shape_of_fit(fit), fit.operation.partition(" ")[0]
        for point in fit.points:
            for least in capacity.each(name, shape, point.nbytes, True):
                if least.by == by and point.seconds.value < worst * least.seconds:
                    worst = point.seconds.value / least.seconds
                    note = (
                        f"{by} are declared too slow, so nothing is bound by them: {name} of "
                        f"{bytes_words(point.nbytes)} on {shape.words} took "
                        f"{seconds_words(point.seconds.value)}, and by them at least "
                        f"{seconds_words(least.seconds)}"
                    )
    return note
