"""Findings as a tidy table, CSV by RFC 4180: one row per point and quantity.

`of` is "total", a phase, or "memory"; `unit` is s or B. Quantities that a point neither has predicted
nor measured have no row. Numbers have all their digits; an empty cell is a number that does not exist.

A spreadsheet takes a cell that begins with = + - @ for a formula, whatever its quotes. A model may be
called so; such a name gets an apostrophe in front, by which spreadsheets show it as text (OWASP, "CSV
Injection"). Control characters in names are replaced, as everywhere. Numbers are left as they are.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from reports.accuracy import Accuracy
from reports.findings import Findings
from reports.words import plain

FORMULAS = ("=", "+", "-", "@")
COLUMNS = (
    "run_id", "started", "model", "strategy", "layout", "p", "batch_per_pe", "optimizer", "dtype",
    "library", "threads_per_rank", "cluster_fingerprint", "iterations", "oversubscribed", "counts",
    "of", "unit", "predicted", "predicted_low", "predicted_high", "basis", "measured",
    "measured_low", "measured_high", "accuracy", "overlap", "covered",
)  # fmt: skip
TRUTH = {True: "true", False: "false"}
Cell = str | int | float | None


def csv_text(findings: Findings) -> str:
    """The table with its header; lines end with CRLF, as the RFC has it."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream)
    writer.writerow(COLUMNS)
    for point in findings.accuracies:
        case = _case(point)
        writer.writerows([*case, *row] for row in _quantities(point))
    return stream.getvalue()


def _case(of: Accuracy) -> list[Cell]:
    cells: tuple[Cell, ...] = (
        of.run_id, of.started, of.model, of.strategy, of.layout, of.p, of.batch_per_pe, of.optimizer,
        of.dtype, of.library, of.threads_per_rank, of.cluster_fingerprint, of.n,
        TRUTH[of.oversubscribed], TRUTH[of.counts],
    )  # fmt: skip
    return [_text(cell) if isinstance(cell, str) else cell for cell in cells]


def _quantities(of: Accuracy) -> Iterator[tuple[Cell, ...]]:
    """The cells behind those of the case; None becomes an empty one."""
    for name, pair in (("total", of.total), *of.phases.items()):
        predicted, measured = pair.predicted, pair.measured
        if name == "total" or predicted.seconds or measured.seconds:
            yield (
                name, "s", predicted.seconds, predicted.low, predicted.high, predicted.basis,
                measured.seconds, measured.low, measured.high, pair.accuracy, TRUTH[pair.overlap],
                TRUTH[pair.covered],
            )  # fmt: skip
    if of.memory is not None:
        peak = of.memory.predicted
        yield (
            "memory", "B", peak.value, peak.low, peak.high, None, of.memory.measured_bytes, None,
            None, of.memory.accuracy, None, TRUTH[of.memory.covered],
        )  # fmt: skip


def _text(name: str) -> str:
    text = plain(name)
    return f"'{text}" if text.lstrip().startswith(FORMULAS) else text
