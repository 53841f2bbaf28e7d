"""Rows of nccl-tests, whatever they were printed as: checked against themselves, and made into blocks.

A row has a size, a count, a type, and out of place and in place each a time, an algorithm and a bus
bandwidth and the number of wrong results. So every time is known twice and every bandwidth too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from calib.microbench.importers.lines.batches import Batches
from calib.microbench.importers.lines.reading import (
    Faults,
    Mask,
    Numbers,
    floats,
    half_units,
    plain,
    within,
)
from calib.microbench.importers.nccl.operations import DTYPES, MEAN, Kind, fits_redop, fits_root
from calib.microbench.importers.table import Block, Integers, Variant

if TYPE_CHECKING:
    from calib.microbench.importers.nccl.runs import Table

# size count type redop root, then time algbw busbw wrong out of place and in place
WIDTH = 13
NUMERIC = (0, 1, 5, 6, 7, 9, 10, 11)
OUT_OF_PLACE, IN_PLACE = 5, 9


@dataclass
class Half:
    """The columns of one half of a table, in seconds and bytes per second, with half units."""

    seconds: Numbers
    half_seconds: Numbers
    algbw: Numbers
    half_algbw: Numbers
    busbw: Numbers
    half_busbw: Numbers
    short: Mask  # the time was printed with an exponent: 2 digits
    wrong: Mask
    unchecked: Mask


class Rows(Batches[dict[str, Any]]):
    """The rows of alike runs as they are read.

    `old_errors`: the column is the largest error, not the number of wrong items.
    """

    def __init__(self, faults: Faults, old_errors: bool = False) -> None:
        super().__init__(WIDTH, faults)
        self.old_errors = old_errors
        self.codes: dict[tuple[str, str, str], int] = {}

    def numbers(self, flat: list[str], lines: list[int], runs: list[int]) -> dict[str, Any]:
        """The columns by name, in seconds and bytes per second."""
        columns = [flat[index::WIDTH] for index in range(WIDTH)]
        if not plain(flat) and not all(plain(columns[index]) for index in NUMERIC):
            raise ValueError
        return {
            "line": np.array(lines, dtype=np.int64),
            "size": np.array(list(map(int, columns[0])), dtype=np.int64),
            "count": np.array(list(map(int, columns[1])), dtype=np.int64),
            "run": np.array(runs, dtype=np.int64),
            "code": self._codes(columns[2], columns[3], columns[4]),
            **self._half("out", columns[OUT_OF_PLACE : OUT_OF_PLACE + 4]),
            **self._half("in", columns[IN_PLACE : IN_PLACE + 4]),
        }

    def _codes(self, *words: list[str]) -> Integers:
        """A number for each type, redop and root."""
        if all(column.count(column[0]) == len(column) for column in words):
            key = (words[0][0], words[1][0], words[2][0])
            code = self.codes.setdefault(key, len(self.codes))
            return np.full(len(words[0]), code, dtype=np.int64)
        keys = list(zip(*words, strict=True))
        codes = [self.codes.setdefault((a, b, c), len(self.codes)) for a, b, c in keys]
        return np.array(codes, dtype=np.int64)

    def _half(self, name: str, columns: list[list[str]]) -> dict[str, Any]:
        time, algbw, busbw, wrong = columns
        words = set(wrong)
        bad = {word for word in words if self._is_wrong(word)}
        unchecked = {word for word in words if word in ("N/A", "")}
        half_time, short = half_units(time)
        micros = floats(time)
        for index in np.flatnonzero(np.isnan(micros)).tolist():
            if "nan" in time[index].lower():  # measured, and none: not as N/A, not measured
                micros[index] = np.inf
        return {
            f"{name}_seconds": micros * 1e-6,
            f"{name}_half_seconds": half_time * 1e-6,
            f"{name}_algbw": floats(algbw) * 1e9,
            f"{name}_half_algbw": half_units(algbw)[0] * 1e9,
            f"{name}_busbw": floats(busbw) * 1e9,
            f"{name}_half_busbw": half_units(busbw)[0] * 1e9,
            f"{name}_short": short,
            f"{name}_wrong": _isin(wrong, bad, words),
            f"{name}_unchecked": _isin(wrong, unchecked, words),
        }

    def _is_wrong(self, word: str) -> bool:
        if word in ("N/A", ""):
            return False
        value = float(word)
        if self.old_errors:
            return not np.isfinite(value)
        return value != 0  # NaN too

    def columns(self) -> dict[str, Any]:
        """All rows, column by column."""
        self.flush()
        if not self.parts:
            return {}
        if len(self.parts) == 1:
            return self.parts[0]
        whole = {}
        for name in list(self.parts[0]):  # one by one: a million rows are not there twice
            whole[name] = np.concatenate([part.pop(name) for part in self.parts])
        self.parts = [whole]
        return whole


def _isin(words: list[str], chosen: set[str], all_words: set[str]) -> Mask:
    """Which words are of the chosen ones."""
    if not chosen or chosen == all_words:
        return np.full(len(words), bool(chosen))
    return np.array([word in chosen for word in words], dtype=bool)


def half_of(columns: dict[str, Any], name: str) -> Half:
    """The half "out" or "in" of the columns."""
    return Half(**{field: columns[f"{name}_{field}"] for field in Half.__dataclass_fields__})


def better_half(columns: dict[str, Any]) -> Half:
    """The half that was measured out of place, and of rows that have none the other."""
    first, second = half_of(columns, "out"), half_of(columns, "in")
    lacking = np.isnan(first.seconds)
    return Half(
        **{
            name: np.where(lacking, getattr(second, name), getattr(first, name))
            for name in Half.__dataclass_fields__
        }
    )


def types_of(rows: Rows) -> tuple[list[str], Integers]:
    """The data type of each (type, redop, root) that occurs, and the bytes of an item of each row."""
    types = [DTYPES.get(dtype, ("", 0)) for dtype, _, _ in rows.codes]
    each = np.array([nbytes for _, nbytes in types], dtype=np.int64)
    return [name for name, _ in types], each[rows.columns()["code"]]


def blocks_of(table: Table, kind: Kind, faults: Faults) -> list[Block]:
    """The good rows of a table whose operation and ranks are known; the others become faults."""
    columns = table.rows.columns()
    types, nbytes = types_of(table.rows)
    unknown = nbytes == 0
    dropped = np.isin(columns["run"], sorted(table.dropped))
    good = ~unknown & ~dropped
    for index in np.flatnonzero(unknown & ~dropped):
        faults.add(int(columns["line"][index]), "a data type that is not known")
    good &= _sized(table, kind, columns, nbytes, good, faults)
    good &= _typical(table, kind, columns, good, faults)
    whole = columns["size"] * (table.ranks if kind.of_part else 1)
    chosen = []
    for name, place in (("out", "out of place"), ("in", "in place")):
        half = half_of(columns, name)
        keep, seconds = _checked(table, kind, columns, half, good, place, faults)
        rows = np.flatnonzero(keep)
        chosen.append((rows, seconds[rows], name == "in"))
    order = np.argsort(np.concatenate([rows for rows, _, _ in chosen]), kind="stable")
    rows = np.concatenate([rows for rows, _, _ in chosen])[order]
    if not len(rows):
        return []
    seconds = np.concatenate([times for _, times, _ in chosen])[order]
    inside = np.concatenate([np.full(len(r), in_place) for r, _, in_place in chosen])[order]
    modes = ("graph", "graph_in_place") if table.said.graph else ("eager", "in_place")
    details = [f"{redop} {root}" for _, redop, root in table.rows.codes]
    both = [
        Variant(dtype, mode, detail)
        for mode in modes
        for dtype, detail in zip(types, details, strict=True)
    ]
    count = len(rows)
    return [
        Block(
            kind.name,
            table.library,
            "cuda",
            table.ranks,
            table.nodes,
            table.active_ranks,
            table.groups,
            both,
            columns["run"][rows],
            columns["code"][rows] + len(types) * inside,
            whole[rows],
            seconds,
            np.full(count, np.nan),
            np.full(count, max(1, table.said.iterations), dtype=np.int64),
            line=table.line,
            mean_over_ranks=table.said.average == MEAN,
            key=table.key,
        )
    ]


def _sized(
    table: Table, kind: Kind, columns: dict[str, Any], nbytes: Integers, good: Mask, faults: Faults
) -> Mask:
    """Which rows have a size, and the one that count, type and ranks make."""
    size, count = columns["size"], columns["count"]
    parts = table.ranks if kind.per_rank and not kind.of_part else 1
    with np.errstate(over="ignore"):
        expected = count * nbytes * parts
    empty = size <= 0
    # counts are rounded down to whole items of every rank, sizes never up
    apart = (expected != size) | (count <= 0) | (count > (1 << 62) // max(table.ranks * 8, 1))
    for index in np.flatnonzero(good & (empty | apart)):
        text = (
            "size 0: nothing is sent"
            if empty[index]
            else "size is not count times the bytes of the type"
            + (f" times {parts} ranks" if parts > 1 else "")
        )
        faults.add(int(columns["line"][index]), text)
    sized: Mask = ~(empty | apart)
    return sized


def _typical(table: Table, kind: Kind, columns: dict[str, Any], good: Mask, faults: Faults) -> Mask:
    """Which rows have the reduction and the root of their operation: others are of another run."""
    fits = np.array(
        [fits_redop(kind, redop) and fits_root(kind, root) for _, redop, root in table.rows.codes]
    )[columns["code"]]
    for index in np.flatnonzero(good & ~fits):
        faults.add(int(columns["line"][index]), f"redop and root are not those of {kind.name}")
    return np.asarray(fits, dtype=bool)


def _checked(
    table: Table,
    kind: Kind,
    columns: dict[str, Any],
    half: Half,
    good: Mask,
    place: str,
    faults: Faults,
) -> tuple[Mask, Numbers]:
    """Which rows of a half agree with themselves, and their seconds.

    algbw = moved size / time and busbw = algbw * factor (formulas.md), each as exactly as they were
    printed. A time of 2 digits (1.6e+07) gives way to size / algbw where that is known better.
    """
    there = good & ~np.isnan(half.seconds)
    if place == "out of place":
        neither = np.isnan(half.seconds) & np.isnan(columns["in_seconds"])
        for index in np.flatnonzero(good & neither):
            faults.add(int(columns["line"][index]), "no time")
    moved, factor = kind.moved(table.ranks), kind.factor(table.ranks)
    size = columns["size"].astype(np.float64) * moved
    with np.errstate(all="ignore"):
        fastest = np.where(
            half.seconds > half.half_seconds, size / (half.seconds - half.half_seconds), np.inf
        )
        slowest = size / (half.seconds + half.half_seconds)
        positive = np.isfinite(half.seconds) & (half.seconds > 0)
        timed = within(half.algbw, slowest, fastest, half.half_algbw)
        low = factor * np.maximum(slowest, half.algbw - half.half_algbw)
        high = factor * np.minimum(fastest, half.algbw + half.half_algbw)
        bus = within(half.busbw, low, high, half.half_busbw)
        better = half.half_algbw / half.algbw < half.half_seconds / half.seconds
        seconds = np.where(half.short & better, size / half.algbw, half.seconds)
    agree = positive & timed & bus & ~half.wrong
    for index in np.flatnonzero(there & ~agree):
        faults.add(int(columns["line"][index]), _why(half, int(index), place, positive, timed))
    return there & agree, seconds


def _why(half: Half, index: int, place: str, positive: Mask, timed: Mask) -> str:
    if half.wrong[index]:
        return f"wrong results {place}"
    if not positive[index]:
        return f"the time {place} is no positive number"
    if not timed[index]:
        return f"{place}, time and algbw do not agree"
    return f"{place}, busbw is not algbw times the factor of this operation and ranks"
