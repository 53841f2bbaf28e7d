"""Messages in a row and bytes sent of a collective, by algorithm, on any layout of ranks.

formulas.md, "Collectives"; what it lacks is of Thakur, Rabenseifner and Gropp, "Optimization of
collective communication operations in MPICH", IJHPCA 19 (2005), section 4. m is the whole buffer. Theirs
are exact for powers of two; between those log2 p is taken. Pure arithmetic: fitting and predicting share
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Literal, NamedTuple

from calib.foundation.errors import InputError

AlgorithmShape = tuple[float, float]  # (steps, volume): t = steps alpha + volume m beta


class GroupShape(NamedTuple):
    """The layout of a group: its ranks, the nodes they span, and the most ranks on one of them."""

    ranks: int
    nodes: int
    ranks_per_node: int

    @property
    def words(self) -> str:
        """The layout in words: `10 ranks`, `10 ranks of 2 nodes`."""
        return f"{self.ranks} ranks" + (f" of {self.nodes} nodes" if self.nodes > 1 else "")

    @property
    def is_even(self) -> bool:
        """Whether all nodes have equally many ranks."""
        return self.ranks == self.nodes * self.ranks_per_node

    def doublings(self, other: GroupShape) -> float:
        """Doublings of nodes and of ranks on a node between two layouts; of p where one is a node's."""
        if self.nodes == 1 or other.nodes == 1:
            return abs(math.log2(self.ranks / other.ranks))
        of_nodes = abs(math.log2(self.nodes / other.nodes))
        return of_nodes + abs(math.log2(self.ranks_per_node / other.ranks_per_node))


class Links(NamedTuple):
    """How the ranks of a node, and the nodes, share links.

    r ranks of a node have r ** `exponent` links between nodes, from 0 (they share one) to 1, and no more
    than their part of the `shared` ones that all nodes have together (a backbone; 0: no such).
    """

    exponent: float
    shared: float = 0.0

    def of_node(self, ranks: int, sending: float) -> float:
        """Links that so many ranks of a node have while so many nodes send."""
        mine = float(ranks**self.exponent)
        return min(mine, self.shared / sending) if self.shared else mine


class Algorithm(NamedTuple):
    """How an algorithm sends: messages in a row, and multiples of the buffer, on a layout.

    `links` are those of a node that one call keeps busy: all (NCCL has a ring for each), a flow for
    each rank, which share the links, or one. A tree is `half_pipelined`: what it sends at a
    step lies between the whole buffer and a perfect pipeline's share of it (their geometric mean).
    `senders` are the nodes that send at once: all, one (a root), or twice as many at every step.
    """

    steps: Callable[[GroupShape], float]
    volume: Callable[[GroupShape], float]
    links: Literal["all", "each", "one"]
    half_pipelined: bool = False
    senders: Literal["all", "doubling", "one"] = "all"

    def message(self, shape: GroupShape, links: Links) -> float:
        """What a link carries at one step, as a share of the buffer."""
        share = self.volume(shape) / self.steps(shape)
        if self.half_pipelined:
            share = math.sqrt(share)
        if shape.nodes == 1:
            return share
        if self.links == "each":
            share *= shape.ranks_per_node
        ranks = 1 if self.links == "one" else shape.ranks_per_node
        return share * fmean(1.0 / links.of_node(ranks, n) for n in self._sending(shape.nodes))

    def _sending(self, nodes: int) -> list[float]:
        """Nodes that send at once, at each step."""
        if self.senders == "doubling":
            return [2.0**step for step in range(math.ceil(_log2(nodes)))]
        return [float(nodes) if self.senders == "all" else 1.0]


RING, RINGS, DOUBLING, TREE = "ring", "rings", "recursive doubling", "tree"
HALVING_DOUBLING = "recursive halving and doubling"
CHAIN, BINOMIAL, SCATTER_ALLGATHER = "chain", "binomial tree", "scatter and allgather"
LINEAR, BRUCK, REDUCE_SCATTER_GATHER = "linear", "Bruck", "reduce-scatter and gather"
OVERLAPPED, ONE_MESSAGE = "overlapped calls", "one message"
PAIRWISE, NEIGHBOUR, BINARY, KNOMIAL = (
    "pairwise",
    "neighbour exchange",
    "binary tree",
    "4-nomial tree",
)
SCATTER_DOUBLING = "scatter and recursive doubling"
REDUCE_BROADCAST, REDUCE_THEN_SCATTER = "reduce and broadcast", "reduce and scatter"
OVER_NODES = " over nodes"
# of a tree, a step from rank to rank of a node, in steps from node to node (NCCL's own constants for
# LL over NVLink and InfiniBand are 0.6 and 5 us)
INSIDE_NODE = 0.1


def _log2(p: float) -> float:
    return math.log2(p) if p > 1 else 0.0


