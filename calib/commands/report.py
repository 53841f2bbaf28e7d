"""Hold training runs against their predictions: tables, a page.

Every run directory that is reported is remembered in calib.db beside it, for `calib history`. Example:
calib report runs/latest
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from calib.foundation.files import destination, write_whole
from calib.foundation.run_files import PARAMETERS_FILE, REPORT_HTML
from calib.options import Json, share_of
from calib.reports.findings import Findings
from calib.reports.writers.csv import csv_text
from calib.reports.writers.json import as_dict
from calib.reports.writers.junit import junit_text
from calib.reports.writers.markdown import markdown_text
from calib.scoring.findings import LEAST_ACCURACY, report_of
from calib.terminal.printing import check_targets, print_json, say
from calib.terminal.report import show


def command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The page; default RUN/report.html, of several beside them."
        ),
    ] = None,
    parameters: Annotated[
        Path | None, typer.Option(help="A parameter file, for runs that have none.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Also write a table of all points, CSV.")] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Also write the report as Markdown.")
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Also write JUnit XML, for CI.")] = None,
    least_accuracy: Annotated[
        str | None,
        typer.Option(
            help="Exit with 1 where a strategy's mean is below, as 80%, intervals do not hold, or a "
            "step is open, with 2 where something is missing, with 3 where the machine was disturbed."
        ),
    ] = None,
    history: Annotated[
        str | None, typer.Option(help="A file or a database's URL; default calib.db beside RUN.")
    ] = None,
    no_history: Annotated[
        bool, typer.Option("--no-history", help="Do not remember these runs.")
    ] = False,
    since: Annotated[str, typer.Option(help="Steps from this date on count, as 2026-11-01.")] = "",
    baseline: Annotated[
        str, typer.Option(help="Nights that are the normal, as 2026-10-01..2026-10-31.")
    ] = "",
    as_json: Json = False,
) -> None:
    least = share_of(least_accuracy, "--least-accuracy")
    files = {"-o": output, "--csv": csv, "--markdown": markdown, "--junit": junit}
    read = [parameters] if parameters else []
    check_targets(files, *read, *(run / PARAMETERS_FILE for run in runs))
    made = report_of(
        runs,
        history,
        record=not no_history,
        since=since,
        baseline=baseline,
        least_accuracy=least or LEAST_ACCURACY,
        parameters_file=parameters,
    )
    findings = made.findings
    page = destination(output) if output else default_page(runs)
    made.write(page)
    forms: tuple[tuple[Path | None, Callable[[Findings], str]], ...] = (
        (csv, csv_text),
        (markdown, markdown_text),
        (junit, partial(junit_text, least_accuracy=least or LEAST_ACCURACY)),
    )
    for path, text_of in forms:
        if path is not None:
            write_whole(destination(path), text_of(findings))
            say(f"written: {path}")
    if as_json:
        print_json(as_dict(findings))
    else:
        show(findings)
        say(f"page: {page}")
    if least is not None and findings.verdict and findings.verdict.code:
        raise typer.Exit(findings.verdict.code)


def default_page(runs: list[Path]) -> Path:
    """report.html of the one run; of several, beside the first."""
    return (runs[0] if len(runs) == 1 else runs[0].resolve().parent) / REPORT_HTML
