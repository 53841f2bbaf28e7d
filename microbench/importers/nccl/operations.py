"""The programs of nccl-tests, and which of them can have printed a table without a name."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from calib.foundation.collectives import BUS_FACTORS, whole_buffer, without_own
from calib.microbench.importers.lines.reading import Numbers, within
from calib.microbench.importers.said import each_word

MOST_RANKS = 1 << 22
INFORMATIVE = 0.2  # a ratio of bandwidths known to better than this says something
MOST_CANDIDATES = 4096

DTYPES = {
    "float": ("float32", 4),
    "double": ("float64", 8),
    "half": ("float16", 2),
    "bfloat16": ("bfloat16", 2),
    "float16": ("float16", 2),
    "float32": ("float32", 4),
    "float64": ("float64", 8),
    "int8": ("int8", 1),
    "char": ("int8", 1),
    "uint8": ("uint8", 1),
    "int32": ("int32", 4),
    "int": ("int32", 4),
    "uint32": ("uint32", 4),
    "int64": ("int64", 8),
    "uint64": ("uint64", 8),
    "f8e4m3": ("float8_e4m3", 1),
    "f8e5m2": ("float8_e5m2", 1),
    "fp8_e4m3": ("float8_e4m3", 1),
    "fp8_e5m2": ("float8_e5m2", 1),
    "float8e4m3": ("float8_e4m3", 1),
    "float8e5m2": ("float8_e5m2", 1),
}


@dataclass(frozen=True)
class OperationKind:
    """One operation: busbw / algbw as its program prints them, and its columns.

    `per_rank`: the size is count * type * ranks, because the count is of one rank's part. `reduces`
    and `rooted`: what stands in the columns redop and root. `moved`: what the algorithm bandwidth
    counts of the size. `of_part`: the size is that of one rank's part.
    """

    name: str
    factor: Callable[[int], float]
    per_rank: bool = False
    reduces: bool = False
    rooted: bool = False
    moved: Callable[[int], float] = whole_buffer
    of_part: bool = False


def _kind(
    name: str, per_rank: bool = False, reduces: bool = False, rooted: bool = False
) -> OperationKind:
    return OperationKind(name, BUS_FACTORS[name], per_rank, reduces, rooted)


def _of_sent(kind: OperationKind) -> OperationKind:
    """With both bandwidths of what leaves a rank, (n - 1) / n of the size."""
    return replace(kind, factor=whole_buffer, moved=without_own)


KINDS = {
    kind.name: kind
    for kind in (
        _kind("allreduce", reduces=True),
        _kind("reduce_scatter", per_rank=True, reduces=True),
        _kind("reduce", reduces=True, rooted=True),
        _kind("broadcast", rooted=True),
        _kind("allgather", per_rank=True),
        _kind("all_to_all", per_rank=True),
        _kind("gather", per_rank=True, rooted=True),
        _kind("scatter", per_rank=True, rooted=True),
        _kind("sendrecv", reduces=True),
        _of_sent(_kind("hypercube", per_rank=True)),
    )
}
# as early nccl-tests and rccl-tests printed them
OLD = {kind.name: _of_sent(kind) for kind in KINDS.values() if kind.factor is without_own}
# those of NCCL 1 and of the first nccl-tests, whose size is the part of a rank
FIRST = {
    name: replace(KINDS[name], factor=lambda n: n - 1, of_part=True)
    for name in ("reduce_scatter", "allgather")
}
# -a: which of the ranks' times is printed; the mean is the default
MEAN = 1
AVERAGES = {0: "of rank 0", 2: "of the fastest rank", 3: "of the slowest rank"}
AVERAGE = re.compile(r"(?:^|\s)(?:-a\s*|--average[ =])([0-3])(?=\s|$)")
PROGRAMS = each_word(
    {
        "allreduce": "all_reduce allreduce",
        "allgather": "all_gather allgather",
        "reduce_scatter": "reduce_scatter reducescatter",
        "all_to_all": "alltoall all_to_all",
        "broadcast": "broadcast bcast",
        **{name: name for name in ("reduce", "gather", "scatter", "sendrecv", "hypercube")},
    }
)
WORDS = "|".join(sorted(PROGRAMS, key=len, reverse=True))


@dataclass(frozen=True)
class Columns:
    """What of a table tells its operation: good rows only; bandwidths and their half units in GB/s.

    `blocks` is size / (count * type) where all rows agree, else 0. `in_place_unchecked`: the results
    out of place were checked and those in place were not. `redop_column`: the header has one, None
    where the header is lost.
    """

    redops: frozenset[str]
    roots: frozenset[str]
    blocks: int
    in_place_unchecked: bool | None
    algbw: Numbers
    busbw: Numbers
    half_algbw: Numbers
    half_busbw: Numbers
    redop_column: bool | None = None
    early: bool = False  # a header of before 2.0, as FIRST has


def fits_redop(kind: OperationKind, redop: str) -> bool:
    """Whether an operation prints that reduction; "" is a column that is blank or not there."""
    if kind.name == "sendrecv":
        return True  # sum, none or blank by version
    return (redop not in ("none", "")) == kind.reduces


def fits_root(kind: OperationKind, root: str) -> bool:
    """Whether an operation prints that root: -1 or no column at all where it has none."""
    return (root not in ("", "-1")) == kind.rooted


def agreeing(columns: Columns, kind: OperationKind, ranks: int) -> float:
    """Share of the rows whose bandwidths have the ratio of `kind` on `ranks`; 1 where none can tell."""
    factor = kind.factor(ranks)
    with np.errstate(all="ignore"):
        relative = (columns.half_algbw + columns.half_busbw) / np.maximum(columns.algbw, 1e-300)
    telling = relative < INFORMATIVE
    if not telling.any():
        return 1.0
    low = factor * (columns.algbw - columns.half_algbw)
    high = factor * (columns.algbw + columns.half_algbw)
    return float(np.mean(within(columns.busbw, low, high, columns.half_busbw)[telling]))


def as_printed(kind: OperationKind, columns: Columns, ranks: int) -> OperationKind:
    """`kind`, with the old bandwidths where those fit more rows; `ranks` is 0 if not known."""
    if columns.early and columns.blocks == 1 and kind.name in FIRST:
        return FIRST[kind.name]
    ranks, old = ranks or columns.blocks, OLD.get(kind.name)
    if old is None or ranks < 2 or columns.blocks < 2:
        return kind
    share = agreeing(columns, old, ranks)
    return old if share > max(0.5, agreeing(columns, kind, ranks)) else kind


def average_of(arguments: str) -> int:
    """The value of -a among the arguments of a program, up to a pipe or the next command."""
    match = AVERAGE.search(re.split(r"[;|&>]", arguments, maxsplit=1)[0])
    return int(match[1]) if match else MEAN


def ranks_from(columns: Columns, kind: OperationKind) -> int:
    """The only number of ranks that a table's own columns allow, or 0.

    From size / (count * type) where that is the ranks, else from busbw / algbw = factor(ranks).
    """
    if kind.per_rank and columns.blocks > 1:
        return columns.blocks
    if kind.of_part or kind.factor(2) == kind.factor(3) or not len(columns.algbw):
        return 0
    low = np.maximum(columns.busbw - columns.half_busbw, 0) / (columns.algbw + columns.half_algbw)
    with np.errstate(all="ignore"):
        high = (columns.busbw + columns.half_busbw) / (columns.algbw - columns.half_algbw)
    ok = (columns.algbw > columns.half_algbw) & (columns.busbw > columns.half_busbw)
    if not ok.any():
        return 0
    whole = 2.0 if kind.name == "allreduce" else 1.0  # factor = whole (n - 1) / n
    low, high = low[ok], high[ok]
    with np.errstate(all="ignore"):
        fewest = np.where(low < whole, whole / np.maximum(whole - low, 1e-300), np.inf)
        most = np.where(high < whole, whole / np.maximum(whole - high, 1e-300), np.inf)
        narrow = np.argsort(most - fewest, kind="stable")
    for row in narrow[: max(1, len(narrow) // 4)]:  # the narrowest may be the row that is wrong
        first, last = np.ceil(fewest[row] - 1e-9), np.floor(most[row] + 1e-9)
        if not np.isfinite(last) or last - first > MOST_CANDIDATES or last > MOST_RANKS:
            return 0
        numbers = np.arange(max(2, int(first)), int(last) + 1)
        votes = [int(np.sum((fewest - 1e-9 <= n) & (n <= most + 1e-9))) for n in numbers]
        if votes and max(votes) * 2 > len(low):
            best = [n for n, count in zip(numbers, votes, strict=True) if count == max(votes)]
            return int(best[0]) if len(best) == 1 else 0
    return 0


def candidates(columns: Columns, ranks: int) -> list[OperationKind]:
    """The operations that could have printed a table; `ranks` is 0 where they are not known."""
    found = []
    for new in KINDS.values():
        if not all(fits_redop(new, redop) for redop in columns.redops):
            continue
        if not all(fits_root(new, root) for root in columns.roots):
            continue
        part = columns.early and columns.blocks == 1 and new.name in FIRST and ranks > 1
        if columns.blocks and (columns.blocks > 1) != new.per_rank and not part:
            continue
        n = ranks or ranks_from(columns, new)
        if new.per_rank and columns.blocks > 1 and n != columns.blocks:
            continue
        kind = as_printed(new, columns, n)
        constant = kind.factor(2) == kind.factor(3)
        if (n or constant) and agreeing(columns, kind, n or 2) <= 0.5:
            continue
        # a ratio of 1 is no (n - 1) / n; of 2 (n - 1) / n it is that of two ranks
        unlike = not constant and kind.name != "allreduce"
        if unlike and not n and agreeing(columns, KINDS["broadcast"], 2) > 0.5:
            continue
        found.append(kind)
    return _without_unlikely(found, columns)


def _without_unlikely(found: Sequence[OperationKind], columns: Columns) -> list[OperationKind]:
    """Drop what only looks the same.

    alltoall cannot run in place, so it alone leaves that unchecked; up to 2.12 it has a column redop
    that is blank, where allgather has none.
    """
    names, kept = {kind.name for kind in found}, list(found)
    if {"allgather", "all_to_all"} <= names:
        wanted = columns.in_place_unchecked
        if columns.redops == {""} and columns.redop_column is not None:
            wanted = columns.redop_column
        if wanted is not None:
            other = "allgather" if wanted else "all_to_all"
            kept = [kind for kind in kept if kind.name != other]
    return kept


def file_operation(name: str) -> str:
    """The operation that a file's name says, or "": ..._bcast_inter_2n8g.txt, reducescatter."""
    found = re.findall(rf"(?<![a-z])(?:{WORDS})(?![a-z])", name.lower())
    kinds = {PROGRAMS[word] for word in found}
    return kinds.pop() if len(kinds) == 1 else ""
