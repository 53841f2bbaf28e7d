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


def _log2(p: float) -> float:
    return math.log2(p) if p > 1 else 0.0


def _ring_allreduce(p: float) -> AlgorithmShape:
    return 2.0 * (p - 1), 2.0 * (p - 1) / p


def _doubling_allreduce(p: float) -> AlgorithmShape:
    return _log2(p), _log2(p)


def _tree_allreduce(p: float) -> AlgorithmShape:
    # 2 (log2 p + k) (alpha + m beta / 2k): with chunks so many that only m beta is left of the bytes
    return 2.0 * _log2(p), float(p > 1)


def _ring_gather(p: float) -> AlgorithmShape:
    return p - 1.0, (p - 1.0) / p


def _doubling_gather(p: float) -> AlgorithmShape:
    return _log2(p), (p - 1.0) / p


def _binomial(p: float) -> AlgorithmShape:
    steps = float(math.ceil(_log2(p)))
    return steps, steps


def _chain(p: float) -> AlgorithmShape:
    return p - 1.0, float(p > 1)


def _scatter_allgather(p: float) -> AlgorithmShape:
    # van de Geijn: a binomial scatter, and a ring of p - 1
    return _log2(p) + p - 1.0, 2.0 * (p - 1.0) / p


def _reduce_scatter_gather(p: float) -> AlgorithmShape:
    # Rabenseifner's reduce: recursive halving, and a binomial gather to the root; both send (p-1)/p m
    return 2.0 * _log2(p), 2.0 * (p - 1.0) / p


def _bruck(p: float) -> AlgorithmShape:
    # every step sends the blocks whose number has one bit set, which are half of them
    return float(math.ceil(_log2(p))), 0.5 * _log2(p)


Menu = dict[str, Callable[[float], AlgorithmShape]]

_GATHER: Menu = {RING: _ring_gather, DOUBLING: _doubling_gather}
_ROOTED: Menu = {BINOMIAL: _binomial, CHAIN: _chain}
_SPREAD: Menu = {LINEAR: _ring_gather, BINOMIAL: _doubling_gather}

# the first of each is what formulas.md assumes where nothing says otherwise
ALGORITHMS: dict[str, Menu] = {
    "allreduce": {RING: _ring_allreduce, DOUBLING: _doubling_allreduce, TREE: _tree_allreduce},
    "allgather": _GATHER,
    "allgatherv": _GATHER,
    "reduce_scatter": _GATHER,
    "all_to_all": {RING: _ring_gather, BRUCK: _bruck},
    "broadcast": _ROOTED | {SCATTER_ALLGATHER: _scatter_allgather},
    "reduce": _ROOTED | {REDUCE_SCATTER_GATHER: _reduce_scatter_gather},
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


def shape_named(operation: str, detail: str, ranks: float) -> AlgorithmShape:
    """That by the algorithm which a detail "algorithm=tree ..." names, else by the default one.

    Raises KeyError for an operation that ALGORITHMS lacks.
    """
    menu = ALGORITHMS[operation]
    named = detail.partition(" ")[0].removeprefix("algorithm=")
    return menu.get(named, next(iter(menu.values())))(ranks)


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
        return shape_named(name, detail, float(ranks))
    inner = detail.removeprefix("inner=")[:10]
    if name == "hierarchical_allreduce" and inner.isascii() and inner.isdecimal() and int(inner):
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
