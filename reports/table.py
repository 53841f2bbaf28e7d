"""The report in a terminal: totals, phases, the summary in words, and the runs without a score.

Nothing is cut off with an ellipsis: where there is no terminal, the console is made as wide as the
tables need; in a narrow one, cells fold.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

from reports.accuracy import Accuracy, occurring, samples_words
from reports.summary import Summary
from reports.words import (
    BASIS_MARKS,
    LEGEND,
    OVERSUBSCRIBED_MARK,
    measured_ms,
    percent,
    plain,
    predicted_ms,
    strategy_words,
    summary_lines,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

NO_TERMINAL_WIDTH = 10_000


def _table(title: str, columns: Sequence[tuple[str, bool]]) -> Table:
    """An empty table; a column is (header, whether it holds numbers)."""
    from rich import box
    from rich.table import Table

    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        collapse_padding=True,
    )
    for header, is_number in columns:
        table.add_column(header, justify="right" if is_number else "left", overflow="fold")
    return table


CASE_COLUMNS = (("model", False), ("strategy", False), ("p", True))
BATCH_COLUMN = ("batch\nper PE", True)


def _case_cells(accuracy: Accuracy) -> list[str]:
    return [plain(accuracy.model), strategy_words(accuracy), str(accuracy.p)]


def _needs_batch(accuracies: Sequence[Accuracy]) -> bool:
    """Whether model, strategy and p alone would name two different cases."""
    cases = {(a.model, a.strategy, a.layout, a.p, a.batch_per_pe) for a in accuracies}
    return len({case[:-1] for case in cases}) < len(cases)


def totals_table(accuracies: Sequence[Accuracy]) -> Table:
    """Seconds of an iteration (in ms) with 95% intervals, and the accuracy, one row per point."""
    from rich.text import Text

    numbers = (("predicted\nms [95%]", True), ("measured\nms [95%]", True), ("accuracy\n%", True))
    table = _table("Iteration", (*CASE_COLUMNS, BATCH_COLUMN, *numbers))
    for accuracy in accuracies:
        total = accuracy.total
        cells = [
            *_case_cells(accuracy),
            samples_words(accuracy.batch_per_pe),
            predicted_ms(total.predicted, interval=True),
            measured_ms(total.measured, interval=True),
            percent(total.accuracy).removesuffix("%"),
        ]
        table.add_row(*map(Text, cells))
    return table


def phases_table(accuracies: Sequence[Accuracy]) -> Table:
    """Predicted/measured ms of each phase that occurs, one row per point, in the totals' order.

    The batch has a column only where it tells two rows apart, so that the table fits 100 columns.
    """
    from rich.text import Text

    with_batch, phases = _needs_batch(accuracies), occurring(accuracies)
    columns = (*CASE_COLUMNS, *([BATCH_COLUMN] if with_batch else []))
    table = _table(
        "Phases, predicted/measured",
        (*columns, *((f"{phase}\nms", True) for phase in phases)),
    )
    for accuracy in accuracies:
        cells = _case_cells(accuracy)
        cells += [samples_words(accuracy.batch_per_pe)] if with_batch else []
        for phase in phases:
            of = accuracy.phases[phase]
            cells.append(f"{predicted_ms(of.predicted)}/{measured_ms(of.measured)}")
        table.add_row(*map(Text, cells))
    return table


def legend_lines(accuracies: Sequence[Accuracy]) -> list[str]:
    """What the marks mean that these rows use; empty when they use none."""
    marks = {BASIS_MARKS[of.predicted.basis] for a in accuracies for of in a.phases.values()}
    marks |= {BASIS_MARKS[a.total.predicted.basis] for a in accuracies}
    if any(a.oversubscribed for a in accuracies):
        marks.add(OVERSUBSCRIBED_MARK)
    return [f"{mark} {meaning}" for mark, meaning in LEGEND.items() if mark in marks]


def console_for(stream: IO[str] | None = None) -> Console:
    """A console on `stream` (default: standard output); without a terminal nothing wraps."""
    from rich.console import Console

    target = stream if stream is not None else sys.stdout
    width = None if target.isatty() else NO_TERMINAL_WIDTH
    return Console(file=target, width=width, highlight=False, markup=False)


def print_report(
    accuracies: Sequence[Accuracy],
    summary: Summary,
    unscored: Sequence[str] = (),
    console: Console | None = None,
) -> None:
    """Print both tables, their legend, the summary and the runs that were not scored, and why."""
    console = console if console is not None else console_for()
    soft = not console.is_terminal
    if accuracies:
        for table in (totals_table(accuracies), phases_table(accuracies)):
            console.print(table)
            console.print()
        legend = legend_lines(accuracies)
        for line in [*legend, ""] if legend else []:
            console.print(line, markup=False, soft_wrap=soft)
    for line in summary_lines(summary):
        console.print(line, markup=False, soft_wrap=soft)
    if unscored:
        console.print(f"\nNot scored ({len(unscored)}):", markup=False)
        for reason in unscored:
            console.print(f"  {plain(reason)}", markup=False, soft_wrap=soft)
