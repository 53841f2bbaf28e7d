"""Check a parameter file: what is thin, noisy, stale or extrapolated, and what to do about it.

Exit code 0: nothing worse than notes; 1: there are warnings; 2: the file cannot be read. Example:
calib check parameters.json
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calib.options import MINIS, Json, print_json, say, table
from foundation.errors import CalibError

if TYPE_CHECKING:
    from fitting.findings import Finding

WARNED = 1


def command(
    parameters: Annotated[Path, typer.Argument(help="A parameter file, as `calib fit` makes it.")],
    max_age_days: Annotated[
        float, typer.Option(min=0.0, help="A measurement that is older than this is stale.")
    ] = 30.0,
    as_json: Json = False,
) -> None:
    from datetime import UTC, datetime

    from fitting.parameters import Parameters
    from fitting.review import review

    content = Parameters.read(parameters)
    findings = review(content, datetime.now(UTC), max_age_days, gradient_bytes())
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        show(findings)
    if any(finding.severity == "warning" for finding in findings):
        raise typer.Exit(WARNED)


def gradient_bytes() -> dict[str, int]:
    """Bytes that the default models exchange in one iteration; of those that can be traced here."""
    from training.models.specs import spec

    sizes = {}
    for name in MINIS:
        try:
            sizes[name] = 4 * spec(name).parameter_items
        except CalibError as error:
            say(f"note: {name} was not checked: {error}")
    return sizes


def show(findings: list[Finding]) -> None:
    """The findings by severity, and how many there are of each."""
    from reports.words import plain

    for severity in ("warning", "note"):
        mine = [finding for finding in findings if finding.severity == severity]
        if mine:
            columns = ["section", "what", "subject", "finding"]
            rows = [[f.section, f.kind, plain(f.subject), plain(f.message)] for f in mine]
            table(f"{severity.capitalize()}s ({len(mine)})", columns, rows)
    kinds = Counter(finding.kind for finding in findings if finding.severity == "warning")
    warnings = kinds.total()
    which = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    say(f"{warnings} warning(s){f': {which}' if which else ''}; {len(findings) - warnings} note(s)")
