"""Levels of the machine for targets that describe them: which were measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from calib.export.about import ranks_in_words
from calib.export.measured import SECTIONS, other_sections, other_times
from calib.export.reference import Reference
from calib.export.target import ExportPoint, ExportRequest
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
    """The levels of the machine, as the request and the parameters have it, with room for all `ranks`.

    `ranks` are 2 and more. A rack is a level where the nodes are whole racks. A level of one compartment
    is left out. Raises InputError where the ranks do not fit the nodes that were asked for.
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
    """How many ranks a compartment of the level `at` has: those of one below, times each other."""
    return math.prod(level.size for level in levels[:at])


def apart(request: ExportRequest, levels: Sequence[MachineLevel], at: int) -> int:
    """How far two ranks are apart whose message crosses the level `at`, and no faster one alone."""
    if at + 1 == len(levels) and one_for_racks(request, levels):
        return request.parameters.ranks_per_node * request.parameters.nodes_per_rack
    return strided(levels, at)


def one_for_racks(request: ExportRequest, levels: Sequence[MachineLevel]) -> bool:
    """Whether racks and the system are one level here, as the nodes are no whole racks."""
    last = levels[-1]
    several = last.name == SYSTEM and 1 < request.parameters.nodes_per_rack < last.size
    return several and all(level.name != RACK for level in levels)


def racks_note(request: ExportRequest, levels: Sequence[MachineLevel]) -> tuple[str, ...]:
    """What must be said where racks are no level."""
    if not one_for_racks(request, levels):
        return ()
    nodes, per_rack = levels[-1].size, request.parameters.nodes_per_rack
    return (
        f"{nodes} nodes are no whole racks of {per_rack}: racks and the system are one level here, with "
        "messages as slow as between racks",
    )


def require_measured(target: str, reference: Reference, levels: Sequence[MachineLevel]) -> None:
    """Raise MissingParameter for the first level of which the library has no law at all."""
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


def by_operation(points: Sequence[ExportPoint]) -> Iterator[tuple[str, list[int]]]:
    """Each operation, and where its points are."""
    for operation in dict.fromkeys(point.operation for point in points):
        yield operation, [k for k, point in enumerate(points) if point.operation == operation]


def held(
    reference: Reference, points: Sequence[ExportPoint], levels: Sequence[MachineLevel], at: int
) -> list[str]:
    """For which sizes and ranks a level holds, a line for each operation."""
    lines = []
    for operation, places in by_operation(points):
        mine = [points[k] for k in places]
        low, high = (bytes_words(end(point.nbytes for point in mine)) for end in (min, max))
        ranks = ranks_in_words(sorted({point.ranks for point in mine}))
        text = f"{operation} of {low} to {high} on {ranks} ranks ({levels[at].name})"
        if any(point.basis == EXTRAPOLATED for point in mine):
            text += f" (extrapolated: {_reach(reference, operation, strided(levels, at + 1))})"
        lines.append(text)
    return lines


def _reach(reference: Reference, operation: str, size: int) -> str:
    """For what an operation was measured on the level that `size` neighbours cross."""
    parameters = reference.parameters
    names = Levels.of(parameters).names(GroupLayout(size))
    ranks: set[int] = set()
    lows, highs = [], []
    for fit in reference.fits:
        if fit.operation == operation and fit.level in names:
            ranks.add(fit.ranks)
            lows.append(fit.range_nbytes[0])
            highs.append(fit.range_nbytes[1])
    for law in parameters.structural:
        if (law.library, law.operation) == (reference.library, operation) and law.level in names:
            ranks |= set(law.ranks)
            lows.append(round(law.range_nbytes[0]))
            highs.append(round(law.range_nbytes[1]))
    if not ranks:
        return "not measured there"
    return (
        f"measured to {bytes_words(max(highs))}, from {bytes_words(min(lows))}, on "
        f"{ranks_in_words(sorted(ranks))} ranks"
    )


def left_out(reference: Reference, used: Sequence[str], loops: Sequence[str] = ()) -> list[str]:
    """What of any parameters neither ASTRA-sim nor Calculon is given, in the reader's words.

    `used` are the operations that are, `loops` the passes over tensors.
    """
    parameters, found = reference.parameters, [*other_times(reference, used)]
    if any(len(fit.pieces) > 1 for fit in reference.fits if fit.operation in used):
        found.append("bends (pieces) of the network's laws")
    if any(law.library == reference.library for law in parameters.contention):
        found.append(SECTIONS["contention"])
    if passes := sorted({loop.operation for loop in parameters.tensor_loops} - set(loops)):
        found.append(f"times of {', '.join(passes)} over lists of tensors")
    rest = ("work", "composition", "memory", "overlap", "partitions")
    return [*found, *other_sections(parameters, *rest)]
