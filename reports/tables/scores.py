"""Predictions against measurements as tables: iterations, phases, memory, the paper's strategies."""

from __future__ import annotations

from collections.abc import Sequence

from calib.foundation.words import estimate_words, number, percent
from calib.reports.scoring.accuracy import (
    Accuracy,
    MemoryAccuracy,
    PhaseAccuracy,
    needs_batch,
    occurring,
)
from calib.reports.scoring.cases import CaseRuns
from calib.reports.scoring.paper import PaperRow
from calib.reports.scoring.summary import Summary
from calib.reports.sentences import strategy_words
from calib.reports.tables.table import Table, in_columns
from calib.reports.words import ms_words, samples_words

BATCH = "batch per rank"
CASE_NUMBERS = ("p", BATCH)
MIB = 2.0**20
MOST_MEMORY = 60


def case_cells(of: Accuracy, batch: bool = True) -> dict[str, str]:
    """The first cells of a row: what was trained, and how."""
    cells = {"model": of.model, "strategy": strategy_words(of), "p": str(of.p)}
    return cells | ({BATCH: samples_words(of.batch_per_rank)} if batch else {})


def iterations(cases: Sequence[CaseRuns], brief: bool = False) -> Table:
    """Milliseconds of an iteration and the accuracy, a row for each case, of its newest run.

    Where the machine had another speed than when it was calibrated, also the accuracy at that speed.
    Where any has several runs, also their number and the median and worst accuracy of all; a `brief`
    table has no intervals then.
    """
    many = any(case.runs > 1 for case in cases)
    intervals = not (brief and many)
    speeds = any(apart_at_speed(case.newest) for case in cases)
    unit = "ms [95%]" if intervals else "ms"
    rows = []
    for case in cases:
        total = case.newest.total
        row = case_cells(case.newest) | {
            f"predicted {unit}": ms_words(total.predicted, intervals),
            f"measured {unit}": ms_words(total.measured, intervals),
            "accuracy": percent(total.accuracy),
            "overlap": "yes" if total.overlap else "no",
        }
        at_speed = {"at speed": percent(case.newest.compared(at_speed=True).accuracy)}
        row |= at_speed if speeds else {}
        of_all = {
            "runs": str(case.runs),
            "median": percent(case.median),
            "worst": percent(case.worst),
        }
        rows.append(row | (of_all if many else {}))
    columns, cells = in_columns(rows)
    at = "; at the speed of the calibration" if speeds else ""
    over_all = ": the newest run of each case, and the accuracy over all its runs" if many else ""
    return Table(
        f"Iterations{over_all}{at}",
        columns,
        cells,
        numbers={*columns} - {"model", "strategy", "overlap"},
        least=(["overlap"],),
        split=4,
    )


def apart_at_speed(of: Accuracy) -> bool:
    """Whether the accuracy at the speed of the calibration is another, as percentages are written."""
    return percent(of.compared(at_speed=True).accuracy) != percent(of.total.accuracy)


def phases(points: Sequence[Accuracy], summary: Summary, brief: bool = False) -> Table:
    """Predicted/measured ms of each phase with its accuracy; the last row has the mean accuracies.

    A `brief` table has no accuracy of single phases, but the memory as predicted/measured MiB; and the
    batch only where it tells two rows apart.
    """
    with_batch = not brief or needs_batch(points)
    names = occurring(points)
    rows = [
        case_cells(of, with_batch) | {name: _phase_cell(of.phases[name], brief) for name in names}
        for of in points
    ]
    means = dict(summary.phase_means)
    if brief and any(of.memory for of in points):
        for row, of in zip(rows, points, strict=True):
            row["MiB of a rank"] = _memory_cell(of.memory)
        if summary.memory is not None:
            means["MiB of a rank"] = summary.memory.mean
    columns, cells = in_columns(rows)
    lead = 3 + with_batch
    if means:
        mean = [percent(means.get(name)) for name in columns[lead:]]
        cells.append(["mean accuracy", *[""] * (lead - 1), *mean])
    return Table(
        "Phases in ms, predicted/measured" + ("" if brief else ", accuracy"),
        columns,
        cells,
        numbers=columns[2:],
        split=lead,
        folded=True,
    )


def _phase_cell(of: PhaseAccuracy, brief: bool) -> str:
    if not of.predicted.value and not of.measured.value:
        return "."
    times = f"{ms_words(of.predicted)}/{ms_words(of.measured)}"
    return times if brief else f"{times}, {percent(of.accuracy)}"


def _memory_cell(of: MemoryAccuracy | None) -> str:
    if of is None:
        return "-"
    return f"{number(of.predicted.value / MIB)}/{number(of.measured_bytes / MIB)}"


def memory(points: Sequence[Accuracy]) -> Table:
    """Peaks of a rank, the farthest off first."""
    pairs = [(of, of.memory) for of in points if of.memory is not None]
    pairs.sort(key=lambda pair: pair[1].accuracy)
    shown = f"; {MOST_MEMORY} of {len(pairs)} points" if len(pairs) > MOST_MEMORY else ""
    rows = (
        case_cells(of)
        | {
            "predicted MiB [95%]": estimate_words(peak.predicted, 1 / MIB),
            "measured MiB": number(peak.measured_bytes / MIB),
            "accuracy": percent(peak.accuracy),
            "in the interval": "yes" if peak.covered else "no",
        }
        for of, peak in pairs[:MOST_MEMORY]
    )
    columns, cells = in_columns(rows)
    return Table(
        "Peak memory of a rank",
        columns,
        cells,
        numbers=columns[2:-1],
        remarks=[f"The farthest off first{shown}."],
        folded=True,
    )


def paper(rows: Sequence[PaperRow]) -> Table:
    """Our mean accuracy of each strategy beside the paper's."""
    cells = (
        {
            "strategy": row.strategy,
            "here": percent(row.ours),
            "points": str(row.points),
            "paper": percent(row.paper),
        }
        for row in rows
    )
    return Table(
        "Strategies, beside the ParaDL paper's",
        *in_columns(cells),
        numbers=("here", "points", "paper"),
    )
