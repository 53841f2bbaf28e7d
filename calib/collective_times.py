"""Collectives that are asked for: many sizes on many layouts, and measured times of logs beside."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from calib.fitting.parameters.algorithms import GroupShape
from calib.fitting.parameters.collectives import CollectivePoint
from calib.fitting.parameters.file import Parameters
from calib.foundation.errors import FileError, InputError, MissingParameter
from calib.oracle.costs.asked import Collectives
from calib.oracle.costs.senders import base_name
from calib.reports.scoring.collectives import CollectiveRow, place_words

ALL = "all"
SIZES = "1KiB:1GiB"  # where none are asked for
# of a library the one whose calls are the same, but for torch.distributed around them
KIN = {"mpi": "torch_mpi", "torch_mpi": "mpi", "nccl": "torch_nccl", "torch_nccl": "nccl"}
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


@dataclass(frozen=True)
class Choice:
    """What is wanted of logs; what is empty or 0 is not asked for.

    An operation, p or number of nodes that is given alone also completes a log that does not say it.
    """

    operations: Sequence[str] = ()
    ranks: Collection[int] = ()
    nodes: int = 0
    ranks_per_node: int = 0
    sizes: SizeRanges = ()
    library: str = ""
    device: str = ""

    @property
    def named(self) -> Sequence[str]:
        """The operations that were asked for by name."""
        return () if ALL in self.operations else self.operations

    def takes(self, operation: str, shape: GroupShape) -> bool:
        """Whether times of an operation in a layout are wanted."""
        return (
            (not self.named or not {operation, base_name(operation)}.isdisjoint(self.named))
            and (not self.ranks or shape.ranks in self.ranks)
            and self.nodes in (0, shape.nodes)
            and self.ranks_per_node in (0, shape.ranks_per_node)
        )

    def takes_size(self, nbytes: int) -> bool:
        """Whether a size is wanted."""
        return not self.sizes or any(low <= nbytes <= high for low, high in self.sizes)


def times_beside(
    parameters: Parameters, logs: Sequence[Path], choice: Choice = Choice()
) -> tuple[list[CollectiveRow], list[str]]:
    """Every median in logs of other tools beside what the parameters expect of it, and notes.

    The library is the log's, or the same under torch.distributed, unless another is asked for. Raises
    FileError where a log gives no row, or no row is left.
    """
    known = Known(parameters)
    rows, notes, others = [], list[str](), list[str]()
    for (operation, library, device, shape), points in _medians(logs, choice).items():
        place = place_words(operation, shape)
        if not choice.takes(operation, shape):
            others.append(place)
            continue
        try:
            of, note = known.of(library, device, choice)
            of.shape(*shape)  # as the log says, if it can be asked for
            rows += [
                CollectiveRow(of.time(operation, point.nbytes, shape), point.seconds)
                for point in points
                if choice.takes_size(point.nbytes)
            ]
            notes += note
        except (InputError, MissingParameter) as error:
            notes.append(f"left out: {place}: {error}")
    if not rows:
        why = notes or [f"they hold {', '.join(others)}" if others else "no size is left"]
        raise FileError(f"the logs have no time that was asked for: {why[0]}")
    return rows, list(dict.fromkeys(notes))


class Known:
    """The collectives of a parameter file, by library and device, each made once."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._sources = {(fit.library, fit.device) for fit in parameters.collectives}
        self._made: dict[tuple[str, str], Collectives] = {}

    def of(self, library: str, device: str, choice: Choice) -> tuple[Collectives, list[str]]:
        """Those to compare a log of this library and device with, and a note where they are others.

        Raises InputError where the parameters hold none.
        """
        if choice.library:
            return self._collectives((choice.library, choice.device)), []
        where = choice.device or device
        for name in (library, KIN.get(library, library)):
            if (name, where) in self._sources:
                others = f"times of {library} are compared with those of {name}"
                return self._collectives((name, where)), [others] * (name != library)
        raise InputError(f"the parameters hold nothing of {library} ({where})")

    def _collectives(self, source: tuple[str, str]) -> Collectives:
        if source not in self._made:
            self._made[source] = Collectives(self._parameters, *source)
        return self._made[source]


def _medians(
    logs: Sequence[Path], choice: Choice
) -> dict[tuple[str, str, str, GroupShape], list[CollectivePoint]]:
    """Operation, library, device and layout -> the medians of its sizes in the logs."""
    # late: numpy and pyarrow, which only logs need
    from calib.fitting.sections.collectives import measured_points
    from calib.importing.logs import read_all
    from calib.microbench.importers.said import Flags
    from calib.microbench.importers.table import rows_of

    flags = Flags(
        operation=choice.named[0] if len(choice.named) == 1 else "",
        ranks=next(iter(choice.ranks)) if len(choice.ranks) == 1 else 0,
        nodes=choice.nodes,
    )
    found = read_all(list(logs), flags, keep_going=False)
    laws = measured_points(rows_of([imported for _, imported in found]).usable)
    return {
        (of.operation, of.library, of.device, GroupShape(of.ranks, of.nodes, of.ranks_per_node)): x
        for of, x in laws.items()
    }
