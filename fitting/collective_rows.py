"""Which repetitions of collectives a law is fitted from."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from microbench.samples import Sample

IN_PLACE = ("in_place", "graph_in_place")


@dataclass(frozen=True, order=True)
class Direct:
    """What one direct law is of."""

    operation: str
    library: str
    device: str
    level: str
    ranks: int


def grouped(samples: list[Sample]) -> dict[Direct, list[Sample]]:
    """The rows of every direct law."""
    groups: dict[Direct, list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.kind == "collective" and is_plain(sample) and sample.ranks > 1:
            name = f"{sample.operation} {sample.key}" if names_layout(sample) else sample.operation
            name += " graph" * (sample.mode == "graph")
            groups[Direct(name, sample.library, sample.device, sample.level, sample.ranks)].append(
                sample
            )
    return groups


def is_plain(sample: Sample) -> bool:
    """One group alone, warm, from a barrier, out of place: what alpha and beta are fitted from.

    Several groups at once, cold buffers and traffic beside are other questions (contention).
    """
    alone = sample.groups == 1 and not sample.background_nbytes
    in_place = sample.mode in IN_PLACE
    return alone and not sample.cold and sample.start == "barrier" and not in_place


def names_layout(sample: Sample) -> bool:
    """Whether the layout makes it another operation: a 2-D halo, the inner size of a hierarchy."""
    return bool(sample.key) and sample.key != str(sample.ranks)


def packed(rows: list[Sample]) -> list[Sample]:
    """Of rows of one level and p, those whose groups span the fewest nodes, ranks side by side."""
    fewest = min((row.nodes, row.stride) for row in rows)
    return [row for row in rows if (row.nodes, row.stride) == fewest]


def one_type(rows: list[Sample]) -> list[Sample]:
    """Of rows with bytes, those of the data type that has the most sizes."""
    sizes: dict[str, set[int]] = defaultdict(set)
    for row in rows:
        if row.nbytes > 0:
            sizes[row.dtype].add(row.nbytes)
    best = min(sizes, key=lambda name: (-len(sizes[name]), name), default="")
    return [row for row in rows if row.dtype == best and row.nbytes > 0]
