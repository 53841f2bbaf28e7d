"""The findings of `calib doctor` as a table."""

from __future__ import annotations

from collections.abc import Sequence

from calib.microbench.doctor import DoctorFinding
from calib.terminal.printing import table


def show(findings: Sequence[DoctorFinding]) -> None:
    """A row for each finding, with its advice."""
    rows = [[f.verdict, f.name, f.found, f.advice] for f in findings]
    table("What this machine can do", ["", "what", "found", "advice"], rows, least=())
