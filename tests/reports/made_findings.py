"""Findings of points made by hand, put together as a report does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calib.reports.findings import Findings
from calib.reports.scoring.accuracy import Accuracy, Missing
from calib.reports.scoring.causes import causes
from calib.reports.scoring.choice import choices
from calib.reports.scoring.paper import paper_rows
from calib.reports.scoring.summary import summary

# what a model may be called by somebody who means harm, or by accident
HOSTILE = (
    "<script>alert(1)</script>",
    "=cmd|' /C calc'!A0",
    "+1",
    "-1",
    "@SUM(A1)",
    "a|b\\|c",
    "a,\"b\";'c'",
    "]]> --> &amp; &#0;",
    "*bold* _it_ `code` ~~no~~ #1 @you $x$",
    "[x](javascript:alert(1)) ![y](//e.org/z)",
    "https://evil.example www.evil.example <https://evil.example>",
    "line\nbreak\r\n\ttab",
    "\x1b[31mred\x00\x08\x7f\x9b",
    "\u202egnp.exe\ufffe",
    " - 1. leading",
)


def made(points: Sequence[Accuracy], missing: Sequence[Missing] = (), **more: Any) -> Findings:
    """The findings of one run directory with these points."""
    whole = summary(points)
    content = {
        "runs": ["runs/one"],
        "accuracies": points,
        "summary": whole,
        "missing": missing,
        "causes": causes(points),
        "choices": choices(points),
        "paper": paper_rows(whole),
    }
    return Findings(**(content | more))
