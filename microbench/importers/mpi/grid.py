"""Tables of OSU and IMB: columns of numbers, and checks that each is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calib.foundation.arrays import Integers, Mask
from calib.microbench.importers.lines.batches import AT_ONCE, Batches
from calib.microbench.importers.lines.reading import (
    MOST_BYTES,
    Faults,
    Numbers,
    floats,
    half_units,
    plain,
    within,
)
from calib.microbench.importers.table import Block, TableVariant

USUAL = 0.8  # what so many rows of a table have in common, the rest must have too
GridPart = tuple[Integers, Integers, Numbers, Numbers]
GridColumn = tuple[Numbers, Numbers]  # numbers, and half a unit of the last digit of each


class GridRows(Batches[GridPart]):
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

    def numbers(self, flat: list[str], lines: list[int], runs: list[int]) -> GridPart:
        """Lines, runs, values and half units."""
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
        return np.array(lines, dtype=np.int64), np.array(runs, dtype=np.int64), values, halves

    def whole(self) -> GridPart:
        """Lines, runs, values and half units of all rows."""
        self.flush()
        if not self.parts:
            none, empty = np.empty(0, dtype=np.int64), np.empty((0, self.width))
            return none, none, empty, empty
        lines, runs, values, halves = (
            np.concatenate(column) for column in zip(*self.parts, strict=True)
        )
        self.parts = [(lines, runs, values, halves)]
        return self.parts[0]


class GridTable:
    """The rows of a grid, column by column; `good` are those that no check has refused so far."""

    def __init__(self, grid: GridRows, names: Sequence[str], size: str) -> None:
        """`size` is the name of the column of sizes; where there is none, they are 0."""
        self.lines, self.runs, self.values, self.halves = grid.whole()
        self.columns: dict[str, GridColumn] = {
            name: (self.values[:, index], self.halves[:, index]) for index, name in enumerate(names)
        }
        self.sized = size in self.columns
        self.sizes = self.columns[size][0] if self.sized else np.zeros(len(self.lines))
        self.good: Mask = np.ones(len(self.lines), dtype=bool)
        self.faults = grid.faults

    def refuse(self, bad: Mask, text: str) -> None:
        """Good rows that are bad are good no longer; every one is a fault."""
        for index in np.flatnonzero(self.good & bad):
            self.faults.add(int(self.lines[index]), text)
        self.good = self.good & ~bad

    def check_sizes(self) -> None:
        """Decimals, whole bytes, and the series and the order of the sizes."""
        self.refuse(cut_short(self.halves), "a number has other decimals than its column")
        self.refuse(~whole_bytes(self.sizes), "the size is no number of bytes")
        if self.sized:
            series = np.where(self.good, self.sizes, 0)
            self.refuse(out_of_series(series), "the size is not in the series of this table")
        if self.sized and "group" not in self.columns:  # IMB's groups each have a row of a size
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
    """Rows where a number has other decimals than its column: a digit of it is lost or added."""
    bad = np.zeros(len(halves), dtype=bool)
    for column in halves.T:
        units, counts = np.unique(column, return_counts=True)
        if len(units) > 1:
            usual = units[np.argmax(counts)]
            bad |= column != usual
    return bad


def out_of_series(sizes: Numbers) -> Mask:
    """Sizes that are not in the series of doublings that nearly all of a table are in.

    OSU doubles the size from the smallest on, and so does IMB by default: a size with a digit lost
    or added stands out, and nothing else in a line of OSU would tell.
    """
    positive = sizes > 0
    if positive.sum() < 3:
        return np.zeros(len(sizes), dtype=bool)
    odd = sizes[positive] / 2.0 ** np.floor(np.log2(sizes[positive]))  # in [1, 2)
    values, counts = np.unique(odd, return_counts=True)
    best = values[np.argmax(counts)]
    bad = np.zeros(len(sizes), dtype=bool)
    if counts.max() >= USUAL * positive.sum():
        bad[positive] = odd != best
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
    """What is one for all rows of a table of OSU or IMB."""

    operation: str
    library: str
    device: str
    ranks: int  # of a group
    nodes: int
    groups: int = 1
    all_nodes: int = 0  # of all groups together; 0: those of one
    dtype: str = "uint8"
    per_rank: bool = False  # the tool's size is one rank's part
    mean: bool = False
    line: int = 0
    base: str = ""  # the operation without i, neighbor_ and _persistent

    def block(
        self, runs: Integers, sizes: Numbers, seconds: Numbers, skew: Numbers, calls: Numbers
    ) -> Block | None:
        """The rows as a block; None where there is none."""
        if not len(sizes):
            return None
        whole = sizes.astype(np.int64) * (self.ranks if self.per_rank else 1)
        counts = np.where(np.isfinite(calls) & (calls >= 1) & (calls < 1e9), calls, 1.0)
        together = self.ranks * self.groups
        return Block(
            self.operation,
            self.library,
            self.device,
            self.ranks,
            self.nodes,
            -(-together // max(self.all_nodes, self.nodes)),
            self.groups,
            [TableVariant(self.dtype)],
            runs,
            np.zeros(len(sizes), dtype=np.int64),
            whole,
            seconds,
            skew,
            counts.astype(np.int64),
            self.mean,
            self.line,
        )
