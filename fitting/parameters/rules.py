"""The rules by which MPI libraries choose an algorithm, where they are published.

A rule says which algorithm runs at so many ranks and bytes, also where another would be faster: an
allgather of 64 KiB a rank goes in a ring on 64 ranks by Open MPI, and between neighbours on 128.

References
----------
Open MPI 4.1.4, ompi/mca/coll/tuned/coll_tuned_decision_fixed.c: what is chosen without a tuning file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from calib.fitting.parameters.algorithms import (
    BINARY,
    BINOMIAL,
    BRUCK,
    DOUBLING,
    HALVING_DOUBLING,
    KNOMIAL,
    LINEAR,
    NEIGHBOUR,
    PAIRWISE,
    REDUCE_BROADCAST,
    REDUCE_SCATTER_GATHER,
    REDUCE_THEN_SCATTER,
    RING,
    SCATTER_ALLGATHER,
    SCATTER_DOUBLING,
)

Rule = Callable[[int, float], str]  # (ranks, bytes of the whole buffer) -> algorithm

OPEN_MPI = "Open MPI's rule"

# A line for communicators under so many ranks (the last for the others): the algorithm of messages under
# so many bytes, the next one's, and that of longer ones. Numbers as Open MPI's.
_OPEN_MPI = {
    "allreduce": """
        4: 4<8 3<4K 4<8K 3<16K 4<64K 5<256K 6
        8: 4<16 3<8K 6
        16: 3<8K 6
        32: 5<64 3<4K 6
        64: 5<128 6
        128: 3<256K 6
        256: 2<128K 3<256K 6
        512: 2<4K 6
        2048: 2<2K 3<16K 6
        4096: 2<2K 5<4K 3<16K 6
        else: 2<2K 5<16K 3<32K 6""",
    "all_to_all": """
        3: 2<2 5<4 2<16 5<64 2<256 5<4K 2<32K 4<256K 5<1M 2
        8: 4<8K 1<16K 4<64K 1<512K 2<1M 1
        16: 4<256K 1
        32: 4<4 3<512 4<8K 1<32K 4<256K 1<512K 4
        64: 3<512 1<512K 4
        128: 3<1K 1<2K 4<4K 1<256K 2
        256: 3<1K 4<2K 1<256K 2
        512: 3<1K 4<8K 1<32K 2
        1024: 3<512 4<8K 1<16K 4<128K 1<256K 2
        2048: 3<512 4<1K 1<2K 4<16K 1<256K 4
        4096: 3<1K 4<4K 1<8K 4<128K 1
        else: 3<2K 4<8K 1<16K 4<32K 1<64K 4""",
    "broadcast": """
        4: 3<32 5<256 3<512 7<1K 1<32K 5<128K 2<256K 1<512K 6<1M 5
        8: 5<64 6<128 5<2K 6<8K 1<1M 2
        16: 7<8 5<64 7<4K 5<16K 6<32K 1
        32: 7<4K 6<1M 8
        64: 6<2K 7
        128: 7
        256: 6<2 5<16K 1<32K 5<64K 7
        1024: 7<16K 4<32K 7
        2048: 7<512K 8
        4096: 7<256K 8
        else: 7<8K 5<16K 7<256K 8""",
    "reduce": """
        4: 7<8 4<16 3<32 1<256K 3<512K 2<1M 3
        8: 4<4K 2<64K 5<256K 1<512K 5<1M 1
        16: 4<8K 5
        32: 4<4K 5
        256: 5
        512: 5<8K 6<16K 5
        2048: 5
        4096: 5<512 6<1K 5<8K 6<16K 5
        else: 5<16 6<32 5<1K 6<2K 5<8K 6<16K 5""",
    "reduce_scatter": """
        4: 3<64K 4<128K 3
        8: 1<8 2<256K 3
        32: 2<256K 3
        64: 1<64 2<2K 4<512K 3
        128: 1<256 2<512 4<2K 2<4K 4
        256: 1<256 2<512 4
        512: 1<256 2<1K 4
        1024: 1<512 2<2K 4<8K 2<16K 4
        2048: 1<512 2<4K 4<16K 2<32K 4
        4096: 1<512 2<4K 4
        else: 1<1K 2<8K 4""",
    "allgather": """
        3: 6
        32: 3
        64: 3<1K 5<64K 4
        128: 3<512 5<64K 4
        256: 3<512 5<128K 4<512K 5<1M 4
        512: 3<32 2<128 3<1K 5<128K 4<512K 5<1M 4
        1024: 3<64 2<256 3<2K 5
        2048: 3<4 2<8 3<16 2<32 3<256 2<512 3<4K 5
        4096: 2<32 3<128 2<512 3<4K 5
        else: 3<2 2<8 3<16 2<512 3<4K 5""",
    "allgatherv": """
        3: 3<2K 5<4K 3<8K 5
        8: 1<256 4<4K 3<8K 4<16K 2<256K 4
        16: 1<1K 2
        32: 1<128 2<256K 3
        64: 1<256 2<8K 3
        128: 1<256 2<4K 3
        256: 2<1K 4<64K 3
        512: 2<1K 3
        1024: 2<512 1<1K 2<4K 4<1M 3
        else: 2<4K 4""",
    "gather": """
        4: 3<2 1<4 2<32K 1<64K 2<128K 3
        8: 2<1K 1<8K 2<32K 1<256K 3
        256: 2
        512: 2<2K 1<8K 2
        else: 2""",
    "scatter": """
        4: 3<2 1<128K 3<256K 1
        8: 2<2K 1<4K 2<8K 1<32K 3<1M 1
        16: 2<16K 3<1M 1
        32: 2<16K 1<32K 3
        64: 2<512 3<8K 2<16K 3
        else: 2<512 3""",
}
# What its numbers mean. It sends whole messages where the rule gives no segments, so that a chain and a
# pipeline send as many as the linear algorithm, one after the other.
_NUMBERS = {
    "allreduce": (LINEAR, REDUCE_BROADCAST, DOUBLING, RING, RING, HALVING_DOUBLING),
    "all_to_all": (RING, PAIRWISE, BRUCK, RING, PAIRWISE),
    "broadcast": (
        *(LINEAR, LINEAR, LINEAR, BINARY, BINARY, BINOMIAL, KNOMIAL),
        *(SCATTER_DOUBLING, SCATTER_ALLGATHER),
    ),
    "reduce": (LINEAR, LINEAR, LINEAR, BINARY, BINOMIAL, BINARY, REDUCE_SCATTER_GATHER),
    "reduce_scatter": (REDUCE_THEN_SCATTER, DOUBLING, RING, DOUBLING),
    "allgather": (LINEAR, BRUCK, DOUBLING, RING, NEIGHBOUR, RING),
    "allgatherv": (LINEAR, BRUCK, RING, NEIGHBOUR, RING),
    "gather": (LINEAR, BINOMIAL, LINEAR),
    "scatter": (LINEAR, BINOMIAL, LINEAR),
}
# operations whose rule asks for the bytes of one rank's block
_BY_BLOCK = ("all_to_all", "allgather", "allgatherv", "gather", "scatter")
_UNITS = {"K": 1 << 10, "M": 1 << 20}


def _table(operation: str) -> tuple[list[int], list[tuple[list[int], list[str]]]]:
    """(limits of ranks, [(limits of bytes, algorithms)] of each range and of what is beyond)."""
    limits, rows = [], []
    for line in _OPEN_MPI[operation].split("\n")[1:]:
        ranks, _, entries = line.strip().partition(": ")
        limits += [int(ranks)] if ranks.isdecimal() else []
        pairs = [entry.partition("<") for entry in entries.split()]
        names = [_NUMBERS[operation][int(number) - 1] for number, _, _ in pairs]
        rows.append(([_nbytes(limit) for _, _, limit in pairs if limit], names))
    return limits, rows


def _nbytes(text: str) -> int:
    return int(text.rstrip("KM")) * _UNITS.get(text[-1], 1)


def _open_mpi(operation: str) -> Rule:
    limits, rows = _table(operation)
    rows = rows if len(rows) > len(limits) else [*rows, rows[-1]]

    def rule(ranks: int, nbytes: float) -> str:
        sizes, names = rows[bisect_right(limits, ranks)]
        of_rule = nbytes / ranks if operation in _BY_BLOCK else nbytes
        return names[bisect_right(sizes, of_rule)]

    return rule


# name -> operation -> rule
RULES: dict[str, dict[str, Rule]] = {
    OPEN_MPI: {operation: _open_mpi(operation) for operation in _OPEN_MPI}
}


def rules_of(operation: str, library: str) -> dict[str, Rule]:
    """Name -> rule that `library` may go by for an operation; NCCL goes by none of these."""
    if library in ("nccl", "torch_nccl"):
        return {}
    return {name: rules[operation] for name, rules in RULES.items() if operation in rules}
