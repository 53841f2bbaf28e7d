"""A report in the terminal: its tables, the summary and the notes."""

from __future__ import annotations

from calib.reports.findings import Findings
from calib.reports.terminal.report import print_report
from calib.terminal.printing import say


def show(findings: Findings) -> None:
    """The tables and the summary, then the notes."""
    print_report(findings)
    for note in findings.notes:
        say(f"note: {note}")
