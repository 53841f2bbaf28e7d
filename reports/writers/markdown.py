"""Findings as Markdown, for a wiki or the summary of a GitHub job (tables as GitHub has them).

Every name and sentence is escaped: pipes, HTML and Markdown's own marks in them are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from calib.foundation.text import plain
from calib.reports.findings import Findings
from calib.reports.scoring.cases import by_case
from calib.reports.scoring.paper import comparable
from calib.reports.sentences import (
    check_lines,
    choice_lines,
    legend_lines,
    summary_lines,
    verdict_lines,
)
from calib.reports.tables.scores import iterations, memory, paper, phases
from calib.reports.tables.table import Table

ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
MARKS = re.compile(r"[\\`*_\[\]|~#$@]|:(?=//)|(?<=www)\.")
# what begins a list, a numbered list, or a rule
LIST = re.compile(r"[-+](?=[-+\s]|$)|\d+(?=[.)](?:\s|$))")


def markdown_text(findings: Findings) -> str:
    """The report in Markdown: iterations, phases, memory, strategies, the rest in lists."""
    cases = by_case(findings.accuracies)
    points = [case.newest for case in cases]
    lines = ["# Predicted and measured", ""]
    if findings.runs:
        lines += [f"Runs: {', '.join(map(escaped, findings.runs))}.", ""]
    lines += [*_list(summary_lines(findings.summary)), ""]
    if findings.accuracies:
        lines += [*_list(choice_lines(findings.choices)), ""]
    tables = [iterations(cases), phases(points, findings.summary)] if cases else []
    if any(point.memory for point in points):
        tables.append(memory(points))
    for table in tables:
        lines += [*_headed(table), ""]
    lines += [*_list(legend_lines(points)), ""]
    if findings.paper:
        beside = _list(comparable(findings.paper, findings.accuracies))
        lines += [*_headed(paper(findings.paper)), "", *beside, ""]
    sections = {
        "Largest causes of error": [cause.words for cause in findings.causes],
        "Check of the parameters": check_lines(findings.checks),
        "Verdict": verdict_lines(findings.verdict) if findings.verdict is not None else [],
        "Drift": findings.drift.words if findings.drift is not None else [],
        "Missing or not scored": [missing.line for missing in findings.missing],
        "Notes": findings.notes,
    }
    for title, content in sections.items():
        lines += [f"## {title}", "", *_list(content), ""] if content else []
    return "\n".join(lines)


def _headed(table: Table) -> list[str]:
    remarks = [line for remark in table.remarks for line in (escaped(remark), "")]
    return [f"## {escaped(table.title)}", "", *remarks, *table_lines(table)]


def escaped(text: str) -> str:
    """`text` as one line of Markdown that shows it as it is: no markup, no HTML, no link."""
    return "".join(ENTITIES.get(c, c) for c in MARKS.sub(r"\\\g<0>", plain(text)))


def _item(text: str) -> str:
    """As `escaped`, where a line begins: no list, rule or block of code either."""
    line = escaped(text.strip())
    return f"&#{ord(line[0])};{line[1:]}" if LIST.match(line) else line


def _list(lines: Iterable[str]) -> list[str]:
    return [f"- {_item(line)}" for line in lines]


def table_lines(of: Table) -> list[str]:
    """A table as GitHub has them: numbers to the right."""
    rule = ["--:" if name in of.numbers else ":--" for name in of.columns]
    head, *body = ([escaped(cell) for cell in row] for row in (of.columns, *of.rows))
    return [f"| {' | '.join(row)} |" for row in (head, rule, *body)]
