"""Target csv: every number of the parameter file in one tidy table, CSV by RFC 4180, a row each.

    import pandas
    table = pandas.read_csv("parameters.csv")
    table[(table.operation == "allreduce") & (table.law == "line") & (table.quantity == "alpha")]

Columns: calib/export/csv/rows.py. An empty cell is a number that does not exist, is not known, or
that is below 0: a piece's intercept may be, so a piece has its seconds at both ends as well, by which
nothing of it is lost but the lower end of the intercept's interval. Residuals are the ratio
measured / law, which is 1 plus what the file has; neighbours of a law of work have the ratios of which
the file has the logs. Sections say "provenance" where the numbers come from. What cannot be held are
remarks in words (notes, runner-up laws, names of models).

CSV has no comments: fingerprint, ranges and what was lost stand in the side file. In a cell of text,
what a spreadsheet would take for a formula gets an apostrophe in front (OWASP, "CSV Injection"), as
does a name such as nan, and control characters are replaced.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator

from calib.export.csv.rows import CsvRow, every_row
from calib.export.target import Exported, ExportRequest
from calib.fitting.parameters.file import Parameters
from calib.foundation.text import csv_cell
from calib.foundation.words import counted

NAME = "csv"
FILENAME = "parameters.csv"
DIRECTORY = False
RECEIVES = "every number of the file with its interval, one row each"
LOSES = (
    "remarks in words; numbers below 0: pieces have their times at both ends beside the intercept, "
    "residuals are ratios measured / law"
)
NEEDS = "nothing: any parameter file"
OPTIONS: frozenset[str] = frozenset()

NUMBERS = ("value", "low95", "high95", "start", "end")
RENAMED = {"start": "from", "end": "to"}


def export(request: ExportRequest) -> Exported:
    """One table; nothing is collapsed."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream)
    writer.writerow([RENAMED.get(name, name) for name in CsvRow._fields])
    below = rows = 0
    for row in every_row(request.parameters):
        kept = _possible(row)
        below += sum(getattr(kept, name) != getattr(row, name) for name in NUMBERS)
        known = (kept.value, kept.low95, kept.high95) != (None, None, None)
        if not known and row.section != "provenance":
            continue  # nothing is known of it
        rows += 1
        writer.writerow([_cell(cell) for cell in kept])
    return Exported(
        files={"": stream.getvalue()},
        holds_for=(f"all that was measured; each of {rows} rows says its ranks and sizes",),
        lost=tuple(_lost(request.parameters, below)),
    )


def _lost(of: Parameters, below: int) -> Iterator[str]:
    """What this file has, and the table has not; `below` numbers of it have an empty cell."""
    bands = [band for law in of.structural for band in law.bands]
    others = (
        law.runner_up
        for laws in (of.collectives, bands, of.contention, of.work, of.composition)
        for law in laws
    )
    remarks = {
        "notes": of.provenance.notes,
        "laws that came second": any(others),
        "models that laws were fitted to": any((of.composition, of.memory, of.overlap)),
    }
    if found := [name for name, held in remarks.items() if held]:
        yield f"remarks in words: {', '.join(found)}"
    if below:
        yield f"{counted(below, 'number')} below 0 or not finite, with an empty cell"


def _possible(row: CsvRow) -> CsvRow:
    """The row without numbers that are negative or not finite."""
    return row._replace(
        value=_number(row.value),
        low95=_number(row.low95),
        high95=_number(row.high95),
        start=_number(row.start),
        end=_number(row.end),
    )


def _number(cell: float | None) -> float | None:
    return cell if cell is None or (math.isfinite(cell) and cell >= 0) else None


def _cell(cell: str | float | None) -> str:
    """Numbers with all their digits; text so that it is no formula, no NaN, and drives no terminal."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        text = str(csv_cell(cell))
        return f"'{text}" if _no_number(text) else text
    return repr(cell + 0)  # 0, and not -0.0


def _no_number(text: str) -> bool:
    """Whether a reader of tables would take a name for a number that is not finite: nan, inf, 1e999."""
    try:
        return not math.isfinite(float(text))
    except ValueError:
        return False
