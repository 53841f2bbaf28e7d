"""Levels of the machine for targets that describe them: which were measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from calib.export.about import ranks_in_words
from calib.export.collapse import collapse_of
from calib.export.measured import SECTIONS, other_sections, other_times
from calib.export.reference import Reference
from calib.export.target import Collapse, ExportPoint, ExportRequest
from calib.foundation.errors import InputError, MissingParameter
from calib.foundation.words import bytes_words
from calib.oracle.costs.levels import NODE, RACK, SYSTEM, GroupLayout, Levels
from calib.oracle.projection import BASIS_ORDER

EXTRAPOLATED = BASIS_ORDER[-1]


class MachineLevel(NamedTuple):
    """A level of the machine: `size` compartments of the level below (of the first: ranks)."""

    name: str
    size: int


def machine(request: ExportRequest, ranks: Sequence[int]) -> list[MachineLevel]:
    """The levels of the requested or calibrated machine, with room for all `ranks` (each >= 2).

    A rack is a level where the nodes fill whole racks. A level of one compartment is left out. Raises
    InputError where the ranks do not fit the nodes that were asked for.
    """
    parameters = request.parameters
    each, per_rack, most = parameters.ranks_per_node, parameters.nodes_per_rack, max(ranks)
    if request.nodes and most > each * request.nodes:
        raise InputError(
            f"{most} ranks are more than {request.nodes} node(s) of {each} hold; give more --nodes or "
            "fewer --ranks"
        )
    nodes = max(request.nodes or parameters.nodes, -(-most // each))
    found = [MachineLevel(NODE, each)]
    if 1 < per_rack < nodes and nodes % per_rack == 0:
        found += [MachineLevel(RACK, per_rack), MachineLevel(SYSTEM, nodes // per_rack)]
    else:
        found.append(MachineLevel(RACK if per_rack >= nodes else SYSTEM, nodes))
    return [level for level in found if level.size > 1]


def strided(levels: Sequence[MachineLevel], at: int) -> int:
    """Ranks of one compartment of the level `at`: the product of the sizes below it."""
    return math.prod(level.size for level in levels[:at])


def apart(request: ExportRequest, levels: Sequence[MachineLevel], at: int) -> int:
    """The stride of two ranks whose messages cross the level `at`."""
    if at + 1 == len(levels) and one_for_racks(request, levels):
        return request.parameters.ranks_per_node * request.parameters.nodes_per_rack
    return strided(levels, at)


def one_for_racks(request: ExportRequest, levels: Sequence[MachineLevel]) -> bool:
    """Whether racks and the system are one level, as the nodes do not fill whole racks."""
    last = levels[-1]
    several = last.name == SYSTEM and 1 < request.parameters.nodes_per_rack < last.size
    return several and all(level.name != RACK for level in levels)


def racks_note(request: ExportRequest, levels: Sequence[MachineLevel]) -> tuple[str, ...]:
    """A note where racks are no level of their own."""
    if not one_for_racks(request, levels):
        return ()
    nodes, per_rack = levels[-1].size, request.parameters.nodes_per_rack
    return (
        f"{nodes} nodes do not fill whole racks of {per_rack}: racks and the system are one level here, "
        "with messages as slow as between racks",
    )


def require_measured(target: str, reference: Reference, levels: Sequence[MachineLevel]) -> None:
    """Raise MissingParameter for the first level where the library has no law at all."""
    each = reference.parameters.ranks_per_node
    for at, level in enumerate(levels):
        size = strided(levels, at + 1)
        if reference.measured_at(size):
            continue
        if level.name == NODE:
            place = f"inside a node of {each} ranks"
            provider = "`calib measure -n 2 -o RUN` and `calib fit RUN` add them"
        else:
            place, where = f"between {size // each} nodes", "on two nodes"
            if level.name == RACK:
                place, where = "between the nodes of a rack", "on two nodes of one rack"
            elif reference.parameters.nodes_per_rack:
                place, where = "between racks", "on two nodes of different racks"
            provider = f"{where} `calib calibrate --launcher slurm` measures them"
            if each > 1 and reference.request.ranks:
                provider += f"; --ranks up to {each} and --nodes 1 need none"
            elif each > 1:
                provider += "; --nodes 1 needs none"
        raise MissingParameter(
            f"{target} needs times {place}, and the parameters hold none of {reference.library}; "
            f"{provider}"
        )


def measured(reference: Reference, *operations: str) -> list[str]:
    """Those of the operations that the parameters hold laws of."""
    return [operation for operation in operations if operation in reference.operations]


def collapses_of(
    points: Sequence[ExportPoint], found: Sequence[float], into: str, written: str, level: str = ""
) -> list[Collapse]:
    """What became of the times of each operation, in the target `found` seconds [n]."""
    collapses = []
    for operation in dict.fromkeys(point.operation for point in points):
        pairs = zip(points, found, strict=True)
        mine, seconds = zip(
            *(pair for pair in pairs if pair[0].operation == operation), strict=True
        )
        what = f"{operation} ({level})" if level else operation
        collapses.append(collapse_of(what, into, written, mine, seconds))
    return collapses


def held(
    reference: Reference, points: Sequence[ExportPoint], levels: Sequence[MachineLevel], at: int
) -> list[str]:
    """For which sizes and ranks a level holds, a line for each operation."""
    lines = []
    for operation in dict.fromkeys(point.operation for point in points):
        mine = [point for point in points if point.operation == operation]
        sizes, ranks = [point.nbytes for point in mine], {point.ranks for point in mine}
        text = (
            f"{operation} of {bytes_words(min(sizes))} to {bytes_words(max(sizes))} on "
            f"{ranks_in_words(sorted(ranks))} ranks ({levels[at].name})"
        )
        if any(point.basis == EXTRAPOLATED for point in mine):
            text += f" (extrapolated: {_reach(reference, operation, strided(levels, at + 1))})"
        lines.append(text)
    return lines


def _reach(reference: Reference, operation: str, size: int) -> str:
    """For what an operation was measured on the level that `size` neighbours cross."""
    names = Levels.of(reference.parameters).names(GroupLayout(size))
    known = [place for place in reference.places(operation) if place.level in names]
    if not known:
        return "not measured there"
    low, high = min(p.nbytes[0] for p in known), max(p.nbytes[1] for p in known)
    ranks = ranks_in_words(sorted({p for place in known for p in place.ranks}))
    return f"measured to {bytes_words(high)}, from {bytes_words(low)}, on {ranks} ranks"


def left_out(reference: Reference, used: Sequence[str], loops: Sequence[str] = ()) -> list[str]:
    """What neither ASTRA-sim nor Calculon is given of these parameters, in words.

    `used` are the operations that they are given, `loops` the passes over tensors.
    """
    parameters, found = reference.parameters, [*other_times(reference, used)]
    if any(len(fit.pieces) > 1 for fit in reference.fits if fit.operation in used):
        found.append("bends (pieces) of the network's laws")
    if any(law.library == reference.library for law in parameters.contention):
        found.append(SECTIONS["contention"])
    if passes := sorted({loop.operation for loop in parameters.tensor_loops} - set(loops)):
        found.append(f"times of {', '.join(passes)} over lists of tensors")
    rest = ("peaks", "work", "composition", "memory", "overlap", "partitions")
    return [*found, *other_sections(parameters, *rest)]
