"""Collectives that were asked for as a tidy table: CSV, and the rows of JSON and notebooks. SI units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calib.foundation.records import Estimate
from calib.foundation.text import Cell
from calib.reports.scoring.collectives import CollectiveRow, summary_of
from calib.reports.tables.collective_times import notes_on
from calib.reports.writers.csv import written

MEASURED = (*Estimate.columns("measured", "s"), "measured_busbw_bytes_per_s", "off", "verdict")
COLUMNS = (
    "operation",
    "library",
    "device",
    "p",
    "nodes",
    "ranks_per_node",
    "nbytes",
    "time_s",
    "low_s",
    "high_s",
    "algbw_bytes_per_s",
    "busbw_bytes_per_s",
    "basis",
    "algorithm",
    *MEASURED,
)


def row_of(row: CollectiveRow) -> list[Cell]:
    """The values of COLUMNS; None where there is none."""
    of, measured = row.expected, row.measured
    return [
        *(of.operation, of.library, of.device, *of.shape, of.nbytes, *row.interval.numbers),
        *(of.algbw, of.busbw, of.cost.basis, of.algorithm),
        *((None,) * 3 if measured is None else measured.numbers),
        *(row.measured_busbw, row.off, row.verdict),
    ]


def csv_text(rows: Sequence[CollectiveRow]) -> str:
    """The table with its header."""
    return written(COLUMNS, map(row_of, rows), "\n")


def in_json(rows: Sequence[CollectiveRow], notes: Sequence[str] = ()) -> dict[str, Any]:
    """The rows, `notes` and those on what they rest on, and what is to be said of measured times."""
    against = any(row.measured is not None for row in rows)
    return {
        "rows": [dict(zip(COLUMNS, row_of(row), strict=True)) for row in rows],
        "notes": [*notes, *notes_on(rows)],
        "summary": summary_of(rows) if against else None,
    }