def _rounds(shape: GroupShape) -> float:
    return float(math.ceil(_log2(shape.ranks)))


def _doublings(shape: GroupShape) -> float:
    return _log2(shape.ranks)


def _by_fours(shape: GroupShape) -> float:
    return 1.5 * _log2(shape.ranks)


def _others(shape: GroupShape) -> float:
    return shape.ranks - 1.0


def _elsewhere(shape: GroupShape) -> float:
    """Ranks on other nodes, whose messages take the time, as the least full node sees them.

    Of one node, the other ranks.
    """
    if shape.nodes == 1:
        return _others(shape)
    return min(float((shape.nodes - 1) * shape.ranks_per_node), _others(shape))


def _hops(shape: GroupShape) -> float:
    return _others(shape) if shape.nodes == 1 else shape.nodes - 1.0


def _depth(shape: GroupShape) -> float:
    """Steps up a tree of nodes, with a chain through each."""
    if shape.nodes == 1:
        return _log2(shape.ranks)
    return _log2(shape.nodes) + INSIDE_NODE * (shape.ranks_per_node - 1)


def _node_doublings(shape: GroupShape) -> float:
    """Doublings of the nodes, and of the ranks on a node, which come first and take less."""
    if shape.nodes == 1:
        return _log2(shape.ranks)
    return _log2(shape.nodes) + INSIDE_NODE * _log2(shape.ranks_per_node)


def _crossing(shape: GroupShape) -> float:
    """What a node sends to others of a buffer that its ranks have halved among themselves before."""
    return _gathered(shape) if shape.nodes == 1 else (shape.nodes - 1.0) / shape.nodes


def _gathered(shape: GroupShape) -> float:
    return _others(shape) / shape.ranks


def _twice(count: Callable[[GroupShape], float]) -> Callable[[GroupShape], float]:
    return lambda shape: 2.0 * count(shape)


def _once(shape: GroupShape) -> float:
    return 1.0


Menu = Mapping[str, Algorithm]

