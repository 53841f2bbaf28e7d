"""Findings as a tidy table, CSV by RFC 4180: one row per point and quantity.

`of` is "total", "at_speed" (the total at the speed of the calibration), a phase, or "memory"; `unit` is
s or B; `half_width` of the predicted interval is relative, `interval_score` of logarithms. Quantities
that a point neither has predicted nor measured have no row. Numbers have all their digits; an empty cell
is a number that does not exist.

A name that a spreadsheet would take for a formula gets an apostrophe in front (foundation/text.py).
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence

from calib.foundation.text import Cell, csv_row
from calib.reports.findings import Findings
from calib.reports.history.rows import disturbed_text
from calib.reports.scoring.accuracy import Accuracy
from calib.reports.scoring.intervals import interval_score

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
    "disturbed",
    "waited",
    "slowdown",
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
    "half_width",
    "interval_score",
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
        disturbed_text(of.disturbed),
        of.waited,
        of.slowdown.value if of.slowdown else None,
    )


def _quantities(of: Accuracy) -> Iterator[tuple[Cell, ...]]:
    """The cells behind those of the case; None becomes an empty one."""
    whole = {"total": of.total, **({"at_speed": of.at_speed} if of.at_speed else {})}
    for name, pair in (*whole.items(), *of.phases.items()):
        predicted, measured = pair.predicted, pair.measured
        score = interval_score(predicted.low, predicted.high, measured.value)
        if name in whole or predicted.value or measured.value:
            yield (
                name,
                "s",
                *predicted.numbers,
                predicted.basis,
                *measured.numbers,
                pair.accuracy,
                pair.overlap,
                pair.covered,
                predicted.half_width,
                _finite(score),
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
            peak.half_width,
            _finite(interval_score(peak.low, peak.high, of.memory.measured_bytes)),
        )


def _finite(score: float) -> float | None:
    return score if math.isfinite(score) else None
