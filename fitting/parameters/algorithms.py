"""Messages in a row and bytes sent of a collective on p ranks, by algorithm.

formulas.md, "Collectives"; what it lacks is of Thakur, Rabenseifner and Gropp, "Optimization of
collective communication operations in MPICH", IJHPCA 19 (2005), section 4. m is the whole buffer. Theirs
are exact for powers of two; between those log2 p is taken. Pure arithmetic: fitting and predicting share
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from calib.foundation.errors import InputError

AlgorithmShape = tuple[float, float]  # (steps, volume): t = steps alpha + volume m beta

RING, DOUBLING, TREE = "ring", "recursive doubling", "tree"
CHAIN, BINOMIAL, SCATTER_ALLGATHER = "chain", "binomial tree", "scatter and allgather"
LINEAR, BRUCK, REDUCE_SCATTER_GATHER = "linear", "Bruck", "reduce-scatter and gather"


Menu = dict[str, Callable[[float], AlgorithmShape]]


def _log2(p: float) -> float:
    return math.log2(p) if p > 1 else 0.0


def _rounds(p: float) -> float:
    return float(math.ceil(_log2(p)))


_GATHER: Menu = {
    RING: lambda p: (p - 1.0, (p - 1.0) / p),
    DOUBLING: lambda p: (_log2(p), (p - 1.0) / p),
}
_ROOTED: Menu = {
    BINOMIAL: lambda p: (_rounds(p), _rounds(p)),
    CHAIN: lambda p: (p - 1.0, float(p > 1)),
}
_SPREAD: Menu = {LINEAR: _GATHER[RING], BINOMIAL: _GATHER[DOUBLING]}

# the first of each is what formulas.md assumes where nothing says otherwise
ALGORITHMS: dict[str, Menu] = {
    "allreduce": {
        RING: lambda p: (2.0 * (p - 1), 2.0 * (p - 1) / p),
        DOUBLING: lambda p: (_log2(p), _log2(p)),
        # 2 (log2 p + k) (alpha + m beta / 2k): with many chunks only m beta is left of the bytes
        TREE: lambda p: (2.0 * _log2(p), float(p > 1)),
    },
    "allgather": _GATHER,
    "allgatherv": _GATHER,
    "reduce_scatter": _GATHER,
    # Bruck: every step sends the blocks whose number has one bit set, which are half of them
    "all_to_all": {RING: _GATHER[RING], BRUCK: lambda p: (_rounds(p), 0.5 * _log2(p))},
    "broadcast": {
        **_ROOTED,
        # van de Geijn: a binomial scatter, and a ring of p - 1
        SCATTER_ALLGATHER: lambda p: (_log2(p) + p - 1.0, 2.0 * (p - 1.0) / p),
    },
    "reduce": {
        **_ROOTED,
        # Rabenseifner: recursive halving, and a binomial gather to the root; both send (p-1)/p m
        REDUCE_SCATTER_GATHER: lambda p: (2.0 * _log2(p), 2.0 * (p - 1.0) / p),
    },
    "gather": _SPREAD,
    "scatter": _SPREAD,
}
# operations between neighbours: one message, whatever p
POINT_TO_POINT = (
    "p2p",
    "p2p_both",
    "halo",
    "sendrecv",
    "p2p_stream",
    "p2p_both_stream",
    "exchange",
)


def shape_of(operation: str, algorithm: str, ranks: float) -> AlgorithmShape:
    """(steps, volume) of one operation. Raises KeyError for a name that ALGORITHMS lacks."""
    return ALGORITHMS[operation][algorithm](ranks)


def steps_and_volume(operation: str, ranks: int) -> AlgorithmShape:
    """(messages in a row, whole-buffer multiples sent) of one operation on p ranks.

    By the operation's default algorithm, or the one that its name has: "allreduce algorithm=tree ...".
    A halo exchange posts all its messages at once: one step of m. "hierarchical_allreduce inner=q"
    is a ring of q and one of p / q. Raises InputError for another operation.
    """
    name, _, detail = operation.partition(" ")
    if name in POINT_TO_POINT:
        return 1.0, 1.0
    if name in ALGORITHMS:
        menu, named = ALGORITHMS[name], detail.partition(" ")[0].removeprefix("algorithm=")
        return menu.get(named, next(iter(menu.values())))(float(ranks))
    inner = detail.removeprefix("inner=")[:10]
    known = inner.isascii() and inner.isdecimal() and 0 < int(inner) <= ranks
    if name == "hierarchical_allreduce" and known:
        rings = [shape_of("allreduce", RING, p) for p in (int(inner), ranks // int(inner))]
        return sum(ring[0] for ring in rings), sum(ring[1] for ring in rings)
    raise InputError(f"no cost model for the operation {operation!r}")


def features_of(
    operation: str, algorithm: str, hierarchical: bool, nbytes: float, ranks: float, nodes: float
) -> tuple[float, float, float, float]:
    """(base, base per byte, steps, volume m): what the coefficients of a structural law multiply.

    Flat: the base is one call's, and p counts ranks. Hierarchical: the base is the default algorithm
    among the ranks of a node, and p counts nodes.
    """
    if not hierarchical:
        steps, volume = shape_of(operation, algorithm, ranks)
        return 1.0, 0.0, steps, volume * nbytes
    default = RING if RING in ALGORITHMS[operation] else next(iter(ALGORITHMS[operation]))
    inside, through = shape_of(operation, default, ranks / nodes)
    steps, volume = shape_of(operation, algorithm, nodes)
    return inside, through * nbytes, steps, volume * nbytes
