"""Collective operations: their names, and their bandwidths as nccl-tests defines them.

Shared by measuring, importing, fitting, predicting and reporting.

References
----------
doc/PERFORMANCE.md and the GetBw functions of src/*.cu, NVIDIA/nccl-tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from calib.foundation.layers import ITEM_BYTES
from calib.foundation.records import Estimate

Operation = Literal[
    "p2p",
    "p2p_both",
    "allreduce",
    "allgather",
    "allgatherv",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "halo",
    "hierarchical_allreduce",
]
# each rank has an equal part of m bytes
EQUAL_PARTS = ("allgather", "reduce_scatter", "all_to_all")
# what the ranks have is added up
SUMS = ("allreduce", "reduce_scatter", "hierarchical_allreduce")


def sent_bytes(operation: str, nbytes: int, ranks: int) -> int:
    """Bytes m as they are sent: rounded up to whole items where each rank has an equal part."""
    if operation not in EQUAL_PARTS:
        return nbytes
    whole = ITEM_BYTES * ranks
    return -(-nbytes // whole) * whole


def whole_buffer(ranks: int) -> float:
    """1: a link carries the whole buffer."""
    return 1.0


def without_own(ranks: int) -> float:
    """(n - 1) / n: of n equal parts a rank's own one goes nowhere."""
    return (ranks - 1) / ranks


def there_and_back(ranks: int) -> float:
    """2 (n - 1) / n: a reduce-scatter and an allgather."""
    return 2 * without_own(ranks)


# busbw / algbw on n ranks. A hierarchical allreduce does what an allreduce does, by other messages; a
# message is what sendrecv counts, one way where both go at once. Not here, because nccl-tests says
# nothing of the kind: parts of unequal size (allgatherv), several neighbours (halo, IMB's exchange)
BUS_FACTORS: dict[str, Callable[[int], float]] = {
    **dict.fromkeys(("allreduce", "hierarchical_allreduce"), there_and_back),
    **dict.fromkeys((*EQUAL_PARTS, "gather", "scatter", "hypercube"), without_own),
    **dict.fromkeys(("broadcast", "reduce", "sendrecv"), whole_buffer),
    **dict.fromkeys(("p2p", "p2p_both", "p2p_stream", "p2p_both_stream"), whole_buffer),
}


def bus_factor(operation: str, ranks: int) -> float | None:
    """busbw / algbw of an operation on `ranks` ranks; None where that has no definition.

    The name may have a detail behind it: "allreduce algorithm=ring protocol=ll".
    """
    factor = BUS_FACTORS.get(operation.partition(" ")[0])
    return None if factor is None else factor(ranks)


def algorithm_bandwidth(nbytes: float, seconds: Estimate) -> Estimate | None:
    """algbw = S / t in B/s, the ends of the interval turned round.

    Parameters
    ----------
    nbytes
        S: bytes of the whole buffer; of a message, or a halo, those of one message.
    seconds
        t: time of a call, s.

    Returns
    -------
    Estimate or None
        In B/s: a GB/s of nccl-tests is 1e9 of them. None where the time may be nothing.
    """
    return seconds.per_second(nbytes)


def bus_bandwidth(operation: str, ranks: int, nbytes: float, seconds: Estimate) -> Estimate | None:
    """busbw in B/s: algbw times the factor that makes it comparable with the peak of a link.

    Returns
    -------
    Estimate or None
        None where the operation has no such factor, or the time may be nothing.
    """
    factor, algbw = bus_factor(operation, ranks), algorithm_bandwidth(nbytes, seconds)
    return None if factor is None or algbw is None else algbw.scaled(factor)
