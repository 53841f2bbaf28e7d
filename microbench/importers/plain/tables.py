"""A plain table of sizes and times: CSV with a header, such as look-up tables of simulators.

Sizes are those of the whole buffer. Nothing is guessed: units stand in the header or are given, and a
table without units, operation or ranks is not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from calib.microbench.importers.lines.reading import Log, cells_of, half_units, within
from calib.microbench.importers.mpi.grid import whole_bytes
from calib.microbench.importers.nccl.operations import DTYPES, KINDS, PROGRAMS, file_operation
from calib.microbench.importers.plain.header import (
    SIZE_UNITS,
    SIZE_WORDS,
    TIME_UNITS,
    TIME_WORDS,
    Header,
    header_of,
)
from calib.microbench.importers.said import (
    TOO_FEW,
    UNSAID,
    Flags,
    choose,
    choose_nodes,
    file_name,
    overruled,
    remark,
)
from calib.microbench.importers.table import Block, Imported, TableVariant

NAME = "table"
DESCRIPTION = "a CSV table with columns of sizes and times"

NUMBER = re.compile(r"[+]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
ROUNDED = 0.005
GPUS = re.compile(r"gpus?(?![a-z])|nccl|rccl")
WHOLE = re.compile(r"[1-9]\d{0,6}", re.ASCII)


@dataclass(frozen=True)
class BlockOf:
    """What rows are of: they make a block."""

    operation: str
    ranks: int
    nodes: int


class PlainRow(NamedTuple):
    """A row; cells of columns that are not there are ""."""

    line: int
    nbytes: float
    time: str
    dtype: str
    algbw: str
    busbw: str
    others: tuple[str, ...]  # cells of unknown columns


def recognise(log: Log) -> bool:
    """Whether the first line that says something is the header of such a table."""
    return header_of(log) is not None


def read(log: Log, flags: Flags) -> Imported:
    """The rows of a table."""
    result, header = Imported(NAME), header_of(log)
    if header is None:
        return result
    reader = _TableReader(log, flags, header, result)
    reason = reader.units()
    if reason:
        result.faults.add(header.line, reason)
        return result
    for of, rows in reader.rows().items():
        reason = reader.add(of, rows)
        if reason:
            result.faults.add(header.line, reason)
    return result


class _TableReader:
    def __init__(self, log: Log, flags: Flags, header: Header, result: Imported) -> None:
        self.log, self.flags, self.header, self.result = log, flags, header, result
        self.faults, self.notes = result.faults, result.notes
        self.size_unit, self.time_unit = 0, 0.0

    def units(self) -> str:
        """Set the units by the header or the flags; returns what is missing, or ""."""
        header, flags = self.header, self.flags
        own_size = SIZE_WORDS.get(header.size_unit, "")
        own_time = TIME_WORDS.get(header.time_unit, "")
        overruled(own_size, flags.size_unit, self.notes)
        overruled(own_time, flags.time_unit, self.notes)
        size, time = own_size or flags.size_unit, own_time or flags.time_unit
        for column, word, unit, what, choices in (
            (header.size, header.size_unit, size, "size", SIZE_UNITS),
            (header.time, header.time_unit, time, "time", TIME_UNITS),
        ):
            if not unit:
                known = "can be 1000 or 1024" if word[1:] in ("B", "b") else "is not given"
                unsaid = UNSAID[f"{what}_unit"]
                return f"{unsaid}, in column {column + 1}, {known}; one of {', '.join(choices)}"
        self.size_unit, self.time_unit = SIZE_UNITS[size], TIME_UNITS[time]
        if header.times > 1:
            remark(
                self.notes, f"column {header.time + 1} is used, of {header.times} columns of times"
            )
        return ""

    def _cells(self) -> Iterator[tuple[int, list[str]]]:
        """Line and cells of what stands below the header."""
        decimals = 0  # of the last cell of the line before
        for number, line in enumerate(self.log.text.split("\n"), 1):
            if number <= self.header.line or not line.strip() or line.lstrip().startswith("#"):
                continue
            cells = cells_of(line, self.header.delimiter)
            last, decimals = decimals, len(cells[-1].partition(".")[2]) if cells else 0
            if len(cells) != self.header.width:
                self.faults.add(number, "not a row: its columns are not those of the header")
            elif number == self.log.cut_line and not 0 < decimals == last:
                self.faults.add(number, "the file ends inside this line: it may be cut short")
            else:
                yield number, cells

    def rows(self) -> dict[BlockOf, list[PlainRow]]:
        """The rows by block; what is not a row is a fault."""
        found: dict[BlockOf, list[PlainRow]] = {}
        for number, cells in self._cells():
            size, time = cells[self.header.size], cells[self.header.time]
            if not NUMBER.fullmatch(size) or not NUMBER.fullmatch(time):
                self.faults.add(number, "not a row: the size or the time is not a number")
                continue
            nbytes = float(size) * self.size_unit
            if not nbytes or not whole_bytes(np.array([nbytes]))[0]:
                self.faults.add(
                    number, "the size is not a whole number of bytes" if nbytes else "size 0"
                )
                continue
            if not 0 < float(time) * self.time_unit < np.inf:
                self.faults.add(number, "the time is not a positive number")
                continue
            of = self._of(cells)
            if isinstance(of, str):
                self.faults.add(number, of)
                continue
            rows = found.setdefault(of, [])
            if self._cell(cells, "wrong") not in ("", "0", "N/A"):
                self.faults.add(number, "wrong results")
                continue
            dtype, algbw, busbw = (self._cell(cells, name) for name in ("type", "algbw", "busbw"))
            others = tuple(cells[index] for index in self.header.unknown)
            rows.append(PlainRow(number, nbytes, time, dtype.lower(), algbw, busbw, others))
        return found

    def _cell(self, cells: list[str], name: str) -> str:
        """The cell of a known column, "" where there is no such column."""
        return cells[self.header.known[name]] if name in self.header.known else ""

    def _of(self, cells: list[str]) -> BlockOf | str:
        """What a row is of, from its own cells; "" and 0 where there is no such column."""
        known, operation = self.header.known, ""
        if "operation" in known:
            word = self._cell(cells, "operation").lower().replace("-", "_")
            operation = PROGRAMS.get(word.removesuffix("_perf"), "")
            if not operation:
                return "its operation is unknown"
        numbers = []
        for name in ("ranks", "nodes"):
            cell = cells[known[name]] if name in known else "0"
            if name in known and not WHOLE.fullmatch(cell):
                return f"its {name} are not a whole number"
            numbers.append(int(cell))
        return BlockOf(operation, *numbers)

    def add(self, of: BlockOf, rows: list[PlainRow]) -> str:
        """Check rows of one kind and keep them as a block; returns why that cannot be, or ""."""
        whole = self._whole(of)
        if isinstance(whole, str):
            return whole
        reason = self._mixed(rows)
        if reason or not rows:
            return reason
        sizes = np.array([row.nbytes for row in rows]).astype(np.int64)
        seconds = np.array([float(row.time) for row in rows]) * self.time_unit
        half = half_units([row.time for row in rows])[0] * self.time_unit
        keep = np.ones(len(sizes), dtype=bool)
        for name, factor in (("algbw", 1.0), ("busbw", KINDS[whole.operation].factor(whole.ranks))):
            if name in self.header.known:
                keep &= self._agree(rows, name, sizes * factor, seconds, half)
        if keep.any():
            self._add(whole, rows, keep, sizes, seconds)
        return ""

    def _agree(self, rows: list[PlainRow], name: str, sizes: Any, seconds: Any, half: Any) -> Any:
        """Rows whose bandwidth in GB/s is what it should be by size and time; others are faults."""
        cells = [getattr(row, name) for row in rows]
        numbers = [bool(NUMBER.fullmatch(cell)) for cell in cells]
        tokens = [cell if ok else "0" for cell, ok in zip(cells, numbers, strict=True)]
        found = np.array([float(token) for token in tokens]) * 1e9
        exact = half_units(tokens)[0] * 1e9 + ROUNDED * found  # 61180 ns may have been 61.18 us
        with np.errstate(all="ignore"):
            low = sizes / (seconds + half)
            high = np.where(seconds > half, sizes / (seconds - half), np.inf)
        good = within(found, low, high, exact) & np.array(numbers)
        of = " of this operation and ranks" if name == "busbw" else ""
        for index in np.flatnonzero(~good):
            self.faults.add(rows[index].line, f"its {name} is not what size and time make{of}")
        return good

    def _whole(self, of: BlockOf) -> BlockOf | str:
        """Operation, ranks and nodes: the row's words, then the flags, then the file's name."""
        flags, notes, name = self.flags, self.notes, self.log.name
        operation = of.operation or flags.operation
        overruled(of.operation, flags.operation, notes)
        if not operation and (operation := file_operation(name)):
            remark(notes, f"operation {operation}: from the file's name")
        if not operation:
            return UNSAID["operation"]
        named = file_name(name)
        ranks = choose("ranks", of.ranks, flags.ranks, named.ranks, notes)
        if ranks < 2:
            return TOO_FEW[ranks]
        nodes = choose_nodes(of.nodes, flags.nodes, named.nodes, notes)
        if KINDS[operation].per_rank:
            remark(notes, "sizes are taken as the parts of all ranks together")
        return BlockOf(operation, ranks, min(nodes, ranks))

    def _mixed(self, rows: list[PlainRow]) -> str:
        """Why rows of one size cannot be times of one thing, where a column tells them apart."""
        seen: dict[float, tuple[str, ...]] = {}
        for row in rows:
            before = seen.setdefault(row.nbytes, row.others)
            for index, old, new in zip(self.header.unknown, before, row.others, strict=True):
                result = "." in old + new and NUMBER.fullmatch(old) and NUMBER.fullmatch(new)
                if old != new and not result:
                    return (
                        f"rows of one size differ in column {index + 1}, which is not known: "
                        "import the rows of each of its values by themselves"
                    )
        return ""

    def _add(self, of: BlockOf, rows: list[PlainRow], keep: Any, sizes: Any, seconds: Any) -> None:
        """A block of the rows that are good."""
        usual = "float32" if KINDS[of.operation].reduces else "uint8"
        types = [DTYPES.get(row.dtype, (row.dtype or usual, 0))[0] for row in rows]
        variants = sorted(set(types))
        chosen = np.flatnonzero(keep)
        device = self._device()
        default = "nccl" if device == "cuda" else "mpi"
        count = len(chosen)
        self.result.blocks.append(
            Block(
                of.operation,
                self.flags.library or default,
                device,
                of.ranks,
                of.nodes,
                -(-of.ranks // of.nodes),
                1,
                [TableVariant(name) for name in variants],
                np.full(count, self.header.line, dtype=np.int64),
                np.array([variants.index(types[index]) for index in chosen], dtype=np.int64),
                sizes[chosen],
                seconds[chosen],
                np.full(count, np.nan),
                np.ones(count, dtype=np.int64),
                line=self.header.line,
            )
        )

    def _device(self) -> str:
        """cuda where a word of GPUs or of NCCL is in the flags, the name or the header."""
        flags = self.flags
        header_line = self.log.text.split("\n", self.header.line)[self.header.line - 1]
        said = bool(
            flags.device_name
            or "busbw" in self.header.known
            or flags.library.lower() in ("nccl", "rccl")
            or GPUS.search(f"{self.log.name} {header_line}".lower())
        )
        if flags.library.lower() == "mpi" and not flags.device_name:
            return "cpu"
        words = "NCCL on GPUs" if said else "MPI on CPUs"
        remark(self.notes, f"taken as of {words}, as no library is given")
        return "cuda" if said else "cpu"