_GATHER: Menu = {
    RING: Algorithm(_others, _gathered, "one"),
    DOUBLING: Algorithm(_doublings, _gathered, "each"),
    RINGS: Algorithm(_others, _gathered, "all"),
    BRUCK: Algorithm(_rounds, _gathered, "each"),
    NEIGHBOUR: Algorithm(lambda shape: float(shape.ranks // 2), _gathered, "one"),
    PAIRWISE: Algorithm(_others, _gathered, "each"),
    # gather to a root, and broadcast by a binomial tree
    LINEAR: Algorithm(
        lambda shape: _others(shape) + _rounds(shape),
        lambda shape: _gathered(shape) + _rounds(shape),
        "one",
    ),
    # by a binomial tree, and p - 1 messages of the root
    REDUCE_THEN_SCATTER: Algorithm(
        lambda shape: _rounds(shape) + _others(shape),
        lambda shape: _rounds(shape) + _gathered(shape),
        "one",
    ),
}
_ROOTED: Menu = {
    BINOMIAL: Algorithm(_rounds, _rounds, "one", senders="doubling"),
    LINEAR: Algorithm(_others, _others, "one", senders="one"),
    # to two children, or three, one after the other
    BINARY: Algorithm(_twice(_doublings), _twice(_doublings), "one", senders="doubling"),
    KNOMIAL: Algorithm(_by_fours, _by_fours, "one", senders="doubling"),
    CHAIN: Algorithm(_hops, _once, "one"),
    RINGS: Algorithm(_hops, _once, "all"),
    # a benchmark that does not wait between calls has many on their way: what it prints is one's share
    OVERLAPPED: Algorithm(_once, _once, "all"),
}
_SPREAD: Menu = {
    LINEAR: Algorithm(_others, _gathered, "one", senders="one"),
    BINOMIAL: Algorithm(_doublings, _gathered, "one", senders="one"),
}

# the first of each is what formulas.md assumes where nothing says otherwise
ALGORITHMS: dict[str, Menu] = {
    "allreduce": {
        RING: Algorithm(_twice(_others), _twice(_gathered), "one"),
        RINGS: Algorithm(_twice(_others), _twice(_gathered), "all"),
        DOUBLING: Algorithm(_node_doublings, _node_doublings, "each"),
        # 2 (log2 p + k) (alpha + m beta / 2k): with many chunks only m beta is left of the bytes
        TREE: Algorithm(_twice(_depth), _once, "one", half_pipelined=True),
        HALVING_DOUBLING: Algorithm(_twice(_node_doublings), _twice(_crossing), "all"),
        REDUCE_BROADCAST: Algorithm(_twice(_rounds), _twice(_rounds), "one"),
        LINEAR: Algorithm(_twice(_others), _twice(_others), "one"),
        DOUBLING + OVER_NODES: Algorithm(_depth, _depth, "one"),
        HALVING_DOUBLING + OVER_NODES: Algorithm(
            _twice(_depth), lambda shape: 2.0 * _hops(shape) / (_hops(shape) + 1.0), "one"
        ),
    },
    "allgather": _GATHER,
    "allgatherv": _GATHER,
    "reduce_scatter": _GATHER,
    "all_to_all": {
        RING: Algorithm(_elsewhere, lambda shape: _elsewhere(shape) / shape.ranks, "each"),
        PAIRWISE: Algorithm(_elsewhere, lambda shape: _elsewhere(shape) / shape.ranks, "each"),
        # every step sends the blocks whose number has one bit set, which are half of them
        BRUCK: Algorithm(_rounds, lambda shape: 0.5 * _doublings(shape), "each"),
    },
    "broadcast": {
        **_ROOTED,
        # van de Geijn: a binomial scatter, and a ring of p - 1
        SCATTER_ALLGATHER: Algorithm(
            lambda shape: _doublings(shape) + _others(shape), _twice(_gathered), "one"
        ),
        SCATTER_DOUBLING: Algorithm(_twice(_doublings), _twice(_gathered), "each"),
    },
    "reduce": {
        **_ROOTED,
        # Rabenseifner: recursive halving, and a binomial gather to the root; both send (p-1)/p m
        REDUCE_SCATTER_GATHER: Algorithm(_twice(_doublings), _twice(_gathered), "each"),
    },
    "gather": _SPREAD,
    "scatter": _SPREAD,
    "sendrecv": {ONE_MESSAGE: Algorithm(_once, _once, "one")},
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

# what a library may do for an operation: it takes the fastest of one of these, the first where no
# measurement says which. NCCL's are those of its tuner (src/graph/tuning.cc); MPI libraries choose
# among all, by rules of their own
Choice = tuple[str, ...]
_NCCL_CHOICES: dict[str, tuple[Choice, ...]] = {
    "allreduce": ((RINGS, TREE),),
    "allgather": ((RINGS,),),
    "allgatherv": ((RINGS,),),
    "reduce_scatter": ((RINGS,),),
    "all_to_all": ((RING,),),
    "broadcast": ((RINGS,), (OVERLAPPED,)),
    "reduce": ((RINGS,), (OVERLAPPED,)),
}
_GATHERED_CHOICES = ((DOUBLING, RING), (RING,), (DOUBLING,))
_OTHER_CHOICES: dict[str, tuple[Choice, ...]] = {
    "allreduce": (
        (DOUBLING, HALVING_DOUBLING),
        (DOUBLING,),
        (HALVING_DOUBLING,),
        (DOUBLING, RING),
        (RING,),
        (DOUBLING + OVER_NODES,),
        (HALVING_DOUBLING + OVER_NODES,),
    ),
    "allgather": _GATHERED_CHOICES,
    "allgatherv": _GATHERED_CHOICES,
    "reduce_scatter": _GATHERED_CHOICES,
    "all_to_all": ((BRUCK, RING), (RING,), (BRUCK,)),
    "broadcast": ((BINOMIAL, SCATTER_ALLGATHER), (BINOMIAL,), (SCATTER_ALLGATHER,), (CHAIN,)),
    "reduce": ((BINOMIAL, REDUCE_SCATTER_GATHER), (BINOMIAL,), (REDUCE_SCATTER_GATHER,), (CHAIN,)),
    "gather": ((LINEAR,), (BINOMIAL,)),
    "scatter": ((LINEAR,), (BINOMIAL,)),
}
BETWEEN = " or "


def choices_of(operation: str, library: str) -> tuple[Choice, ...]:
    """What `library` may do for an operation of ALGORITHMS, likeliest first."""
    menus = _NCCL_CHOICES if library in ("nccl", "torch_nccl") else _OTHER_CHOICES
    return menus.get(operation) or ((next(iter(ALGORITHMS[operation])),),)


def shape_of(operation: str, algorithm: str, ranks: int) -> AlgorithmShape:
    """(steps, volume) of one operation. Raises KeyError for a name that ALGORITHMS lacks."""
    of, shape = ALGORITHMS[operation][algorithm], GroupShape(ranks, 1, ranks)
    return of.steps(shape), of.volume(shape)


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
        return shape_of(name, named if named in menu else next(iter(menu)), ranks)
    inner = detail.removeprefix("inner=")[:10]
    known = inner.isascii() and inner.isdecimal() and 0 < int(inner) <= ranks
    if name == "hierarchical_allreduce" and known:
        rings = [shape_of("allreduce", RING, p) for p in (int(inner), ranks // int(inner))]
        return sum(ring[0] for ring in rings), sum(ring[1] for ring in rings)
    raise InputError(f"no cost model for the operation {operation!r}")
