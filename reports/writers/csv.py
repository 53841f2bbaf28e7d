"""Findings as a tidy table, CSV by RFC 4180: one row per point and quantity.

`of` is "total", a phase, or "memory"; `unit` is s or B. Quantities that a point neither has predicted
nor measured have no row. Numbers have all their digits; an empty cell is a number that does not exist.

A name that a spreadsheet would take for a formula gets an apostrophe in front (foundation/text.py).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence

from calib.foundation.text import Cell, csv_row
from calib.reports.findings import Findings
from calib.reports.scoring.accuracy import Accuracy

COLUMNS = (
    "run_id",
    "started",
    "model",
    "strategy",
    "layout",
    "p",
    "batch_per_rank",
    "optimizer",
    "execution",
    "library",
    "threads_per_rank",
    "cluster_fingerprint",
    "iterations",
    "oversubscribed",
    "counts",
    "of",
    "unit",
    "predicted",
    "predicted_low",
    "predicted_high",
    "basis",
    "measured",
    "measured_low",
    "measured_high",
    "accuracy",
    "overlap",
    "covered",
)


def csv_text(findings: Findings) -> str:
    """The table with its header; lines end with CRLF, as the RFC has it."""
    return written(COLUMNS, (map(_word, row) for row in rows_of(findings.accuracies)), "\r\n")


def written(columns: Sequence[str], rows: Iterable[Iterable[Cell]], end: str) -> str:
    """Rows of cells under their header, in lines that end with `end`."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator=end)
    writer.writerows(map(csv_row, (columns, *rows)))
    return stream.getvalue()


def rows_of(accuracies: Iterable[Accuracy]) -> Iterator[tuple[Cell, ...]]:
    """The values of COLUMNS, a row for each point and quantity; None where there is none."""
    for point in accuracies:
        case = _case(point)
        for quantity in _quantities(point):
            yield *case, *quantity


def _word(cell: Cell) -> Cell:
    return str(cell).lower() if isinstance(cell, bool) else cell


def _case(of: Accuracy) -> tuple[Cell, ...]:
    return (
        of.run_id,
        of.started,
        of.model,
        of.strategy,
        of.layout,
        of.p,
        of.batch_per_rank,
        of.optimizer,
        of.execution,
        of.library,
        of.threads_per_rank,
        of.cluster_fingerprint,
        of.n,
        of.oversubscribed,
        of.counts,
    )


def _quantities(of: Accuracy) -> Iterator[tuple[Cell, ...]]:
    """The cells behind those of the case; None becomes an empty one."""
    for name, pair in (("total", of.total), *of.phases.items()):
        predicted, measured = pair.predicted, pair.measured
        if name == "total" or predicted.value or measured.value:
            yield (
                name,
                "s",
                *predicted.numbers,
                predicted.basis,
                *measured.numbers,
                pair.accuracy,
                pair.overlap,
                pair.covered,
            )
    if of.memory is not None:
        peak = of.memory.predicted
        yield (
            "memory",
            "B",
            peak.value,
            peak.low,
            peak.high,
            None,
            of.memory.measured_bytes,
            None,
            None,
            of.memory.accuracy,
            None,
            of.memory.covered,
        )
