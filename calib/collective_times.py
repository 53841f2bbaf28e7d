"""Collectives that are asked for: many sizes on many layouts, and measured times of logs beside."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from calib.fitting.parameters.file import Parameters
from calib.foundation.errors import FileError, InputError, MissingParameter
from calib.oracle.costs.asked import Collectives
from calib.oracle.costs.collective_laws import GroupShape
from calib.oracle.costs.senders import base_name
from calib.reports.scoring.collectives import CollectiveRow, place_words

ALL = "all"
SIZES = "1KiB:1GiB"  # where none are asked for
SizeRanges = Sequence[tuple[int, int]]


def expected_times(
    asked: Collectives,
    operations: Sequence[str],
    shapes: Sequence[GroupShape],
    sizes: Sequence[int],
) -> list[CollectiveRow]:
    """A row of each operation (those that were measured for `all`), layout and size.

    Raises InputError for an unknown operation, MissingParameter where nothing is like one.
    """
    names = asked.measured if ALL in operations else operations
    if not names:
        raise InputError("the parameters hold no collective")
    try:
        rows = [
            CollectiveRow(asked.time(name, nbytes, shape))
            for name in dict.fromkeys(names)
            for shape in shapes
            for nbytes in sizes
        ]
    except MissingParameter as error:
        raise MissingParameter(f"{error}{_elsewhere(asked, names)}") from error
    return list(dict.fromkeys(rows))  # a message between two ranks is the same for every p


def _elsewhere(asked: Collectives, operations: Collection[str]) -> str:
    """Which libraries that were not asked have what is missing."""
    mine = {name: asked.sender_of(name)[:2] for name in operations}
    others = sorted(
        {
            f"{fit.operation} of {fit.library} ({fit.device})"
            for fit in asked.parameters.collectives
            if fit.operation in mine and (fit.library, fit.device) != mine[fit.operation]
        }
    )
    return f"; {', '.join(others)} was measured: choose it with --library" if others else ""


def times_beside(
    parameters: Parameters,
    logs: Sequence[Path],
    *,
    operations: Sequence[str] = (),
    ranks: Collection[int] = (),
    nodes: int = 0,
    ranks_per_node: int = 0,
    sizes: SizeRanges = (),
    library: str = "",
    device: str = "",
) -> tuple[list[CollectiveRow], list[str]]:
    """Every median in logs of other tools beside what the parameters expect of it, and notes.

    Layouts, operations and sizes are those of the logs. What is given completes a log that does not say
    it, and of logs that do only what agrees with it is taken. The library is the log's where the
    parameters have it. Raises FileError where a log gives no row, InputError where nothing is left.
    """
    # late: numpy and pyarrow, which only logs need
    from calib.fitting.sections.collectives import measured_points
    from calib.importing.logs import read_all
    from calib.microbench.importers.said import Flags
    from calib.microbench.importers.table import rows_of

    wanted = [] if ALL in operations else operations
    flags = Flags(
        operation=wanted[0] if len(wanted) == 1 else "",
        ranks=next(iter(ranks)) if len(ranks) == 1 else 0,
        nodes=nodes,
    )
    found = read_all(list(logs), flags, keep_going=False)
    laws = measured_points(rows_of([imported for _, imported in found]).usable)
    sources = {(fit.library, fit.device) for fit in parameters.collectives}
    rows, notes, others = [], list[str](), list[str]()
    asked: dict[tuple[str, str], Collectives] = {}
    for key, points in laws.items():
        shape = GroupShape(key.ranks, key.nodes, key.ranks_per_node)
        place = place_words(key.operation, shape)
        agrees = (
            (not wanted or {key.operation, base_name(key.operation)} & {*wanted})
            and (not ranks or key.ranks in ranks)
            and nodes in (0, key.nodes)
            and ranks_per_node in (0, key.ranks_per_node)
        )
        if not agrees:
            others.append(place)
            continue
        source = (library or key.library, device or key.device)
        if not library and source not in sources:
            notes.append(
                f"the parameters hold nothing of {source[0]} on {source[1]}, as the logs do"
            )
            source = ("", device)
        of = asked.setdefault(source, Collectives(parameters, *source))
        try:
            # as the logs say, unless that is a layout that cannot be asked for
            of.shape(*shape)
            rows += [
                CollectiveRow(of.time(key.operation, point.nbytes, shape), point.seconds)
                for point in points
                if not sizes or any(low <= point.nbytes <= high for low, high in sizes)
            ]
        except InputError as error:
            notes.append(f"left out: {place}: {error}")
    if not rows:
        why = f": they hold {', '.join(others)}" if others else f": {notes[0]}" if notes else ""
        raise FileError(f"the logs have no time that was asked for{why}")
    return rows, list(dict.fromkeys(notes))
