"""Say where the time of a training run went, from the traces of its ranks.

Traces are those of torch.profiler, one file for each rank: what was trained, what its steps took, which
rank was waited for, which collectives and operators took how long. Exit code 1 where something is wrong
with the run. Example: calib explain rank*.json.gz
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calib.foundation.errors import FileError, InputError
from calib.importing.trainings import is_trace
from calib.options import Json
from calib.reports.tables.traced_run import configuration_lines, traced_tables
from calib.terminal.printing import print_json, print_table, say
from calib.training.traces.run import TracedRun, read_run

FAULTS = 1  # exit code


def command(
    traces: Annotated[
        list[Path],
        typer.Argument(help="The traces of a run's ranks: JSON of torch.profiler, or .gz."),
    ],
    as_json: Json = False,
) -> None:
    run = read_run(given(traces))
    if as_json:
        print_json(run.model_dump())
    else:
        show(run)
    if run.faults:
        raise typer.Exit(FAULTS)


def given(paths: list[Path]) -> list[Path]:
    """The traces that were named. Raises InputError, FileError for what is none."""
    if len({path.resolve() for path in paths}) < len(paths):
        raise InputError("the same file is given twice")
    other = [path for path in paths if not is_trace(path)]
    if other:
        raise FileError(f"{other[0]} is no trace of torch.profiler")
    return paths


def show(run: TracedRun) -> None:
    """What it was, what is wrong with it, then the tables."""
    for line in configuration_lines(run.configuration):
        typer.echo(line)
    typer.echo()
    for fault in run.faults:
        typer.echo(f"{fault.kind}: {fault.says}")
    if run.faults:
        typer.echo()
    for table in traced_tables(run):
        print_table(table)
    for note in run.notes:
        say(f"note: {note}")
