"""The tables of `calib collective`: one for each operation and layout, a row for each size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from calib.foundation.words import exact_bytes, number, signed_percent
from calib.reports.scoring.collectives import CollectiveRow, by_place, place_words
from calib.reports.tables.cells import NONE, us
from calib.reports.tables.collectives import BANDWIDTHS
from calib.reports.tables.table import Table, in_columns
from calib.reports.words import alike

LEAST = (["algbw GB/s"], ["expected busbw"], ["algorithm"], ["busbw GB/s"])
AGAINST = "off: measured / expected - 1; SLOWER: above the expected 95% interval; faster: below it"
ALGORITHM = "algorithm: what the structural law says that the library uses around this size"


def collective_times(rows: Sequence[CollectiveRow]) -> list[Table]:
    """A table for each operation and layout, with measured times beside; remarks are on the last."""
    tables = [_table(group) for group in by_place(rows)]
    columns = {name for table in tables for name in table.columns}
    remarks = [
        *([AGAINST] if "off" in columns else []),
        BANDWIDTHS,
        *([ALGORITHM] if "algorithm" in columns else []),
    ]
    return [*tables[:-1], replace(tables[-1], remarks=remarks)]


def notes_on(rows: Sequence[CollectiveRow]) -> list[str]:
    """What the times rest on, that of most first."""
    return alike(row.expected.cost.notes for row in rows)


def _table(rows: Sequence[CollectiveRow]) -> Table:
    first = rows[0].expected
    columns, cells = in_columns(map(_row, rows))
    return Table(
        f"{place_words(first.operation, first.shape)} ({first.library}, {first.device})",
        columns,
        cells,
        numbers=[name for name in columns if name not in ("interval", "basis", "algorithm")],
        least=LEAST,
    )


def _row(row: CollectiveRow) -> dict[str, str]:
    of = row.expected
    rates = {"algbw GB/s": _rate(of.algbw), "busbw GB/s": _rate(of.busbw)}
    return {
        "size": exact_bytes(of.nbytes),
        **({"time us": us(of.seconds), **rates} if row.measured is None else _against(row)),
        "basis": of.cost.basis,
        **({"algorithm": of.algorithm} if of.algorithm else {}),
    }


def _against(row: CollectiveRow) -> dict[str, str]:
    measured, off = row.measured, row.off
    assert measured is not None
    return {
        "expected us": us(row.interval),
        "measured us": number(measured.value * 1e6),
        "off": NONE if off is None else signed_percent(off),
        "interval": {"inside": "inside", "slower": "SLOWER", "faster": "faster"}[row.verdict or ""],
        "expected busbw": _rate(row.expected.busbw),
        "busbw GB/s": _rate(row.measured_busbw),
    }


def _rate(bytes_per_s: float | None) -> str:
    return NONE if bytes_per_s is None else number(bytes_per_s * 1e-9)
