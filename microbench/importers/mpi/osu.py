"""OSU micro-benchmarks, MPI and NCCL, 3.x to 7.x: collectives and point-to-point.

A table is its title, perhaps `# Datatype`, a header and rows. One number is all that most rows have, so
what can be checked of it is: its decimals, the series of the sizes, minimum <= average <= maximum,
MB/s against messages/s.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from calib.microbench.importers.lines.reading import Log
from calib.microbench.importers.mpi.grid import (
    DTYPES,
    OTHER_TOOL,
    REDUCTIONS,
    CommonHead,
    GridColumn,
    GridReader,
    GridRows,
    GridTable,
    TableShape,
    stream_seconds,
)
from calib.microbench.importers.said import (
    TOO_FEW,
    Flags,
    choose,
    choose_nodes,
    file_name,
    launch_line,
    nodes_of_pair,
    overruled,
)
from calib.microbench.importers.table import Imported

NAME = "osu"
DESCRIPTION = "OSU micro-benchmarks"

TITLE = re.compile(
    r"OSU (?P<library>MPI|NCCL|RCCL|MSCCLPP|OpenSHMEM|UPC\+*|OMPI|xCCL)(?P<side>_\w+)?"
    r"(?P<device>-[A-Z]+)?(?P<what>[\w ()/,.-]*?)(?:\s+v(?P<version>\d[\w.]*))?\s*$"
)
COLUMN = re.compile(
    r"(?:(?:[A-Z][\w.]*|P\d[\d.]*) ){0,2}(?:[A-Z][\w.]*|P\d[\d.]*) ?\((?:us|MB/s|%)\)"
    r"|MPI_\w+\(us\)|Iterations|Validation|MB/s|Messages/s|Transmit Size"
)
HEADER = re.compile(r"^[\s#]*(?:Size\b|(?:Avg )?Latency ?\(us\)|Overall ?\(us\))")
PAIRS = re.compile(r"\[ *pairs: *(\d{1,7}) *\]")
DATATYPE = re.compile(r"Datatype: *(?:MPI_)?(\w+)")
VARIED = re.compile(r"\[ *window sizes?: *(?:varied|\d+ *,)")
# words of a title -> operation; the first that fits. Titles of 5.x to 7.x, spelled alike
COLLECTIVES = (
    ("all-to-allv|alltoallv", "alltoallv"),
    ("all-to-allw|alltoallw", "alltoallw"),
    ("all-to-all|alltoall", "all_to_all"),
    ("allgatherv", "allgatherv"),
    ("allgather", "allgather"),
    ("allreduce", "allreduce"),
    ("barrier", "barrier"),
    ("broadcast|bcast", "broadcast"),
    ("gatherv", "gatherv"),
    ("gather", "gather"),
    ("reduce[_-]scatter[_-]block", "reduce_scatter_block"),
    ("reduce[_-]scatter", "reduce_scatter"),
    ("reduce", "reduce"),
    ("scatterv", "scatterv"),
    ("scatter", "scatter"),
)
POINTS = (
    ("multiple bandwidth", "p2p_stream"),
    ("bi-?directional bandwidth", "p2p_both_stream"),
    ("bandwidth", "p2p_stream"),
    ("multi-threaded latency", "p2p_threads"),
    ("multi-process latency", "p2p_processes"),
    ("multi[ -]latency", "p2p_pairs"),
    ("latency", "p2p"),
)
BUFFERS = re.compile(r"Buffer on \w+ \((\w+)\)")
REFUSED = re.compile("congestion|partitioned|hello|init|one-sided|atomic|put|get|accumulate", re.I)


@lru_cache(maxsize=256)
def title_of(line: str) -> tuple[str, str, str, str] | None:
    """What a title says: the test, the library, the device of the buffers and the version."""
    title = TITLE.search(line)
    if title is None:
        return None
    library = title["library"].lower()
    device = "cuda" if title["device"] or library not in ("mpi", "ompi") else "cpu"
    what = f"{title['side'] or ''} {title['what']}".strip()
    return what, library, device, title["version"] or ""


def device_of(line: str) -> str:
    """Where a line says that the buffers are: cpu if all on the host, cuda if one is not; or ""."""
    found = BUFFERS.findall(line)
    if not found:
        return ""
    return "cpu" if set(found) == {"H"} else "cuda"


@lru_cache(maxsize=256)
def columns_of(line: str) -> tuple[str, ...]:
    """The names of a header's columns, in small letters: size, avg latency(us), iterations."""
    columns = [" ".join(name.split()).lower() for name in COLUMN.findall(line)]
    first = ["size"] if "Size" in line else []
    return tuple(first + [name.replace(" (", "(") for name in columns])


