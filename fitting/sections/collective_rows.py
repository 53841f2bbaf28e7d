"""Which repetitions of collectives a law is fitted from."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from calib.fitting.rounded_sizes import ALIKE, joined
from calib.microbench.records.samples import Sample

IN_PLACE = ("in_place", "graph_in_place")


@dataclass(frozen=True, order=True)
class Direct:
    """What one direct law is of: an operation in one layout."""

    operation: str
    library: str
    device: str
    level: str
    ranks: int
    nodes: int
    ranks_per_node: int


def grouped(samples: list[Sample]) -> dict[Direct, list[Sample]]:
    """The rows of every direct law."""
    groups: dict[Direct, list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.kind == "collective" and is_plain(sample) and sample.ranks > 1:
            name = f"{sample.operation} {sample.key}" if names_layout(sample) else sample.operation
            name += " graph" * (sample.mode == "graph")
            about = (name, sample.library, sample.device, sample.level, sample.ranks)
            groups[Direct(*about, sample.nodes, most_on_a_node(sample))].append(sample)
    return groups


def most_on_a_node(sample: Sample) -> int:
    """How many ranks of its one group the fullest node has: of 8 + 2 that is 8, of 5 + 5 it is 5."""
    even = -(-sample.ranks // max(sample.nodes, 1))
    return max(even, min(sample.active_ranks, sample.ranks - sample.nodes + 1))


def is_plain(sample: Sample) -> bool:
    """One group alone, warm, from a barrier, out of place: what alpha and beta are fitted from.

    Several groups at once, cold buffers and traffic beside are other questions (contention).
    """
    alone = sample.groups == 1 and not sample.background_nbytes
    in_place = sample.mode in IN_PLACE
    return alone and not sample.cold and sample.start == "barrier" and not in_place


def is_cold(sample: Sample) -> bool:
    """As is_plain, but of buffers that no cache holds."""
    alone = sample.groups == 1 and not sample.background_nbytes
    usual = sample.kind == "collective" and sample.start == "barrier"
    return alone and usual and sample.cold and sample.mode not in IN_PLACE


def names_layout(sample: Sample) -> bool:
    """Whether its key makes it another operation.

    A 2-D halo, the inner size of a hierarchy, an algorithm that NCCL was forced to.
    """
    return bool(sample.key) and sample.key != str(sample.ranks)


def packed(rows: list[Sample]) -> list[Sample]:
    """Of rows of one level and p, those of the layout on the fewest nodes, ranks side by side."""

    def spread(row: Sample) -> tuple[int, int, int]:
        return row.nodes, -most_on_a_node(row), row.stride

    fewest = min(map(spread, rows))
    return [row for row in rows if spread(row) == fewest]


def of_one_sweep(rows: list[Sample]) -> list[Sample]:
    """The rows of one operation and p, where runs rounded a size differently with one size for it."""
    if not rows:
        return rows
    sizes = {(row.nbytes, row.ranks, row.launch) for row in rows}
    same = joined(rows[0].operation, sizes, ALIKE)
    return [
        row if same[row.nbytes] == row.nbytes else replace(row, nbytes=int(same[row.nbytes]))
        for row in rows
    ]


def unpacked_note(samples: list[Sample]) -> list[str]:
    """One note, if any, on the rows that `packed` leaves out of all laws of one layout."""
    groups = {key: (len(packed(rows)), len(rows)) for key, rows in grouped(samples).items()}
    short = {key: counts for key, counts in sorted(groups.items()) if counts[0] < counts[1]}
    if not short:
        return []
    key, (kept, every) = next(iter(short.items()))
    total = sum(counts[1] - counts[0] for counts in short.values())
    return [
        f"{total} rows of collectives feed no law of theirs, as others of the same layout have their "
        f"ranks nearer: {key.operation} on {key.ranks} ranks has {kept} of {every} left"
        f"{', and so on' * (len(short) > 1)}"
    ]


def types_note(about: str, every: list[Sample], rows: list[Sample]) -> list[str]:
    """One note, if `every` row is of several data types, on which of them the `rows` of a law are."""
    types = sorted({row.dtype for row in every})
    if len(types) < 2:
        return []
    return [f"{about}: of {', '.join(types)} only {rows[0].dtype} is fitted"]


def one_type(rows: list[Sample]) -> list[Sample]:
    """Of rows with bytes, of one p or several, those of the data type with the most (p, bytes)."""
    sizes: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for row in rows:
        if row.nbytes > 0:
            sizes[row.dtype].add((row.ranks, row.nbytes))
    best = min(sizes, key=lambda name: (-len(sizes[name]), name), default="")
    return [row for row in rows if row.dtype == best and row.nbytes > 0]
