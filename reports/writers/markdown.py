"""Findings as Markdown, for a wiki or the summary of a GitHub job (tables as GitHub has them).

Every name and sentence is escaped: pipes, HTML and Markdown's own marks in them are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from calib.foundation.text import plain
from calib.foundation.words import number, percent
from calib.reports.findings import Findings
from calib.reports.scoring.accuracy import Accuracy, occurring
from calib.reports.scoring.cases import CaseRuns, by_case
from calib.reports.scoring.paper import comparable
from calib.reports.sentences import (
    check_lines,
    choice_lines,
    strategy_words,
    summary_lines,
    verdict_lines,
)
from calib.reports.terminal.report import legend_lines
from calib.reports.words import ms_words, samples_words

MIB = 2.0**20
ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
MARKS = re.compile(r"[\\`*_\[\]|~#$@]|:(?=//)|(?<=www)\.")
# what begins a list, a numbered list, or a rule
LIST = re.compile(r"[-+](?=[-+\s]|$)|\d+(?=[.)](?:\s|$))")


def markdown_text(findings: Findings) -> str:
    """The report in Markdown: points, phases, memory, strategies, the rest in lists."""
    cases = by_case(findings.accuracies)
    lines = ["# Predicted and measured", ""]
    if findings.runs:
        lines += [f"Runs: {', '.join(map(escaped, findings.runs))}.", ""]
    lines += [*_list(summary_lines(findings.summary)), ""]
    if findings.accuracies:
        lines += [*_list(choice_lines(findings.choices)), ""]
    if cases:
        points = [case.newest for case in cases]
        lines += ["## Iterations", "", *_totals(cases), ""]
        lines += ["## Phases", "", "Predicted / measured ms, and accuracy.", ""]
        lines += [*_phases(points), ""]
        if any(point.memory for point in points):
            lines += ["## Memory", "", *_memory(points), ""]
        lines += _list(legend_lines(points))
        lines += [""]
    sections = {
        "Strategies, beside the paper": _paper(findings),
        "Largest causes of error": _list(cause.words for cause in findings.causes),
        "Check of the parameters": _list(check_lines(findings.checks)),
        "Verdict": _list(verdict_lines(findings.verdict)) if findings.verdict is not None else [],
        "Drift": _list(findings.drift.words) if findings.drift is not None else [],
        "Missing or not scored": _list(f"{x.what}: {x.why}" for x in findings.missing),
        "Notes": _list(findings.notes),
    }
    for title, content in sections.items():
        lines += [f"## {title}", "", *content, ""] if content else []
    return "\n".join(lines)


def escaped(text: str) -> str:
    """`text` as one line of Markdown that shows it as it is: no markup, no HTML, no link."""
    return "".join(ENTITIES.get(c, c) for c in MARKS.sub(r"\\\g<0>", plain(text)))


def _item(text: str) -> str:
    """As `escaped`, where a line begins: no list, rule or block of code either."""
    line = escaped(text.strip())
    return f"&#{ord(line[0])};{line[1:]}" if LIST.match(line) else line


def _list(lines: Iterable[str]) -> list[str]:
    return [f"- {_item(line)}" for line in lines]


def _table(head: Sequence[str], words: int, rows: Iterable[Sequence[str]]) -> list[str]:
    """A table; the first `words` columns are to the left, numbers to the right."""
    rule = [":--" if k < words else "--:" for k in range(len(head))]
    body = [[escaped(cell) for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in ([*map(escaped, head)], rule, *body)]


def _case(of: Accuracy) -> list[str]:
    return [of.model, strategy_words(of), str(of.p), samples_words(of.batch_per_rank)]


CASE = ("model", "strategy", "p", "batch per rank")


def _totals(cases: Sequence[CaseRuns]) -> list[str]:
    many = any(case.runs > 1 for case in cases)
    head = [*CASE, "predicted ms [95%]", "measured ms [95%]", "accuracy", "overlap"]
    rows = []
    for case in cases:
        total = case.newest.total
        row = [
            *_case(case.newest),
            ms_words(total.predicted, interval=True),
            ms_words(total.measured, interval=True),
            percent(total.accuracy),
            "yes" if total.overlap else "no",
        ]
        of_all = [str(case.runs), percent(case.median), percent(case.worst)]
        rows.append([*row, *(of_all if many else [])])
    return _table([*head, *(["runs", "median", "worst"] if many else [])], 2, rows)


def _phases(points: Sequence[Accuracy]) -> list[str]:
    phases = occurring(points)
    rows = []
    for point in points:
        cells = []
        for of in (point.phases[phase] for phase in phases):
            pair = f"{ms_words(of.predicted)} / {ms_words(of.measured)}"
            occurs = of.predicted.value or of.measured.value
            cells.append(f"{pair}, {percent(of.accuracy)}" if occurs else "")
        rows.append([*_case(point), *cells])
    return _table([*CASE, *phases], 2, rows)


def _memory(points: Sequence[Accuracy]) -> list[str]:
    rows = [
        [
            *_case(point),
            f"{number(of.predicted.value / MIB)} [{number(of.predicted.low / MIB)}, "
            f"{number(of.predicted.high / MIB)}]",
            number(of.measured_bytes / MIB),
            percent(of.accuracy),
            "yes" if of.covered else "no",
        ]
        for point in points
        for of in [point.memory]
        if of is not None
    ]
    head = [*CASE, "predicted MiB [95%]", "measured MiB", "accuracy", "inside"]
    return _table(head, 2, rows)


def _paper(findings: Findings) -> list[str]:
    if not findings.paper:
        return []
    rows = [
        [row.strategy, str(row.points), percent(row.ours), percent(row.paper)]
        for row in findings.paper
    ]
    table = _table(("strategy", "points here", "here", "paper"), 1, rows)
    return [*table, "", *_list(comparable(findings.paper, findings.accuracies))]
