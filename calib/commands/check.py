"""Check a parameter file: what is thin, noisy, stale, and why.

It also says what is extrapolated, and what to do about each. Warnings are grouped by cause; --json
lists every finding. Exit code 0: at most notes; 1: warnings; 2: the file cannot be read. Example:
calib check parameters.json
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from textwrap import shorten
from typing import Annotated

import typer

from calib.fitting.parameters.file import Parameters
from calib.fitting.parameters.findings import Cause, Finding, by_cause
from calib.fitting.review.review import review
from calib.foundation.errors import CalibError
from calib.foundation.text import plain
from calib.options import MINIS, Json
from calib.terminal.printing import print_json, say
from calib.training.models.specs import spec

WARNED = 1
SHOWN = 4  # causes, a line each
WIDTH = 100


def command(
    parameters: Annotated[Path, typer.Argument(help="A parameter file, as `calib fit` makes it.")],
    max_age_days: Annotated[
        float, typer.Option(min=0.0, help="A measurement that is older than this is stale.")
    ] = 30.0,
    as_json: Json = False,
) -> None:
    content = Parameters.read(parameters)
    findings = review(content, datetime.now(UTC), max_age_days, gradient_bytes())
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        show(findings)
    if any(finding.severity == "warning" for finding in findings):
        raise typer.Exit(WARNED)


def gradient_bytes() -> dict[str, int]:
    """Bytes that the default models exchange in an iteration, for those that can be traced here."""
    sizes = {}
    for name in MINIS:
        try:
            sizes[name] = 4 * spec(name).parameter_items
        except CalibError as error:
            say(f"note: {name} was not checked: {error}")
    return sizes


def show(findings: list[Finding]) -> None:
    """One line for each cause of warnings, at most SHOWN, and one for the rest: five in all."""
    warnings = [finding for finding in findings if finding.severity == "warning"]
    causes = by_cause(warnings)
    for cause, mine in causes[:SHOWN]:
        typer.echo(line(cause, mine))
    left = [f"{len(mine)} {cause.kind} ({cause.words})" for cause, mine in causes[SHOWN:]]
    rest = [f"not shown: {', '.join(left)}"] if left else []
    rest += ["--json lists all"] if findings else []
    counts = f"{len(warnings)} warning(s); {len(findings) - len(warnings)} note(s)"
    say("; ".join([counts, *rest]))


def line(cause: Cause, mine: list[Finding]) -> str:
    """A single finding in full; of several, where they are and what fixes them."""
    if len(mine) == 1:
        (one,) = mine
        where = "" if one.section == "provenance" else f"{plain(one.subject)}: "
        return shorten(f"{one.kind}: {where}{plain(one.message)}", WIDTH, placeholder=" ...")
    sections = Counter(finding.section.replace("_", " ") for finding in mine)
    where = ", ".join(f"{count} of {section}" for section, count in sections.most_common())
    found = f"{len(mine)} {cause.kind}: {cause.words} ({cause.remedy}): {where}"
    return shorten(found, WIDTH, placeholder=" ...")
