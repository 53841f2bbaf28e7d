"""Shared by the readers of OSU and IMB: one pass over the lines, then checks column by column.

Both print a head, a header and rows of numbers. They differ in the words of the head, in the names of
the columns, and in which column is a time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from calib.foundation.arrays import Integers, Mask
from calib.microbench.importers.lines.batches import AT_ONCE, Batches
from calib.microbench.importers.lines.reading import (
    MOST_BYTES,
    Faults,
    Log,
    Numbers,
    floats,
    half_units,
    plain,
    within,
)
from calib.microbench.importers.said import NOT_SAID, Flags, SaidPlaces, each_word, remark
from calib.microbench.importers.table import Block, Imported, TableVariant

OTHER_TOOL = re.compile(r"\balgbw\b|#bytes\s+#repetitions|nccl-tests version|MPI Benchmarks")
USUAL = 0.8  # what this share of the rows has in common, the rest must have too
GridColumn = tuple[Numbers, Numbers]  # numbers, and half a unit of the last digit of each
# an MPI datatype, without MPI_ -> the dtype
DTYPES = each_word(
    {
        "uint8": "BYTE CHAR UNSIGNED_CHAR",
        "int8": "SIGNED_CHAR INT8_T",
        "int16": "SHORT",
        "int32": "INT INT32_T",
        "int64": "LONG INT64_T",
        "float16": "HALF",
        "float32": "FLOAT",
        "float64": "DOUBLE",
    }
)
# the tool's size is one rank's part of these (formulas.md has the whole buffer)
PER_RANK = frozenset(
    {"allgather", "allgatherv", "gather", "gatherv", "scatter", "scatterv"}
    | {"all_to_all", "alltoallv", "alltoallw"}
)
REDUCTIONS = frozenset({"allreduce", "reduce", "reduce_scatter", "reduce_scatter_block"})


class GridRows(Batches):
    """Rows of `width` numbers; `words` are columns of words, where Fail is a wrong result."""

    def __init__(self, width: int, faults: Faults, words: frozenset[int] = frozenset()) -> None:
        super().__init__(width, faults)
        self.words = words
        self.run = 0  # of the rows that are added

    def add(self, line: int, tokens: list[str]) -> None:
        """One row: extend, without lists of one."""
        self.tokens.extend(tokens)
        self.lines.append(line)
        self.runs.append(self.run)
        if len(self.lines) >= AT_ONCE:
            self.flush()

    def numbers(self, flat: list[str], lines: list[int]) -> dict[str, Any]:
        """Values and half units, [rows, width]."""
        values = np.full((len(lines), self.width), np.nan)
        halves = np.zeros((len(lines), self.width))
        for column in range(self.width):
            tokens = flat[column :: self.width]
            if column in self.words:
                values[:, column] = [token.lower() == "pass" for token in tokens]
            elif not plain(tokens):
                raise ValueError
            else:
                values[:, column] = floats(tokens)
                halves[:, column] = half_units(tokens)[0]
        return {"values": values, "halves": halves}


class GridTable:
    """The rows of a grid, column by column; `good` are those that no check has refused so far."""

    def __init__(self, rows: dict[str, Any], names: Sequence[str], faults: Faults) -> None:
        """Sizes are the column "size"; where there is none, they are 0."""
        self.lines, self.runs, self.halves = rows["line"], rows["run"], rows["halves"]
        self.values: Numbers = rows["values"]
        self.columns: dict[str, GridColumn] = {
            name: (self.values[:, index], self.halves[:, index]) for index, name in enumerate(names)
        }
        self.sizes = self.columns["size"][0] if "size" in names else np.zeros(len(self.lines))
        self.good: Mask = np.ones(len(self.lines), dtype=bool)
        self.faults = faults

    def refuse(self, bad: Mask, text: str) -> None:
        """Bad rows among the good ones become faults."""
        for index in np.flatnonzero(self.good & bad):
            self.faults.add(int(self.lines[index]), text)
        self.good = self.good & ~bad

    def check_sizes(self) -> None:
        """Decimals, whole bytes, and the series and the order of the sizes."""
        self.refuse(cut_short(self.halves), "a number has other decimals than its column")
        self.refuse(~whole_bytes(self.sizes), "the size is not a whole number of bytes")
        if "size" not in self.columns:
            return
        series = np.where(self.good, self.sizes, 0)
        self.refuse(out_of_series(series), "the size is not in the series of this table")
        if "group" not in self.columns:  # IMB's groups each have a row of a size
            disordered = out_of_order(self.sizes, self.runs, self.good)
            self.refuse(disordered, "the size is not larger than the one before")

    def spread(self, average: str, least: str, most: str) -> tuple[Numbers, Numbers, Numbers]:
        """Minimum, maximum and skew in seconds of microseconds over the ranks, by columns' names.

        Where they are not printed, the average twice and NaN. An average outside is refused.
        """
        value, half = self.columns[average]
        if least not in self.columns or most not in self.columns:
            return value, value, np.full(len(value), np.nan)
        low, high = self.columns[least][0], self.columns[most][0]
        outside = ~within(value, low - half, high + half, half)
        self.refuse(outside, "the average is not between minimum and maximum")
        return low, high, (high - low) * 1e-6


def cut_short(halves: Numbers) -> Mask:
    """Rows with a number of other decimals than its column: it lost or gained a digit."""
    bad = np.zeros(len(halves), dtype=bool)
    for column in halves.T:
        units, counts = np.unique(column, return_counts=True)
        bad |= column != units[np.argmax(counts)]
    return bad


def out_of_series(sizes: Numbers) -> Mask:
    """Sizes outside the series of doublings that nearly all sizes of a table are in.

    OSU doubles the size from the smallest on, and so does IMB by default: a size with a digit lost
    or added stands out, and nothing else in a line of OSU would tell.
    """
    bad = np.zeros(len(sizes), dtype=bool)
    positive = sizes > 0
    if positive.sum() < 3:
        return bad
    odd = sizes[positive] / 2.0 ** np.floor(np.log2(sizes[positive]))  # in [1, 2)
    values, counts = np.unique(odd, return_counts=True)
    if counts.max() >= USUAL * positive.sum():
        bad[positive] = odd != values[np.argmax(counts)]
    return bad


def out_of_order(sizes: Numbers, runs: Integers, good: Mask) -> Mask:
    """Good rows whose size is not larger than that of the good row before in the same run."""
    bad = np.zeros(len(sizes), dtype=bool)
    rows = np.flatnonzero(good)
    same = runs[rows[1:]] == runs[rows[:-1]]
    bad[rows[1:]] = same & (sizes[rows[1:]] <= sizes[rows[:-1]])
    return bad


def whole_bytes(sizes: Numbers) -> Mask:
    """Which sizes are whole numbers of bytes that can be."""
    with np.errstate(invalid="ignore"):
        whole: Mask = (sizes >= 0) & (sizes == np.floor(sizes)) & (sizes < MOST_BYTES)
    return whole


@dataclass(frozen=True)
class TableShape:
    """What all rows of a table have in common; `nodes` are those of all groups together."""

    operation: str
    base: str  # the operation without i, neighbor_ and _persistent
    library: str
    device: str
    dtype: str
    ranks: int  # of a group
    groups: int
    nodes: int

    @property
    def is_pair(self) -> bool:
        """Whether groups are pairs of ranks that send messages."""
        return self.base.startswith("p2p")

    @property
    def sends_when_empty(self) -> bool:
        """Whether something is sent at size 0: an empty message takes time, too."""
        return self.is_pair or self.base in ("sendrecv", "exchange", "barrier")

    def block(self, line: int, table: GridTable, keep: Mask, timed: GridColumn) -> Block:
        """The rows to keep, with their seconds and skew; `line` is where the table begins."""
        count = int(keep.sum())
        calls = table.columns.get("iterations", (np.ones(len(keep)),))[0][keep]
        calls = np.where(np.isfinite(calls) & (calls >= 1) & (calls < 1e9), calls, 1.0)
        per_rank = self.base in PER_RANK and "neighbor" not in self.operation
        together = self.ranks * self.groups
        return Block(
            self.operation,
            self.library,
            self.device,
            self.ranks,
            min(self.nodes, self.ranks),
            -(-together // min(self.nodes, together)),
            self.groups,
            [TableVariant(self.dtype)],
            table.runs[keep],
            np.zeros(count, dtype=np.int64),
            table.sizes[keep].astype(np.int64) * (self.ranks if per_rank else 1),
            timed[0][keep],
            timed[1][keep],
            calls.astype(np.int64),
            mean_over_ranks=not self.is_pair or self.groups > 1,
            line=line,
        )


@dataclass(frozen=True, kw_only=True)
class CommonHead:
    """What stands above the rows of a run; runs with the same are read as one table."""

    launched: SaidPlaces = NOT_SAID
    columns: tuple[str, ...] = ()


HeadT = TypeVar("HeadT", bound=CommonHead)


class GridReader(Generic[HeadT]):
    """One pass over the lines, then one over the tables."""

    tool: ClassVar[str]
    empty_untimed: ClassVar[bool] = False  # rows that send nothing may have no time

    def __init__(self, log: Log, flags: Flags) -> None:
        self.log, self.flags = log, flags
        self.result = Imported(self.tool)
        self.faults = self.result.faults
        self.head: HeadT | None = None
        self.line = self.rows = 0  # where the run begins, and its rows so far
        self.grid: GridRows | None = None  # None before its header
        self.grids: dict[HeadT, tuple[int, GridRows]] = {}
        self.launched = NOT_SAID

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
        """Read a line that is not a row."""
        raise NotImplementedError

    def loses_digits(self, grid: GridRows, parts: list[str]) -> bool:
        """Whether a row in which the file ends may have lost digits."""
        raise NotImplementedError

    def shape(self, head: HeadT, table: GridTable) -> TableShape | str:
        """Operation, ranks and nodes of a table, or what is missing."""
        raise NotImplementedError

    def seconds(self, shape: TableShape, table: GridTable) -> GridColumn | None:
        """Seconds and skew, refusing what the tool's own columns say is wrong; None: no known ones."""
        raise NotImplementedError

    def _import(self, head: HeadT, line: int, grid: GridRows) -> None:
        """Check the rows of a table and keep the good ones."""
        rows = grid.columns()
        if not rows:
            return
        table = GridTable(rows, head.columns, self.faults)
        shape = self.shape(head, table)
        if isinstance(shape, str):
            for run in np.unique(table.runs):
                self.faults.add(int(run), shape)
            return
        table.check_sizes()
        timed = self.seconds(shape, table)
        if timed is None:
            self.faults.add(line, "its columns are unknown")
            return
        empty = (table.sizes == 0) & (not shape.sends_when_empty)
        untimed = ~(np.isfinite(timed[0]) & (timed[0] > 0))
        table.refuse(untimed & ~(empty & self.empty_untimed), "the time is not a positive number")
        if (table.good & empty).any():
            remark(self.result.notes, "rows of size 0 are left out: nothing is sent")
        keep = table.good & ~empty
        if keep.any():
            self.result.blocks.append(shape.block(line, table, keep, timed))


def stream_seconds(
    shape: TableShape, table: GridTable, bandwidth: GridColumn, rate: GridColumn | None
) -> GridColumn:
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
