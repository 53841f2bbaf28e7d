"""In words: what was measured of an operation, and what a target leaves out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from calib.export.reference import Place, Reference
from calib.export.target import ExportPoint
from calib.fitting.parameters.file import Parameters
from calib.foundation.words import bytes_words
from calib.oracle.costs.levels import NODE, RACK, SYSTEM, GroupLayout, Levels

# sections of the parameter file, in words
SECTIONS = {
    "contention": "how groups at once slow each other down",
    "peaks": "the peaks of the device",
    "layers": "the times of layers, forward and backward",
    "work": "laws of layers that were not measured",
    "tensor_loops": "laws of packing and of updating weights",
    "composition": "corrections for running in place",
    "memory": "laws of the peak of memory",
    "overlap": "how much of an exchange a backward hides",
    "partitions": "laws of partitions",
}

WHERE = {NODE: "inside a node", RACK: "between nodes of a rack", SYSTEM: "between racks"}


def sizes_in_words(ends: tuple[int, int]) -> str:
    """8 B to 64 MiB."""
    low, high = map(bytes_words, ends)
    return low if ends[0] == ends[1] else f"{low} to {high}"


def extrapolated(points: Sequence[ExportPoint], found: Sequence[Place]) -> str:
    """What goes after the sizes that a number holds for; "" where all times are within the laws."""
    beyond = sum(point.basis == "extrapolated" for point in points)
    if not beyond:
        return ""
    count = "" if beyond == len(points) else f"{beyond} of {len(points)} times "
    low, high = min(p.nbytes[0] for p in found), max(p.nbytes[1] for p in found)
    counts = [p for place in found for p in place.ranks]
    fewest, most = min(counts), max(counts)
    ranks = f"{fewest} to {most}" if fewest < most else str(most)
    return f" ({count}extrapolated: measured {sizes_in_words((low, high))} on {ranks} ranks)"


def farthest(parameters: Parameters, nodes: int) -> tuple[int, str, str]:
    """Two ranks of so many nodes that use the slowest link: their stride, its level, and where it is."""
    ranks, per_rack = parameters.ranks_per_node, parameters.nodes_per_rack
    if nodes == 1:
        return 1, NODE, WHERE[NODE]
    if 0 < per_rack < nodes:
        return ranks * per_rack, SYSTEM, WHERE[SYSTEM]
    return ranks, RACK if per_rack else SYSTEM, "between nodes"


def where(parameters: Parameters, level: str) -> str:
    """Where the messages of a level go."""
    return WHERE[level] if level == NODE or parameters.nodes_per_rack else "between nodes"


def stands_in(
    reference: Reference, operation: str, layouts: Iterable[GroupLayout]
) -> tuple[str, ...]:
    """A note for every level between nodes that these groups cross but another level stands in for."""
    crossed = set(map(Levels.of(reference.parameters).names, layouts))
    known = {place.level for place in reference.places(operation)}
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
