"""What the parameters hold of an operation, and what a target leaves out of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from calib.export.reference import Reference
from calib.export.target import ExportPoint
from calib.fitting.parameters.file import Parameters
from calib.foundation.words import bytes_words
from calib.oracle.costs.levels import NODE, RACK, SYSTEM, GroupLayout, Levels

# sections of the parameter file, as a reader of it knows them
SECTIONS = {
    "contention": "how groups at once slow each other down",
    "layers": "the times of layers, forward and backward",
    "work": "laws of layers that were not measured",
    "tensor_loops": "laws of packing and of updating weights",
    "composition": "corrections for running in place",
    "memory": "laws of the peak of memory",
    "overlap": "how much of an exchange a backward hides",
    "partitions": "laws of partitions",
}

WHERE = {NODE: "inside a node", RACK: "between nodes of a rack", SYSTEM: "between racks"}


class Place(NamedTuple):
    """One law of an operation: the level it is of, its ranks, and the sizes that were measured."""

    level: str
    ranks: tuple[int, ...]
    nbytes: tuple[int, int]


def places(reference: Reference, operation: str) -> list[Place]:
    """The laws of the operation that the reference's library has, direct ones first."""
    found = [
        Place(fit.level, (fit.ranks,), fit.range_nbytes)
        for fit in reference.fits
        if fit.operation == operation
    ]
    for law in reference.parameters.structural:
        if (law.library, law.operation) == (reference.library, operation):
            low, high = law.range_nbytes
            found.append(Place(law.level, tuple(law.ranks), (round(low), round(high))))
    return found


def common_sizes(found: Sequence[Place]) -> tuple[int, int]:
    """The sizes that all of these laws were measured at; where that is no range, those of any."""
    low, high = max(p.nbytes[0] for p in found), min(p.nbytes[1] for p in found)
    if low >= high:
        low, high = min(p.nbytes[0] for p in found), max(p.nbytes[1] for p in found)
    return max(1, low), max(1, high)


def sizes_in_words(ends: tuple[int, int]) -> str:
    """8 B to 64 MiB."""
    low, high = map(bytes_words, ends)
    return low if ends[0] == ends[1] else f"{low} to {high}"


def extrapolated(points: Sequence[ExportPoint], found: Sequence[Place]) -> str:
    """What goes after the sizes that a number holds for; "" where no time is beyond what was measured.

    `found` are the laws that the times rest on.
    """
    beyond = sum(point.basis == "extrapolated" for point in points)
    if not beyond:
        return ""
    count = "" if beyond == len(points) else f"{beyond} of {len(points)} times "
    low, high = min(p.nbytes[0] for p in found), max(p.nbytes[1] for p in found)
    fewest, *_, most = sorted(p for place in found for p in (*place.ranks, *place.ranks))
    ranks = f"{fewest} to {most}" if fewest < most else str(most)
    return f" ({count}extrapolated: measured {sizes_in_words((low, high))} on {ranks} ranks)"


def where(parameters: Parameters, level: str) -> str:
    """Where the messages of a level go."""
    return WHERE[level] if level == NODE or parameters.nodes_per_rack else "between nodes"


def stands_in(
    reference: Reference, operation: str, layouts: Iterable[GroupLayout]
) -> tuple[str, ...]:
    """A note for every level between nodes that such groups cross and another level stands in for.

    Of an operation that was measured between nodes.
    """
    crossed = set(map(Levels.of(reference.parameters).names, layouts))
    known = {place.level for place in places(reference, operation)}
    return tuple(
        f"no {operation} {WHERE[level]} was measured: that {WHERE[other]} stands in"
        for level, other in ((RACK, SYSTEM), (SYSTEM, RACK))
        if (level,) in crossed and level not in known
    )


def other_times(reference: Reference, kept: Collection[str]) -> tuple[str, ...]:
    """The times of other operations, if the parameters hold any."""
    others = sorted(reference.operations - set(kept))
    return (f"times of {', '.join(others)}",) * bool(others)


def other_sections(parameters: Parameters, *names: str) -> tuple[str, ...]:
    """Those of the sections that the parameters hold anything in, in words."""
    return tuple(SECTIONS[name] for name in names if getattr(parameters, name))
