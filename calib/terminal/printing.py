"""How a verb prints: lines and tables for people, one JSON document for programs."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from calib.foundation.errors import InputError
from calib.foundation.files import destination, write_whole
from calib.foundation.run_files import (
    CALIBRATED_ON,
    CLUSTER_FILE,
    MANIFEST_FILE,
    NIGHT_FILE,
    PREDICTIONS_FILE,
    SAMPLES_FILE,
)
from calib.foundation.text import plain_lines
from calib.reports.tables.table import Table, table_text

# written by the steps of a run alone: no option of a verb may replace them
MEASURED = {CALIBRATED_ON, CLUSTER_FILE, MANIFEST_FILE, NIGHT_FILE, PREDICTIONS_FILE, SAMPLES_FILE}


def print_json(content: Any) -> None:
    """One JSON document on stdout."""
    typer.echo(json_text(content))


def save(path: Path | None, content: Any) -> None:
    """Write a JSON document to `path` if one was given, whole or not at all."""
    if path is not None:
        write_whole(destination(file_of(path, "-o")), json_text(content) + "\n")


def file_of(path: Path, option: str, *read: Path) -> Path:
    """The path that an option gives for a file to write.

    Raises InputError where it is a directory, as '' is; one of the files that are `read`; or one of
    those of a run directory that hold what was measured.
    """
    if os.path.isdir(path):  # Path.is_dir raises where the name is too long
        raise InputError(f"{option} {path} is a directory; give it the name of a file")
    there = os.path.exists(path)
    if there and any(os.path.exists(other) and os.path.samefile(path, other) for other in read):
        raise InputError(f"{option} {path} is one of the files that are read; name another")
    if there and path.name in MEASURED:
        raise InputError(f"{option} {path} holds what was measured; name another file")
    return path


def check_targets(given: Mapping[str, Path | None], *read: Path) -> None:
    """Check the files that options name for writing, as `file_of`, before any work is done.

    Raises InputError where two of them name the same file, too.
    """
    named: dict[str, str] = {}
    for option, path in given.items():
        if path is not None:
            place = os.path.realpath(file_of(path, option, *read))
            if place in named:
                raise InputError(f"{named[place]} and {option} name the same file, {path}")
            named[place] = option


def json_text(content: Any) -> str:
    """JSON of a number is finite: null stands for what is not."""
    try:
        return json.dumps(content, indent=1, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(content), indent=1, allow_nan=False)


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def say(text: str) -> None:
    """A line for people, on stderr so that --json output stays clean."""
    sys.stdout.flush()  # tables go to stdout; keep the order where both are one stream
    print(plain_lines(text), file=sys.stderr, flush=True)


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    least: Sequence[Sequence[str]] | None = None,
) -> None:
    """Print a table on stdout, as wide as COLUMNS or the terminal; `least` as a Table has it."""
    typer.echo(table_text(Table(title, columns, rows, least=least)), nl=False)


def print_table(of: Table) -> None:
    """A table with its remarks and an empty line; its title alone where it has no row."""
    typer.echo(table_text(of) if of.rows else f"{of.title}\n", nl=False)
    for remark in of.remarks:
        typer.echo(f"  {remark}")
    typer.echo()
