"""Which repetitions of collectives a law is fitted from."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import NamedTuple

from calib.fitting.rounded_sizes import ALIKE, joined
from calib.microbench.records.samples import Samples

IN_PLACE = ("in_place", "graph_in_place")


class Direct(NamedTuple):
    """What one direct law is of: an operation in one layout."""

    operation: str
    library: str
    device: str
    level: str
    ranks: int
    nodes: int
    ranks_per_node: int


def grouped(samples: Samples) -> dict[Direct, Samples]:
    """The rows of every direct law: of one group alone, with warm caches.

    Several groups at once and cold buffers are other questions (contention, composition).
    """
    found: dict[Direct, list[Samples]] = defaultdict(list)
    alone = usual(samples).where(groups=1, cold=False)
    columns = "operation", "key", "mode", "library", "device", "level", "ranks", "nodes"
    for (operation, key, mode, library, device, level, ranks, nodes, active), rows in alone.groups(
        *columns, "active_ranks"
    ).items():
        if ranks > 1:
            name = name_of(operation, key, mode, ranks)
            fullest = most_on_a_node(ranks, nodes, active)
            found[Direct(name, library, device, level, ranks, nodes, fullest)].append(rows)
    return {about: rows.joined(more) for about, (rows, *more) in found.items()}


def name_of(operation: str, key: str, mode: str, ranks: int) -> str:
    """What the operation of a law is called: its layout, or a CUDA graph, makes it another one.

    A layout is that of a 2-D halo, the inner size of a hierarchy, an algorithm that NCCL was forced to.
    """
    named = f"{operation} {key}" if key and key != str(ranks) else operation
    return named + " graph" * (mode == "graph")


def most_on_a_node(ranks: int, nodes: int, active_ranks: int) -> int:
    """How many ranks of its one group the fullest node has: of 8 + 2 that is 8, of 5 + 5 it is 5."""
    even = -(-ranks // max(nodes, 1))
    return max(even, min(active_ranks, ranks - nodes + 1))


def usual(samples: Samples) -> Samples:
    """The rows of collectives from a barrier, out of place."""
    rows = samples.where(kind="collective", start="barrier")
    return rows.where(~rows.mask("mode", IN_PLACE.__contains__))


def packed(rows: Samples) -> Samples:
    """Of rows of one level and p, those of the layout on the fewest nodes, ranks side by side."""
    layouts: dict[tuple[int, int, int], list[Samples]] = defaultdict(list)
    for (ranks, nodes, active, stride), some in rows.groups(
        "ranks", "nodes", "active_ranks", "stride"
    ).items():
        layouts[nodes, -most_on_a_node(ranks, nodes, active), stride].append(some)
    nearest, *more = layouts[min(layouts)]
    return nearest.joined(more)


def of_one_sweep(rows: Samples) -> Samples:
    """The rows of one operation, where runs rounded a size of a p differently with one size for it."""
    nbytes = rows["nbytes"]
    for (ranks,), sweep in rows.groups("ranks").items():
        sizes = sweep.groups("nbytes", "ranks", "launch")
        same = joined(sweep.first.operation, sizes, ALIKE)
        for size in {size for size, one in same.items() if size != one}:
            nbytes[(rows["ranks"] == ranks) & (nbytes == size)] = same[size]
    return rows.with_column("nbytes", nbytes) if (nbytes != rows["nbytes"]).any() else rows


def unpacked_note(samples: Samples) -> list[str]:
    """One note, if any, on the rows that `packed` leaves out."""
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


def types_note(about: str, every: Samples, rows: Samples) -> list[str]:
    """A note on the data type that a law was fitted to, where `every` row has several."""
    types = every.distinct("dtype")
    if len(types) < 2:
        return []
    return [f"{about}: of {', '.join(types)} only {rows.first.dtype} is fitted"]


def of_laws(samples: Samples) -> dict[Direct, tuple[Samples, Samples]]:
    """(every row, those that are fitted) of each direct law, sorted.

    Fitted are those packed side by side, of one data type (over all layouts of an operation, where they
    have it), with one number for a size.
    """
    groups = grouped(samples)
    types: dict[tuple[str, str, str, str], Counter[str]] = defaultdict(Counter)
    for key, every in groups.items():
        types[key[:4]].update(_sizes_by_type(every))
    found = {}
    for key, every in sorted(groups.items()):
        rows = every.where(every["nbytes"] > 0)
        own, usual = _sizes_by_type(rows), _most(types[key[:4]])
        best = usual if own[usual] > 1 else _most(own)
        found[key] = every, of_one_sweep(packed(rows).where(dtype=best))
    return found


def _sizes_by_type(rows: Samples) -> Counter[str]:
    """How many (p, bytes) each data type has."""
    some = rows.where(rows["nbytes"] > 0)
    return Counter(dtype for dtype, _, _ in some.groups("dtype", "ranks", "nbytes"))


def _most(types: Counter[str]) -> str:
    return min(types, key=lambda name: (-types[name], name), default="")
