"""Tables of OSU and IMB: columns of numbers of one width, and the checks that a column is one."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from microbench.importers.reading import (
    MOST_BYTES,
    Faults,
    Numbers,
    floats,
    half_units,
    plain,
)
from microbench.importers.table import Block, Integers, Variant

AT_ONCE = 16_384
USUAL = 0.8  # what so many rows of a table have in common, the rest must have too
Mask = NDArray[np.bool_]


@dataclass
class Grid:
    """Rows of `width` numbers; `words` are columns of words, where Fail is a wrong result."""

    width: int
    faults: Faults
    words: frozenset[int] = frozenset()
    run: int = 0  # of the rows that are added
    tokens: list[str] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)
    parts: list[tuple[Integers, Integers, Numbers, Numbers]] = field(default_factory=list)

    def add(self, line: int, tokens: list[str]) -> None:
        """One row."""
        self.tokens.extend(tokens)
        self.pending.append(line)
        self.runs.append(self.run)
        if len(self.pending) >= AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Turn tokens into numbers; a row that is none is a fault."""
        self._keep(self.tokens, self.pending, self.runs)
        self.tokens, self.pending, self.runs = [], [], []

    def _keep(self, flat: list[str], lines: list[int], runs: list[int]) -> None:
        """All rows, or both halves of them where one is no row."""
        if not lines:
            return
        try:
            self.parts.append(self._numbers(flat, lines, runs))
        except ValueError:
            if len(lines) == 1:
                self.faults.add(lines[0], "no row of this table: a column is no number")
                return
            half = len(lines) // 2
            self._keep(flat[: half * self.width], lines[:half], runs[:half])
            self._keep(flat[half * self.width :], lines[half:], runs[half:])

    def _numbers(
        self, flat: list[str], lines: list[int], runs: list[int]
    ) -> tuple[Integers, Integers, Numbers, Numbers]:
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

    def whole(self) -> tuple[Integers, Integers, Numbers, Numbers]:
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


def refuse(lines: Integers, good: Mask, bad: Mask, text: str, faults: Faults) -> Mask:
    """`good` without `bad`; every row that goes is a fault."""
    for index in np.flatnonzero(good & bad):
        faults.add(int(lines[index]), text)
    return good & ~bad


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
class Shape:
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
    ) -> Block | None:  # fmt: skip
        """The rows as a block; None where there is none."""
        if not len(sizes):
            return None
        whole = sizes.astype(np.int64) * (self.ranks if self.per_rank else 1)
        counts = np.where(np.isfinite(calls) & (calls >= 1) & (calls < 1e9), calls, 1.0)
        together = self.ranks * self.groups
        return Block(
            self.operation, self.library, self.device, self.ranks, self.nodes,
            -(-together // max(self.all_nodes, self.nodes)), self.groups, [Variant(self.dtype)],
            runs, np.zeros(len(sizes), dtype=np.int64), whole, seconds, skew,
            counts.astype(np.int64), self.mean, self.line,
        )  # fmt: skip
