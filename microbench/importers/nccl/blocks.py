"""Table rows to blocks: which columns are meant, which rows are good."""

from __future__ import annotations

from typing import Any

import numpy as np

from calib.foundation.arrays import Integers, Mask
from calib.microbench.importers.lines.reading import Faults, Numbers, within
from calib.microbench.importers.nccl.operations import MEAN, OperationKind, fits_redop, fits_root
from calib.microbench.importers.nccl.rows import Half, half_of, types_of
from calib.microbench.importers.nccl.tables import AlikeRuns, places_of
from calib.microbench.importers.table import Block, TableVariant


def blocks_of(table: AlikeRuns, kind: OperationKind, faults: Faults) -> list[Block]:
    """The good rows of a table whose operation and ranks are known; the others become faults."""
    columns = table.rows.columns()
    types, nbytes = types_of(table.rows)
    unknown = nbytes == 0
    dropped = np.isin(columns["run"], sorted(table.dropped))
    good = ~unknown & ~dropped
    for index in np.flatnonzero(unknown & ~dropped):
        faults.add(int(columns["line"][index]), "an unknown data type")
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
        TableVariant(dtype, mode, detail)
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
            places=places_of(table.said.ranks),
        )
    ]


def _sized(
    table: AlikeRuns,
    kind: OperationKind,
    columns: dict[str, Any],
    nbytes: Integers,
    good: Mask,
    faults: Faults,
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


def _typical(
    table: AlikeRuns, kind: OperationKind, columns: dict[str, Any], good: Mask, faults: Faults
) -> Mask:
    """Which rows have the reduction and the root of their operation: others are of another run."""
    fits = np.array(
        [fits_redop(kind, redop) and fits_root(kind, root) for _, redop, root in table.rows.codes]
    )[columns["code"]]
    for index in np.flatnonzero(good & ~fits):
        faults.add(int(columns["line"][index]), f"redop and root are not those of {kind.name}")
    return np.asarray(fits, dtype=bool)


def _checked(
    table: AlikeRuns,
    kind: OperationKind,
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
        return f"the time {place} is not a positive number"
    if not timed[index]:
        return f"{place}, time and algbw do not agree"
    return f"{place}, busbw is not algbw times the factor of this operation and ranks"
