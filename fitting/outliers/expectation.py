"""What good ones may be expected to do, by data sheets and topology: is the whole cluster slow?"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from calib.fitting.outliers.slowness import Comparison
from calib.foundation.collectives import bus_factor
from calib.foundation.quantities import Magnitude
from calib.foundation.records import Record
from calib.microbench.records.expected import Expected
from calib.microbench.records.peers import MEMORY, PRODUCT, TO_DEVICE, PeerTimes, host_of
from calib.microbench.topology.expected import (
    BETWEEN_NODES,
    DEVICE_MEMORY,
    HOST_TO_DEVICE,
    NODE_NETWORK,
    WITHIN_NODE,
)

OF_DEVICES = {PRODUCT: "matrix product float32", MEMORY: DEVICE_MEMORY, TO_DEVICE: HOST_TO_DEVICE}


class Expectation(Record):
    """What a sound machine does, in FLOP/s or B/s of the work that it is of (collectives: busbw)."""

    low: Magnitude = Field(description="a sound one is not slower")
    high: Magnitude = Field(description="the most")
    source: str = Field(description="where that is from")


def rate_of(what: str, places: int, nbytes: float, flops: float, seconds: float) -> float:
    """FLOP/s of work that has any, else B/s: of collectives the bus bandwidth."""
    if flops:
        return flops / seconds
    return (bus_factor(what, places) or 1.0) * nbytes / seconds


def expectation_of(of: Comparison, peers: PeerTimes) -> Expectation | None:
    """What is expected of the units of a comparison; None where nothing is known of them.

    Of kinds of devices or links the least and the most. The ranks of a node share its links: of a pair
    of nodes each rank has its part of what all links carry.
    """
    if of.kind == "start-up":
        return None
    if of.scope == "device":
        return _spanned(_named(peers, OF_DEVICES.get(of.what, "")), peers.threads)
    if of.scope == "node":
        return _spanned(_named(peers, WITHIN_NODE), 1)
    links, nodes = _named(peers, BETWEEN_NODES), _named(peers, NODE_NETWORK)
    if not links:
        return None
    example = next(iter(of.largest))
    pair = {host_of(place) for place in example}
    rails = sum({host_of(place) for place in unit} == pair for unit in of.sizes)
    most = nodes or links
    low = min(*(each.low for each in links), min(each.low for each in most) / rails)
    high = min(max(each.high for each in links), max(each.high for each in most) / rails)
    shared = f", shared by {rails} ranks" if rails > 1 else ""
    return Expectation(low=low, high=high, source=f"{most[0].source}{shared}")


def _named(peers: PeerTimes, name: str) -> list[Expected]:
    return [each for each in peers.expected if each.name == name]


def _spanned(found: Sequence[Expected], threads: int) -> Expectation | None:
    """The least and the most of several; of cores as many as a rank computes with."""
    if not found:
        return None
    times = [threads if each.per == "core" else 1 for each in found]
    return Expectation(
        low=min(each.low * n for each, n in zip(found, times, strict=True)),
        high=max(each.high * n for each, n in zip(found, times, strict=True)),
        source="; ".join(dict.fromkeys(each.source for each in found)),
    )
