"""The report in a terminal: iterations, phases, memory, strategies, and the rest in sentences.

Nothing is cut off with an ellipsis: where there is no terminal and no COLUMNS, the console is made as
wide as the tables need; in a narrow one, cells fold.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from textwrap import fill
from typing import IO, TYPE_CHECKING

from calib.foundation.text import plain
from calib.foundation.words import number, percent
from calib.reports.findings import Findings
from calib.reports.scoring.accuracy import (
    Accuracy,
    MemoryAccuracy,
    PhaseAccuracy,
    needs_batch,
    occurring,
)
from calib.reports.scoring.cases import CaseRuns, by_case
from calib.reports.scoring.paper import comparable
from calib.reports.scoring.summary import Summary
from calib.reports.sentences import (
    check_lines,
    choice_lines,
    strategies_line,
    strategy_words,
    summary_lines,
    verdict_lines,
)
from calib.reports.terminal.layout import GAP, MOST_WIDTH, WIDTH, new_table, width_of
from calib.reports.words import BASIS_MARKS, LEGEND, OVERSUBSCRIBED_MARK, ms_words, samples_words

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

MOST_MISSING = 20  # named; of many nights there may be hundreds
MEMORY = "MiB of a rank"
MIB = 2.0**20


CASE_COLUMNS = (("model", False), ("strategy", False), ("p", True))
BATCH_COLUMN = ("batch\nper rank", True)


def _case_cells(accuracy: Accuracy) -> list[str]:
    strategy = strategy_words(accuracy).replace(", ", ",\n")  # narrow, so that the table fits
    return [plain(accuracy.model), strategy, str(accuracy.p)]


def totals_table(cases: Sequence[CaseRuns]) -> Table:
    """Milliseconds of an iteration and the accuracy, one row per case.

    Of cases with several runs the times are the newest run's, without their intervals, to leave room
    for the number of runs and the median and worst accuracy of all.
    """
    if any(case.runs > 1 for case in cases):
        return _many_runs_table(cases)
    from rich.text import Text

    numbers = (("predicted\nms [95%]", True), ("measured\nms [95%]", True), ("accuracy\n%", True))
    table = new_table("Iteration", (*CASE_COLUMNS, BATCH_COLUMN, *numbers, ("over-\nlap", False)))
    for case in cases:
        total = case.newest.total
        cells = [
            *_case_cells(case.newest),
            samples_words(case.newest.batch_per_rank),
            ms_words(total.predicted, interval=True),
            ms_words(total.measured, interval=True),
            _points(total.accuracy),
            "yes" if total.overlap else "no",
        ]
        table.add_row(*map(Text, cells))
    return table


def _many_runs_table(cases: Sequence[CaseRuns]) -> Table:
    from rich.text import Text

    newest = (("predicted\nms", True), ("measured\nms", True), ("accuracy\n%", True))
    over_all = (("runs", True), ("median\n%", True), ("worst\n%", True))
    table = new_table(
        "Iteration: the newest run of each case, and the accuracy over all its runs",
        (*CASE_COLUMNS, BATCH_COLUMN, *newest, ("over-\nlap", False), *over_all),
    )
    for case in cases:
        total = case.newest.total
        cells = [
            *_case_cells(case.newest),
            samples_words(case.newest.batch_per_rank),
            ms_words(total.predicted),
            ms_words(total.measured),
            _points(total.accuracy),
            "yes" if total.overlap else "no",
            str(case.runs),
            _points(case.median),
            _points(case.worst),
        ]
        table.add_row(*map(Text, cells))
    return table


def _points(share: float | None) -> str:
    """Percent without its sign, which the head of the column has."""
    return percent(share).removesuffix("%")


def phases_tables(cases: Sequence[CaseRuns], summary: Summary) -> list[Table]:
    """Predicted/measured ms of each phase, and MiB of memory; the last row has the mean accuracies.

    One row per case, of its newest run. The batch has a column only where it tells two rows apart.
    Columns that do not fit 100 characters go into another table.
    """
    points = [case.newest for case in cases]
    columns = {
        phase: [_phase_cell(of.phases[phase]) for of in points] for phase in occurring(points)
    }
    means = dict(summary.phase_means)
    if any(of.memory is not None for of in points):
        columns[MEMORY] = [_memory_cell(of.memory) for of in points]
        if summary.memory is not None:
            means[MEMORY] = summary.memory.mean
    title = "Phases in ms, predicted/measured"
    return [_phases_table(title, points, part, means) for part in _fitting(points, columns)]


def _fitting(
    points: Sequence[Accuracy], columns: Mapping[str, list[str]]
) -> list[dict[str, list[str]]]:
    """The columns, as many to a table as fit beside those of the case."""
    leads = zip(*map(_case_cells, points), strict=True)
    room = WIDTH - sum(map(_wide, leads))
    room -= _wide([BATCH_COLUMN[0]]) if needs_batch(points) else 0
    parts: list[dict[str, list[str]]] = [{}]
    left = room
    for name, cells in columns.items():
        left -= _wide([name, *cells])
        if left < 0 and parts[-1]:
            parts.append({})
            left = room - _wide([name, *cells])
        parts[-1][name] = cells
    return parts


def _wide(cells: Iterable[str]) -> int:
    """The widest line of a column, and the gap beside it."""
    return max((len(line) for cell in cells for line in cell.splitlines()), default=0) + GAP


def _phases_table(
    title: str,
    points: Sequence[Accuracy],
    columns: Mapping[str, Sequence[str]],
    means: Mapping[str, float],
) -> Table:
    from rich.text import Text

    with_batch = needs_batch(points)
    lead = (*CASE_COLUMNS, *([BATCH_COLUMN] if with_batch else []))
    table = new_table(title, (*lead, *((name, True) for name in columns)))
    for index, point in enumerate(points):
        cells = _case_cells(point)
        cells += [samples_words(point.batch_per_rank)] if with_batch else []
        table.add_row(*map(Text, [*cells, *(of[index] for of in columns.values())]))
    if any(name in means for name in columns):
        table.add_section()
        filled = [""] * (len(lead) - 1)
        table.add_row("mean accuracy", *filled, *(percent(means.get(name)) for name in columns))
    return table


def _phase_cell(of: PhaseAccuracy) -> str:
    if not of.predicted.value and not of.measured.value:
        return "."
    return f"{ms_words(of.predicted)}/{ms_words(of.measured)}"


def _memory_cell(of: MemoryAccuracy | None) -> str:
    if of is None:
        return "-"
    return f"{number(of.predicted.value / MIB)}/{number(of.measured_bytes / MIB)}"


def legend_lines(accuracies: Sequence[Accuracy]) -> list[str]:
    """What the marks mean that these rows use; empty when they use none."""
    marks = {BASIS_MARKS[of.predicted.basis] for a in accuracies for of in a.phases.values()}
    marks |= {BASIS_MARKS[a.total.predicted.basis] for a in accuracies}
    if any(a.oversubscribed for a in accuracies):
        marks.add(OVERSUBSCRIBED_MARK)
    return [f"{mark} {meaning}" for mark, meaning in LEGEND.items() if mark in marks]


def console_for(stream: IO[str] | None = None) -> Console:
    """A console on `stream` (default: standard output); without a terminal or COLUMNS nothing wraps."""
    from rich.console import Console

    target = stream if stream is not None else sys.stdout
    width = width_of(target, MOST_WIDTH)
    return Console(file=target, width=width, highlight=False, markup=False)


def print_report(findings: Findings, console: Console | None = None) -> None:
    """Print the tables, and below them the findings in sentences; the verdict comes last."""
    console = console if console is not None else console_for()
    cases = by_case(findings.accuracies)
    if cases:
        for table in (totals_table(cases), *phases_tables(cases, findings.summary)):
            console.print(table)
            console.print()
        legend = legend_lines([case.newest for case in cases])
        _print(console, [*legend, ""] if legend else [])
    _print(console, sentences(findings))


def sentences(findings: Findings) -> list[str]:
    """All that is not in the tables, one line each; "" between paragraphs."""
    in_paper = any(row.ours is not None for row in findings.paper)
    lines = [strategies_line(findings.paper)] if in_paper else []
    lines += summary_lines(findings.summary, strategies=not in_paper)
    if findings.accuracies:
        lines += choice_lines(findings.choices)
    if findings.causes:
        lines += ["", "Largest causes of error:", *(f"- {x.words}" for x in findings.causes)]
    if in_paper:
        lines += ["", *comparable(findings.paper, findings.accuracies)]
    if findings.checks:
        lines += ["", *check_lines(findings.checks)]
    if findings.missing:
        lines += ["", f"Missing or not scored ({len(findings.missing)}):"]
        lines += [f"- {of.line}" for of in findings.missing[:MOST_MISSING]]
        more = len(findings.missing) - MOST_MISSING
        lines += [f"- and {more} more, in report.json"] if more > 0 else []
    if findings.verdict is not None:
        lines += ["", *verdict_lines(findings.verdict)]
    return lines


def _print(console: Console, lines: Sequence[str]) -> None:
    """Whole lines in a pipe; in a terminal they wrap, those of a list with an indent."""
    for line in map(plain, lines):
        if not console.is_terminal:
            console.print(line, markup=False, soft_wrap=True)
            continue
        indent = "  " if line.startswith("- ") else ""
        text = fill(line, console.width, subsequent_indent=indent, break_on_hyphens=False)
        console.print(text, markup=False)
