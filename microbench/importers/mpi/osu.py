"""OSU micro-benchmarks, MPI and NCCL, 3.x to 7.x: collectives and point-to-point.

A table is its title, perhaps `# Datatype`, a header and rows. One number is all that most rows have, so
what can be checked of it is: its decimals, the series of the sizes, minimum <= average <= maximum,
MB/s against messages/s.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from calib.microbench.importers.lines.reading import Log, Numbers
from calib.microbench.importers.mpi.grid import Grid, GridTable, Shape
from calib.microbench.importers.mpi.osu_titles import (
    DTYPES,
    PER_RANK,
    REDUCTIONS,
    SENT_WHEN_EMPTY,
    TITLE,
    columns_of,
    device_of,
    operation_of,
    title_of,
)
from calib.microbench.importers.mpi.reader import (
    OTHER_TOOL,
    TOO_FEW,
    CommonHead,
    GridReader,
    stream_seconds,
)
from calib.microbench.importers.said import (
    Flags,
    choose,
    file_name,
    launch_line,
    nodes_of_pair,
    remark,
)
from calib.microbench.importers.table import Imported

NAME = "osu"
DESCRIPTION = "OSU micro-benchmarks"

HEADER = re.compile(r"^[\s#]*(?:Size\b|(?:Avg )?Latency ?\(us\)|Overall ?\(us\))")
PAIRS = re.compile(r"\[ *pairs: *(\d{1,7}) *\]")
DATATYPE = re.compile(r"Datatype: *(?:MPI_)?(\w+)")
VARIED = re.compile(r"\[ *window sizes?: *(?:varied|\d+ *,)")


def recognise(log: Log) -> bool:
    """Whether a log has a title of OSU."""
    return "OSU " in log.text and any(TITLE.search(line) for line in _titles(log.text))


def _titles(text: str) -> list[str]:
    return re.findall(r"^.*OSU (?:MPI|NCCL|RCCL|xCCL|OpenSHMEM|UPC).*$", text, re.MULTILINE)


@dataclass(frozen=True)
class Head(CommonHead):
    """What stands above the rows of a run; runs with the same are read as one table.

    `mixed`: another title came before any row of it, so that two runs may write at once; then it is
    the line of the title, and the run stands for itself.
    """

    what: str
    library: str
    device: str
    mixed: int = 0
    dtype: str = ""
    pairs: int = 0


def read(log: Log, flags: Flags) -> Imported:
    """All tables of a log."""
    return _Reader(log, flags).read()


class _Reader(GridReader[Head]):
    """OSU's titles, its columns, and what follows from them."""

    tool = NAME
    size, calls = "size", "iterations"
    sent_when_empty = SENT_WHEN_EMPTY
    empty_untimed = False

    def loses_digits(self, grid: Grid, parts: list[str]) -> bool:
        """Of decimals the column tells that later; a whole number must be that of the row before."""
        before = grid.tokens[-1] if grid.tokens else ""
        return "." not in parts[-1] and parts[-1] != before

    def words(self, number: int, line: str, parts: list[str]) -> None:
        title = title_of(line) if "OSU " in line else None
        if title is not None:
            self._title(number, title)
        elif OTHER_TOOL.search(line):
            self.close()
        elif (launched := launch_line(line)) is not None:
            self.launched = launched
        elif self.head is None:
            return
        elif HEADER.search(line):
            self._header(number, line)
        elif VARIED.search(line):
            self.faults.add(number, "a bandwidth for each of several windows (-V) is not imported")
            self.head = self.grid = None
        elif pairs := PAIRS.search(line):
            self.head = replace(self.head, pairs=int(pairs[1]))
        elif dtype := DATATYPE.search(line):
            self._again(number)
            word = DTYPES.get(dtype[1], dtype[1].lower())
            self.head = replace(self.head, dtype=word)
        elif device := device_of(line):
            self.head = replace(self.head, device=device)
        elif parts[0].isdecimal() and parts[0].isascii():
            self.faults.add(number, "no row of this table: it has other columns")

    def _title(self, number: int, title: tuple[str, str, str, str]) -> None:
        what, library, device, version = title
        self.result.tool_version = version or self.result.tool_version
        mixed = number if self.head is not None and not self.rows else 0
        self.open(number, Head(what, library, device, mixed, launched=self.launched))

    def _again(self, number: int) -> None:
        """A second header under one title: the next data type (7.x, -T)."""
        if self.rows and self.head is not None:
            self.grid, self.line, self.rows = None, number, 0

    def _header(self, number: int, line: str) -> None:
        self._again(number)
        columns = columns_of(line)
        words = frozenset(index for index, name in enumerate(columns) if name == "validation")
        self.begin(columns, words)

    def seconds(self, shape: Shape, table: GridTable) -> tuple[Numbers, Numbers] | None:
        """From a latency, a bandwidth, or a message rate."""
        columns = table.columns
        if "validation" in columns:
            table.refuse(columns["validation"][0] == 0, "wrong results")
        names = ("pure comm.(us)", "avg latency(us)", "latency(us)")
        name = next((name for name in names if name in columns), "")
        if name:
            of = "comm." if name == "pure comm.(us)" else "latency"
            _, _, skew = table.spread(name, f"min {of}(us)", f"max {of}(us)")
            return columns[name][0] * 1e-6, skew
        bandwidth = columns.get("mb/s") or columns.get("bandwidth(mb/s)")
        if bandwidth is None:
            return None
        return stream_seconds(shape, table, bandwidth, columns.get("messages/s"))

    def shape(self, head: Head, line: int, table: GridTable) -> Shape | str:
        """Operation, ranks and nodes of a table, or what is missing."""
        if head.library in ("openshmem",) or head.library.startswith("upc"):
            return "a test that is not imported (not of MPI or NCCL)"
        flags, notes, file = self.flags, self.result.notes, self.log.name
        name, base = operation_of(head.what)
        if not name:
            return base
        if flags.operation and flags.operation != name:
            remark(notes, f"the file says {name}; --operation {flags.operation} is not used")
        named, pair = file_name(file), base.startswith("p2p")
        launched, many = head.launched, "multi" in head.what.lower() and "thread" not in base
        ranks = 2 * head.pairs if many else 2 if pair else 0
        ranks = choose("ranks", ranks, flags.ranks, launched.ranks, named.ranks, notes)
        if ranks in TOO_FEW:
            return TOO_FEW[ranks]
        groups = max(1, ranks // 2) if pair else 1
        hint = named.nodes or (nodes_of_pair(file) if pair else 0)
        nodes = choose("nodes", 0, flags.nodes, launched.nodes, hint, notes)
        if not nodes:
            remark(notes, "the nodes are not said, taken as one: give --nodes")
        if head.mixed and len(np.unique(table.values[:, 0])) < len(table.lines):
            return "rows of two runs are mixed, and which is whose is not said"
        each = 2 if pair else ranks
        library = flags.library or ("mpi" if head.library in ("mpi", "ompi") else "nccl")
        dtype = head.dtype or ("float32" if base in REDUCTIONS else "uint8")
        return Shape(
            name.replace("p2p_pairs", "p2p"),
            library,
            head.device,
            each,
            max(1, min(nodes, each)),
            groups,
            min(nodes, each * groups),
            dtype,
            per_rank=base in PER_RANK and "neighbor" not in name,
            mean=not pair or groups > 1,
            line=line,
            base=base,
        )
