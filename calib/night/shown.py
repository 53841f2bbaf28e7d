"""A night in a terminal or a mail: start, check, verdict."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from typing import Any

import typer

from calib.foundation.run_files import REPORT_HTML
from calib.foundation.text import plain
from calib.foundation.words import seconds_words, signed_percent
from calib.night.machine import version_changes
from calib.night.options import Begun
from calib.reports.findings import Findings
from calib.reports.night import Check
from calib.reports.sentences import VERDICTS, summary_lines
from calib.reports.writers.json import as_dict
from calib.terminal.printing import say, table

CHECK_COLUMNS = ["what", "cases", "change", "farthest case"]


def announce(begun: Begun) -> None:
    """What the night is, and what is to be known before it begins."""
    say(
        f"night {begun.run}: {len(begun.missing())} points of {begun.night.iterations} iterations, "
        f"with the parameters of {begun.night.calibration}"
    )
    for line in begun.said:
        say(f"note: {plain(line)}")
    if changes := version_changes(begun.calibrated_on, begun.cluster):
        say(f"versions since the calibration: {plain(', '.join(changes))}")


def show(begun: Begun, findings: Findings, whole: bool) -> None:
    """The short report, as in a mail: check, accuracy, verdict with what is missing."""
    if begun.night.checks:
        table("Check of the calibration", CHECK_COLUMNS, check_rows(begun.night.checks))
    for line in summary_lines(findings.summary):
        typer.echo(line)
    for line in findings.notes:
        typer.echo(f"note: {plain(line)}")
    if (begun.run / REPORT_HTML).exists():
        typer.echo(f"page: {begun.run / REPORT_HTML}")
    if not whole:
        typer.echo(
            f"stopped before its end; `calib nightly -o {begun.run}` goes on with what is missing"
        )
    if findings.verdict:
        typer.echo(f"Verdict: {VERDICTS[findings.verdict.code]}:")
        for line in findings.verdict.lines:
            typer.echo(f"- {plain(line)}")


def as_content(begun: Begun, findings: Findings, whole: bool, code: int) -> dict[str, Any]:
    """What --json prints."""
    return {
        "run": str(begun.run),
        "code": code,
        "whole": whole,
        "night": begun.night.model_dump(),
        **as_dict(findings),
    }


def check_rows(checks: Sequence[Check]) -> list[list[str]]:
    """A row per kind of case: the geometric mean change, and the farthest case with its two times.

    The first of these is the calibration's, the second tonight's.
    """
    groups: dict[str, list[tuple[float, Check]]] = {}
    for check in checks:
        ratio = log(check.measured.value / check.expected.value)
        groups.setdefault(check.what, []).append((ratio, check))
    rows = []
    for what, of in groups.items():
        far, worst = max(of, key=lambda pair: abs(pair[0]))
        mean = exp(sum(ratio for ratio, _ in of) / len(of)) - 1.0
        rows.append(
            [
                plain(what),
                str(len(of)),
                signed_percent(mean),
                f"{signed_percent(exp(far) - 1.0)} {plain(case_words(worst))}: "
                f"{seconds_words(worst.expected.value)} -> {seconds_words(worst.measured.value)}",
            ]
        )
    return rows


def case_words(check: Check) -> str:
    """A case in few words: a layer by its shapes and direction, not its whole key."""
    key, _, direction = check.case.rpartition(", ")
    words = key.split("|")
    return f"{words[1]}, {direction}" if check.kind == "kernels" and len(words) > 1 else check.case