def operation_of(what: str) -> tuple[str, str]:
    """Operation and its base from the words of a title, or "" and why not.

    Non-blocking is i<operation>, on neighbours neighbor_<operation>, and persistent
    <operation>_persistent: other calls, not to be fitted as the plain one.
    """
    words = what.lower()
    if what.startswith("_") or REFUSED.search(re.sub(r"latency|bandwidth", "", words)):
        return "", "a test that is not imported (one-sided, start-up, partitioned or congestion)"
    base = next((name for text, name in COLLECTIVES if re.search(text, words)), "")
    if base:
        name = f"neighbor_{base}" if "neighbo" in words else base
        name = f"i{name}" if re.search(r"non-?blocking", words) else name
    else:
        base = name = next((name for text, name in POINTS if re.search(text, words)), "")
    if not base:
        return "", "an unknown test"
    return (f"{name}_persistent" if "persistent" in words else name), base


def recognise(log: Log) -> bool:
    """Whether a log has a title of OSU."""
    return "OSU " in log.text and any(TITLE.search(line) for line in _titles(log.text))


def _titles(text: str) -> list[str]:
    return re.findall(r"^.*OSU (?:MPI|NCCL|RCCL|xCCL|OpenSHMEM|UPC).*$", text, re.MULTILINE)


@dataclass(frozen=True)
class OsuHead(CommonHead):
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
    return _OsuReader(log, flags).read()


class _OsuReader(GridReader[OsuHead]):
    """OSU's titles, its columns, and what follows from them."""

    tool = NAME

    def loses_digits(self, grid: GridRows, parts: list[str]) -> bool:
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
            self.faults.add(number, "not a row of this table: other columns")

    def _title(self, number: int, title: tuple[str, str, str, str]) -> None:
        what, library, device, version = title
        self.result.tool_version = version or self.result.tool_version
        mixed = number if self.head is not None and not self.rows else 0
        self.open(number, OsuHead(what, library, device, mixed, launched=self.launched))

    def _again(self, number: int) -> None:
        """A second header under one title: the next data type (7.x, -T)."""
        if self.rows and self.head is not None:
            self.grid, self.line, self.rows = None, number, 0

    def _header(self, number: int, line: str) -> None:
        self._again(number)
        columns = columns_of(line)
        words = frozenset(index for index, name in enumerate(columns) if name == "validation")
        self.begin(columns, words)

    def seconds(self, shape: TableShape, table: GridTable) -> GridColumn | None:
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

    def shape(self, head: OsuHead, table: GridTable) -> TableShape | str:
        """Operation, ranks and nodes of a table, or what is missing."""
        if head.library in ("openshmem",) or head.library.startswith("upc"):
            return "a test that is not imported (not of MPI or NCCL)"
        flags, notes, file = self.flags, self.result.notes, self.log.name
        name, base = operation_of(head.what)
        if not name:
            return base
        overruled(name, flags.operation, notes)
        named, pair = file_name(file), base.startswith("p2p")
        launched, many = head.launched, "multi" in head.what.lower() and "thread" not in base
        ranks = 2 * head.pairs if many else 2 if pair else 0
        ranks = choose("ranks", ranks or launched.ranks, flags.ranks, named.ranks, notes)
        if ranks in TOO_FEW:
            return TOO_FEW[ranks]
        hint = named.nodes or (nodes_of_pair(file) if pair else 0)
        nodes = choose_nodes(launched.nodes, flags.nodes, hint, notes)
        if head.mixed and len(np.unique(table.values[:, 0])) < len(table.lines):
            return "rows of two runs are mixed, and nothing tells them apart"
        return TableShape(
            operation=name.replace("p2p_pairs", "p2p"),
            base=base,
            library=flags.library or ("mpi" if head.library in ("mpi", "ompi") else "nccl"),
            device=head.device,
            dtype=head.dtype or ("float32" if base in REDUCTIONS else "uint8"),
            ranks=2 if pair else ranks,
            groups=ranks // 2 if pair else 1,
            nodes=nodes,
        )
