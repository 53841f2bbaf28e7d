"""A report in the terminal: tables of iterations and phases, the rest in sentences."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from textwrap import fill

import typer

from calib.foundation.text import plain
from calib.reports.findings import Findings
from calib.reports.scoring.cases import by_case
from calib.reports.scoring.paper import comparable
from calib.reports.sentences import (
    check_lines,
    choice_lines,
    legend_lines,
    strategies_line,
    summary_lines,
    verdict_lines,
)
from calib.reports.tables.scores import iterations, phases
from calib.reports.tables.table import width_of
from calib.terminal.printing import print_table, say

MOST_MISSING = 20  # named; of many nights there may be hundreds


def show(findings: Findings) -> None:
    """The tables, the findings in sentences with the verdict last, and the notes."""
    cases = by_case(findings.accuracies)
    points = [case.newest for case in cases]
    if cases:
        print_table(iterations(cases, brief=True))
        print_table(phases(points, findings.summary, brief=True))
        legend = legend_lines(points)
        _print([*legend, ""] if legend else [])
    _print(sentences(findings))
    for note in findings.notes:
        say(f"note: {note}")


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


def _print(lines: Sequence[str]) -> None:
    """Whole lines in a pipe; in a terminal they wrap, those of a list with an indent."""
    for line in map(plain, lines):
        indent = "  " if line.startswith("- ") else ""
        typer.echo(
            fill(line, width_of(), subsequent_indent=indent, break_on_hyphens=False)
            if sys.stdout.isatty()
            else line
        )
