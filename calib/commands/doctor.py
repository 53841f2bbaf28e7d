"""Say what this machine can do and what will spoil its numbers.

Example: calib doctor --ranks 4
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from calib.driver.ranks import default_ranks
from calib.foundation.errors import MachineError
from calib.options import Json, Launcher, Output, Ranks
from calib.terminal.printing import print_json, save, table

if TYPE_CHECKING:
    from calib.microbench.doctor import Finding


def command(
    ranks: Ranks = None, launcher: Launcher = "local", output: Output = None, as_json: Json = False
) -> None:
    from calib.microbench.doctor import examine

    findings = examine(ranks or default_ranks(launcher), launcher)
    content = [finding.model_dump() for finding in findings]
    save(output, content)
    if as_json:
        print_json(content)
    else:
        show(findings)
    refuse(findings)


def show(findings: list[Finding]) -> None:
    """The findings as a table."""
    rows = [[f.verdict, f.name, f.found, f.advice] for f in findings]
    table("What this machine can do", ["", "what", "found", "advice"], rows, least=())


def refuse(findings: list[Finding]) -> None:
    """Raises MachineError when nothing can be measured."""
    from calib.microbench.doctor import can_measure

    if not can_measure(findings):
        bad = next(f for f in findings if f.verdict == "bad")
        raise MachineError(f"nothing can be measured here: {bad.name}: {bad.advice}")
