"""OSU micro-benchmarks, MPI and NCCL, 3.x to 7.x: collectives and point-to-point.

A table is its title, perhaps `# Datatype`, a header and rows. One number is all that most rows have, so
what can be checked of it is: its decimals, the series of the sizes, minimum <= average <= maximum,
MB/s against messages/s.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from microbench.importers.grid import (
    Grid,
    Mask,
    Shape,
    cut_short,
    out_of_order,
    out_of_series,
    refuse,
    whole_bytes,
)
from microbench.importers.osu_titles import (
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
from microbench.importers.reading import Faults, Log, Numbers, within
from microbench.importers.said import (
    Flags,
    Said,
    choose,
    file_name,
    launch_line,
    nodes_of_pair,
    remark,
)
from microbench.importers.table import Imported

NAME = "osu"
DESCRIPTION = "OSU micro-benchmarks"

HEADER = re.compile(r"^[\s#]*(?:Size\b|(?:Avg )?Latency ?\(us\)|Overall ?\(us\))")
PAIRS = re.compile(r"\[ *pairs: *(\d{1,7}) *\]")
DATATYPE = re.compile(r"Datatype: *(?:MPI_)?(\w+)")
VARIED = re.compile(r"\[ *window sizes?: *(?:varied|\d+ *,)")
OTHER_TOOL = re.compile(r"\balgbw\b|#bytes\s+#repetitions|nccl-tests version|MPI Benchmarks")


def recognise(log: Log) -> bool:
    """Whether a log has a title of OSU."""
    return "OSU " in log.text and any(TITLE.search(line) for line in _titles(log.text))


def _titles(text: str) -> list[str]:
    return re.findall(r"^.*OSU (?:MPI|NCCL|RCCL|xCCL|OpenSHMEM|UPC).*$", text, re.MULTILINE)


@dataclass(frozen=True)
class Head:
    """What stands above the rows of a run; runs with the same are read as one table.

    `mixed`: another title came before any row of it, so that two runs may write at once; then it is
    the line of the title, and the run stands for itself.
    """

    what: str
    library: str
    device: str
    launched: Said
    mixed: int = 0
    dtype: str = ""
    pairs: int = 0
    columns: tuple[str, ...] = ()


def read(log: Log, flags: Flags) -> Imported:
    """All tables of a log."""
    return _Reader(log, flags).read()


class _Reader:
    """One pass over the lines, then one over the tables."""

    def __init__(self, log: Log, flags: Flags) -> None:
        self.log, self.flags = log, flags
        self.result = Imported(NAME)
        self.faults = self.result.faults
        self.head: Head | None = None
        self.line = self.rows = 0  # where the run begins, and its rows so far
        self.grid: Grid | None = None  # None before its header
        self.grids: dict[Head, tuple[int, Grid]] = {}
        self.launched = Said()

    def read(self) -> Imported:
        last = self.log.length if self.log.cut else 0
        for number, line in enumerate(self.log.lines(), 1):
            parts = line.split()
            if not parts:
                continue
            grid = self.grid
            if grid is not None and len(parts) == grid.width and parts[0][0].isdigit():
                grid.add(number, parts)
                self.rows += 1
                if number == last:
                    self._last_row(grid)
            else:
                self._words(number, line, parts)
        self._close()
        for head, (number, grid) in self.grids.items():
            self._import(head, number, grid)
        return self.result

    def _last_row(self, grid: Grid) -> None:
        """A file that ends inside a line: its row stays if nothing of its last number is lost.

        Decimals tell that later; a whole number must be the one of the row before.
        """
        if not grid.pending:
            return
        token = grid.tokens[-1]
        before = grid.tokens[-1 - grid.width] if len(grid.pending) > 1 else ""
        if "." not in token and token != before:
            self.faults.add(grid.pending.pop(), "the row is cut short")
            grid.runs.pop()
            del grid.tokens[-grid.width :]

    def _words(self, number: int, line: str, parts: list[str]) -> None:
        title = title_of(line) if "OSU " in line else None
        if title is not None:
            self._title(number, title)
        elif OTHER_TOOL.search(line):
            self._close()
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
        empty = self.head is not None and not self.rows
        self._close()
        what, library, device, version = title
        self.result.tool_version = version or self.result.tool_version
        self.head = Head(what, library, device, self.launched, number if empty else 0)
        self.line, self.rows = number, 0

    def _again(self, number: int) -> None:
        """A second header under one title: the next data type (7.x, -T)."""
        if self.rows and self.head is not None:
            self.grid, self.line, self.rows = None, number, 0

    def _header(self, number: int, line: str) -> None:
        self._again(number)
        assert self.head is not None
        columns = columns_of(line)
        self.head = replace(self.head, columns=columns)
        words = frozenset(index for index, name in enumerate(columns) if name == "validation")
        if self.head not in self.grids:
            self.grids[self.head] = (self.line, Grid(len(columns), self.faults, words))
        self.grid = self.grids[self.head][1]
        self.grid.run = self.line

    def _close(self) -> None:
        if self.head is not None and not self.rows:
            self.faults.add(self.line, "the run has no rows")
        self.head = self.grid = None

    def _import(self, head: Head, line: int, grid: Grid) -> None:
        """Check the rows of a table and keep the good ones."""
        lines, runs, values, halves = grid.whole()
        if not len(lines):
            return
        faults, count = self.faults, len(lines)
        shape = _shape(head, line, self.log.name, self.flags, self.result.notes)
        if not isinstance(shape, str) and head.mixed and len(np.unique(values[:, 0])) < count:
            shape = "rows of two runs are mixed, and which is whose is not said"
        if isinstance(shape, str):
            for run in np.unique(runs):
                faults.add(int(run), shape)
            return
        columns = {
            name: (values[:, index], halves[:, index]) for index, name in enumerate(head.columns)
        }
        good = refuse(lines, np.ones(count, dtype=bool), cut_short(halves),
                      "a number has other decimals than its column", faults)  # fmt: skip
        sizes = columns["size"][0] if "size" in columns else np.zeros(count)
        good = refuse(lines, good, ~whole_bytes(sizes), "the size is no number of bytes", faults)
        if "size" in columns:
            text = "the size is not in the series of this table"
            good = refuse(lines, good, out_of_series(np.where(good, sizes, 0)), text, faults)
            text = "the size is not larger than the one before"
            good = refuse(lines, good, out_of_order(sizes, runs, good), text, faults)
        if "validation" in columns:
            good = refuse(lines, good, columns["validation"][0] == 0, "wrong results", faults)
        timed = _seconds(shape, sizes, columns, lines, good, faults)
        if timed is None:
            faults.add(line, "its columns are not ones that are known")
            return
        good, seconds, skew = timed
        empty = (sizes == 0) & (shape.base not in SENT_WHEN_EMPTY)
        if (good & empty).any():
            remark(self.result.notes, "rows of size 0 are left out: nothing is sent")
        calls = columns["iterations"][0] if "iterations" in columns else np.ones(count)
        keep = good & ~empty
        block = shape.block(runs[keep], sizes[keep], seconds[keep], skew[keep], calls[keep])
        self.result.blocks += [block] if block is not None else []


def _seconds(
    shape: Shape,
    sizes: Numbers,
    columns: dict[str, tuple[Numbers, Numbers]],
    lines: np.ndarray,
    good: Mask,
    faults: Faults,
) -> tuple[Mask, Numbers, Numbers] | None:
    """Good rows, seconds and skew: from a latency, a bandwidth, or a message rate."""
    skew = np.full(len(sizes), np.nan)
    name = next(
        (n for n in ("pure comm.(us)", "avg latency(us)", "latency(us)") if n in columns), ""
    )
    if name:
        value, half = columns[name]
        prefix = "comm." if name == "pure comm.(us)" else "latency"
        low, high = f"min {prefix}(us)", f"max {prefix}(us)"
        if low in columns and high in columns:
            least, most = columns[low][0], columns[high][0]
            bad = ~within(value, least - half, most + half, half)
            text = "the average is not between minimum and maximum"
            good = refuse(lines, good, bad, text, faults)
            skew = (most - least) * 1e-6
        seconds = value * 1e-6
    elif "mb/s" in columns or "bandwidth(mb/s)" in columns:
        value, half = columns.get("mb/s") or columns["bandwidth(mb/s)"]
        rate = columns.get("messages/s")
        good, seconds = stream_seconds(shape, sizes, (value, half), rate, lines, good, faults)
    else:
        return None
    positive = np.isfinite(seconds) & (seconds > 0)
    good = refuse(lines, good, ~positive, "the time is no positive number", faults)
    return good, seconds, skew


def stream_seconds(
    shape: Shape,
    sizes: Numbers,
    bandwidth: tuple[Numbers, Numbers],
    rate: tuple[Numbers, Numbers] | None,
    lines: np.ndarray,
    good: Mask,
    faults: Faults,
) -> tuple[Mask, Numbers]:
    """Seconds per message of each pair: pairs * nbytes / bandwidth, or pairs / messages per second.

    The two are one number; the one that was printed with more digits is used. Both ways at once
    (bibw), a bandwidth counts both messages of a pair, and the seconds are of the two together.
    """
    both = 2 if shape.operation.startswith("p2p_both") else 1
    value, half = bandwidth[0] * 1e6, bandwidth[1] * 1e6
    with np.errstate(all="ignore"):
        seconds = shape.groups * both * sizes / value
        if rate is not None:
            messages, half_rate = rate
            bad = ~within(
                value, sizes * (messages - half_rate), sizes * (messages + half_rate), half
            )
            text = "bandwidth and messages per second do not agree"
            good = refuse(lines, good, bad, text, faults)
            finer = ~(half / value <= half_rate / messages)
            seconds = np.where(finer, shape.groups * both / messages, seconds)
    return good, seconds


def _shape(head: Head, line: int, file: str, flags: Flags, notes: list[str]) -> Shape | str:
    """Operation, ranks and nodes of a table, or what is missing."""
    if head.library in ("openshmem",) or head.library.startswith("upc"):
        return "a test that is not imported (not of MPI or NCCL)"
    name, base = operation_of(head.what)
    if not name:
        return base
    if flags.operation and flags.operation != name:
        remark(notes, f"the file says {name}; --operation {flags.operation} is not used")
    named, pair = file_name(file), base.startswith("p2p")
    launched, many = head.launched, "multi" in head.what.lower() and "thread" not in base
    ranks = 2 * head.pairs if many else 2 if pair else 0
    if ranks:
        if flags.ranks and flags.ranks != ranks:
            remark(notes, f"the file says {ranks} ranks; --ranks {flags.ranks} is not used")
    else:
        ranks = choose("ranks", 0, flags.ranks, launched.ranks, named.ranks, notes)
    if not ranks:
        return "the ranks are not said: give --ranks"
    if ranks == 1:
        return "one rank alone communicates with nobody"
    groups = max(1, ranks // 2) if pair else 1
    hint = named.nodes or (nodes_of_pair(file) if pair else 0)
    nodes = choose("nodes", 0, flags.nodes, launched.nodes, hint, notes)
    if not nodes:
        remark(notes, "the nodes are not said, taken as one: give --nodes")
    each = 2 if pair else ranks
    library = flags.library or ("mpi" if head.library in ("mpi", "ompi") else "nccl")
    dtype = head.dtype or ("float32" if base in REDUCTIONS else "uint8")
    return Shape(
        name.replace("p2p_pairs", "p2p"), library, head.device, each,
        max(1, min(nodes, each)), groups, min(nodes, each * groups), dtype,
        per_rank=base in PER_RANK and "neighbor" not in name,
        mean=not pair or groups > 1, line=line, base=base,
    )  # fmt: skip
