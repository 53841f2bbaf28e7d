"""Time of a collective in ASTRA-sim's analytical backend, from its source, and the fit to it.

astra-sim's Sys.cc, Ring.cc, HalvingDoubling.cc, AllToAll.cc and PacketBundle.cc: a collective is a
chain of phases, one per dimension (an allreduce: reduce-scatter up all dimensions but the last,
allreduce there, allgather down). A phase is steps in a row; a step is one message, before the first and
after each an endpoint delay, and where the message is reduced three passes of local memory over it.
astra-network-analytical, congestion_unaware: a message through a Switch takes two latencies and its
bytes once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from calib.export.collapse import least_by_bytes, least_relative
from calib.export.machine_levels import MachineLevel
from calib.export.target import ExportPoint
from calib.foundation.words import number

# a whole number; 0 is an event at the time of the one before, which a debug build refuses
ENDPOINT_NS = 1
PASSES = 3  # of local memory over what is reduced: two reads and a write
HOPS = 2  # of a Switch
GB = 2**30  # B, as astra-network-analytical counts (NetworkFunction)
NS = 1e-9
RING, HALVING, DIRECT = "ring", "halvingDoubling", "direct1"
# another algorithm than the ring is taken where it makes the mean error less by this
BETTER = 0.005


class AstraWork(NamedTuple):
    """Messages in a row, and their bytes for a buffer of 1 B, in each dimension."""

    steps: tuple[int, ...]
    bytes: tuple[float, ...]
    reduced: float
    phases: int


@dataclass(frozen=True)
class Dimension:
    """One of network.yml: `latency_ns` of one of the two hops, `bandwidth` in 2^30 B/s.

    `algorithm` is that of allreduce, reduce-scatter and allgather, in system.json.
    """

    size: int
    latency_ns: float
    bandwidth: float
    algorithm: str = RING

    @property
    def words(self) -> str:
        """530 ns, 6.10 GiB/s."""
        return f"{number(self.latency_ns)} ns, {number(self.bandwidth)} GiB/s"


class AstraTime(NamedTuple):
    """A time that the file is fitted to, and how many compartments of each level it fills."""

    point: ExportPoint
    sizes: tuple[int, ...]


def work_of(operation: str, sizes: Sequence[int], algorithms: Sequence[str]) -> AstraWork:
    """The work among sizes[d] compartments of every dimension d, of a whole buffer of 1 B.

    A ring of n has n - 1 steps, halving and doubling of n = 2^k has k; both send (n - 1) / n of the
    data, an allreduce twice. ASTRA-sim does not reduce the first message of the halving. An all-to-all
    is `direct1`: to one rank after the other. A dimension of 1 is no phase. p2p is one message over the
    last dimension.
    """
    if operation == "p2p":
        last = len(sizes) - 1
        only = tuple(int(d == last) for d in range(len(sizes)))
        return AstraWork(only, tuple(map(float, only)), 0.0, 0)
    there = [d for d, n in enumerate(sizes) if n > 1]
    steps, volume = [0] * len(sizes), [0.0] * len(sizes)
    below, reduced, twice = 1, 0.0, 2 if operation == "allreduce" else 1
    for d in there:
        n = sizes[d]
        halving = algorithms[d] == HALVING and operation != "all_to_all"
        steps[d] = twice * (n.bit_length() - 1 if halving else n - 1)
        # an all-to-all sends the whole buffer in every dimension
        volume[d] = twice * (n - 1) / n / (1 if operation == "all_to_all" else below)
        if operation in ("allreduce", "reduce_scatter"):
            reduced += ((n / 2 - 1) if halving else (n - 1)) / n / below
        below *= n
    phases = 2 * len(there) - 1 if operation == "allreduce" else len(there)
    return AstraWork(tuple(steps), tuple(volume), reduced, phases)


def delays_s(work: AstraWork, nbytes: float, memory_gb_per_s: float) -> float:
    """The part that does not depend on the network: endpoint delays, and passes of local memory."""
    # p2p is sent by the workload itself, without the system layer's endpoint delay
    endpoints = sum(work.steps) + work.phases if work.phases else 0
    return endpoints * ENDPOINT_NS * NS + PASSES * work.reduced * nbytes / (memory_gb_per_s * 1e9)


def seconds_of(asked: AstraTime, dimensions: Sequence[Dimension], memory_gb_per_s: float) -> float:
    """The whole time, without ASTRA-sim's rounding to whole ns and bytes."""
    work = work_of(asked.point.operation, asked.sizes, [each.algorithm for each in dimensions])
    nbytes = asked.point.nbytes
    network = sum(
        steps * HOPS * each.latency_ns * NS + volume * nbytes / (each.bandwidth * GB)
        for steps, volume, each in zip(work.steps, work.bytes, dimensions, strict=True)
    )
    return network + delays_s(work, nbytes, memory_gb_per_s)


def fitted(
    asked: Sequence[AstraTime], size: int, below: Sequence[Dimension], memory_gb_per_s: float
) -> Dimension:
    """The dimension above those `below` with the least error on these times, and its algorithm."""

    def error(dimension: Dimension) -> float:
        found = [seconds_of(one, [*below, dimension], memory_gb_per_s) for one in asked]
        return math.fsum(
            abs(t / one.point.seconds - 1) for t, one in zip(found, asked, strict=True)
        )

    ring = fitted_as(RING, asked, size, below, memory_gb_per_s)
    if any(one.sizes[-1] & (one.sizes[-1] - 1) for one in asked) or size & (size - 1):
        return ring  # halving needs powers of two
    halving = fitted_as(HALVING, asked, size, below, memory_gb_per_s)
    return halving if error(halving) < error(ring) - BETTER * len(asked) else ring


def fitted_as(
    algorithm: str, asked: Sequence[AstraTime], size: int, below: Sequence[Dimension], memory: float
) -> Dimension:
    """The latency and bandwidth with the least error on these times by this algorithm."""
    at, algorithms = len(below), [*(each.algorithm for each in below), algorithm]
    features, fixed = [], []
    nothing = Dimension(size, 0.0, math.inf, algorithm)
    for one in asked:
        work = work_of(one.point.operation, one.sizes, algorithms)
        features.append((float(work.steps[at]), work.bytes[at] * one.point.nbytes))
        fixed.append(seconds_of(one, [*below, nothing], memory))
    points = [one.point for one in asked]
    step_s, s_per_byte = least_relative(
        features, [point.seconds for point in points], (0.0, least_by_bytes(points)), fixed
    )
    return Dimension(size, float(step_s) / HOPS / NS, 1 / float(s_per_byte) / GB, algorithm)


def sizes_of(ranks: int, levels: Sequence[MachineLevel]) -> tuple[int, ...] | None:
    """How many compartments of each level `ranks` fill; None where they do not fill whole ones."""
    found, rest = [], ranks
    for level in levels:
        inside = min(rest, level.size)
        if rest % inside:
            return None
        found.append(inside)
        rest //= inside
    while len(found) > 1 and found[-1] == 1:
        found.pop()
    return tuple(found) if rest == 1 else None
