"""Shared by the readers of OSU and IMB: one pass over the lines, rows to blocks.

Both print a head, a header and rows of numbers. They differ in the words of the head, in the names of
the columns, and in which column is a time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, TypeVar

import numpy as np

from calib.microbench.importers.lines.reading import Log, Numbers, within
from calib.microbench.importers.mpi.grid import GridColumn, GridRows, GridTable, TableShape
from calib.microbench.importers.said import NOT_SAID, Flags, SaidPlaces, remark
from calib.microbench.importers.table import Imported

OTHER_TOOL = re.compile(r"\balgbw\b|#bytes\s+#repetitions|nccl-tests version|MPI Benchmarks")


@dataclass(frozen=True, kw_only=True)
class CommonHead:
    """What stands above the rows of a run; runs with the same are read as one table."""

    launched: SaidPlaces = NOT_SAID
    columns: tuple[str, ...] = ()


HeadT = TypeVar("HeadT", bound=CommonHead)


class GridReader(Generic[HeadT]):
    """One pass over the lines, then one over the tables."""

    tool: ClassVar[str]
    size: ClassVar[str]  # columns
    calls: ClassVar[str]
    sent_when_empty: ClassVar[set[str]]  # operations that send something at size 0
    empty_untimed: ClassVar[bool]  # rows that send nothing may have no time

    def __init__(self, log: Log, flags: Flags) -> None:
        self.log, self.flags = log, flags
        self.result = Imported(self.tool)
        self.faults = self.result.faults
        self.head: HeadT | None = None
        self.line = self.rows = 0  # where the run begins, and its rows so far
        self.grid: GridRows | None = None  # None before its header
        self.grids: dict[HeadT, tuple[int, GridRows]] = {}
        self.launched = SaidPlaces()

    def read(self) -> Imported:
        """All tables of the log."""
        cut = self.log.cut_line
        for number, line in enumerate(self.log.lines(), 1):
            parts = line.split()
            grid = self.grid
            if not parts:
                continue
            if grid is not None and len(parts) == grid.width and parts[0][0].isdigit():
                self.rows += 1
                if number == cut and self.loses_digits(grid, parts):
                    self.faults.add(number, "the row is cut short")
                else:
                    grid.add(number, parts)
            else:
                self.words(number, line, parts)
        self.close()
        for head, (number, grid) in self.grids.items():
            self._import(head, number, grid)
        return self.result

    def open(self, number: int, head: HeadT) -> None:
        """A run begins."""
        self.close()
        self.head, self.line, self.rows = head, number, 0

    def begin(self, columns: tuple[str, ...], words: frozenset[int] = frozenset()) -> None:
        """The header of the run; `words` are the columns that are no numbers."""
        assert self.head is not None
        self.head = replace(self.head, columns=columns)
        if self.head not in self.grids:
            self.grids[self.head] = (self.line, GridRows(len(columns), self.faults, words))
        self.grid = self.grids[self.head][1]
        self.grid.run = self.line

    def close(self) -> None:
        """The run ends."""
        if self.head is not None and not self.rows:
            self.faults.add(self.line, "the run has no rows")
        self.head = self.grid = None

    def words(self, number: int, line: str, parts: list[str]) -> None:
        """What a line says that is no row."""
        raise NotImplementedError

    def loses_digits(self, grid: GridRows, parts: list[str]) -> bool:
        """Whether a row may have lost digits, where the file ends inside its line."""
        raise NotImplementedError

    def shape(self, head: HeadT, line: int, table: GridTable) -> TableShape | str:
        """Operation, ranks and nodes of a table, or what is missing."""
        raise NotImplementedError

    def seconds(self, shape: TableShape, table: GridTable) -> tuple[Numbers, Numbers] | None:
        """Seconds and skew, refusing what the tool's own columns say is wrong; None: no known ones."""
        raise NotImplementedError

    def _import(self, head: HeadT, line: int, grid: GridRows) -> None:
        """Check the rows of a table and keep the good ones."""
        table = GridTable(grid, head.columns, self.size)
        if not len(table.lines):
            return
        shape = self.shape(head, line, table)
        if isinstance(shape, str):
            for run in np.unique(table.runs):
                self.faults.add(int(run), shape)
            return
        table.check_sizes()
        timed = self.seconds(shape, table)
        if timed is None:
            self.faults.add(line, "its columns are not ones that are known")
            return
        seconds, skew = timed
        empty = (table.sizes == 0) & (shape.base not in self.sent_when_empty)
        untimed = ~(np.isfinite(seconds) & (seconds > 0))
        excused = empty & self.empty_untimed
        table.refuse(untimed & ~excused, "the time is no positive number")
        if (table.good & empty).any():
            remark(self.result.notes, "rows of size 0 are left out: nothing is sent")
        keep = table.good & ~empty
        calls = table.columns[self.calls][0] if self.calls in table.columns else np.ones(len(keep))
        block = shape.block(
            table.runs[keep], table.sizes[keep], seconds[keep], skew[keep], calls[keep]
        )
        self.result.blocks += [block] if block is not None else []


def stream_seconds(
    shape: TableShape, table: GridTable, bandwidth: GridColumn, rate: GridColumn | None
) -> tuple[Numbers, Numbers]:
    """Seconds per message of each pair: pairs * nbytes / bandwidth, or pairs / messages per second.

    The two are one number; the one that was printed with more digits is used. Both ways at once
    (bibw), a bandwidth counts both messages of a pair, and the seconds are of the two together.
    The skew, second, is not known.
    """
    both = 2 if shape.operation.startswith("p2p_both") else 1
    sizes, value, half = table.sizes, bandwidth[0] * 1e6, bandwidth[1] * 1e6
    with np.errstate(all="ignore"):
        seconds = shape.groups * both * sizes / value
        if rate is not None:
            messages, half_rate = rate
            low, high = sizes * (messages - half_rate), sizes * (messages + half_rate)
            apart = ~within(value, low, high, half)
            table.refuse(apart, "bandwidth and messages per second do not agree")
            finer = ~(half / value <= half_rate / messages)
            seconds = np.where(finer, shape.groups * both / messages, seconds)
    return seconds, np.full(len(sizes), np.nan)
