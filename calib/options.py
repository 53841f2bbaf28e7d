"""Options that several verbs share, and how they print."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from calib.foundation.errors import InputError
from calib.foundation.files import destination, write_whole
from calib.foundation.text import plain_lines

MOST = 10_000_000  # PEs or samples: beyond any machine, and safe to multiply

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Where to write the result.")]
Ranks = Annotated[
    int | None,
    typer.Option("--ranks", "-n", min=1, help="Ranks to start; default one per physical core."),
]
Launcher = Annotated[
    str,
    typer.Option(
        help="How ranks are started: local, slurm, or a template such as "
        "'mpiexec -n {n} -hosts a,b'."
    ),
]
Models = Annotated[
    str | None, typer.Option(help="Comma-separated models or model.json files; default the minis.")
]
BatchPerPe = Annotated[
    int | None,
    typer.Option(min=1, max=MOST, help="Samples per PE and iteration; default by model."),
]

MINIS = ("vgg16-mini", "resnet50-mini", "cosmoflow-mini")


def default_ranks(launcher: str = "local") -> int:
    """One rank per physical core that this process may use; under Slurm, the allocation's tasks."""
    tasks = os.environ.get("SLURM_NTASKS", "") if launcher == "slurm" else ""
    if tasks.isdecimal() and int(tasks):
        return int(tasks)
    from calib.microbench.machine.placement import distinct_cores, usable_cores

    return max(1, len(distinct_cores(usable_cores())))


def model_list(text: str | None) -> list[str]:
    """The names in a comma-separated option. Raises InputError when there is none."""
    if text is None:
        return list(MINIS)
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise InputError("--models names no model")
    return names


def number_list(text: str, option: str) -> list[int]:
    """The positive whole numbers in a comma-separated option. Raises InputError."""
    try:
        numbers = sorted({int(word) for word in text.split(",")})
    except ValueError as error:
        raise InputError(f"{option} {text!r} is not a list of numbers such as 1,2,4") from error
    if numbers[0] < 1 or numbers[-1] > MOST:
        raise InputError(f"{option}: numbers must be from 1 to {MOST}")
    return numbers


def print_json(content: Any) -> None:
    """One JSON document on stdout."""
    typer.echo(json_text(content))


def save(path: Path | None, content: Any) -> None:
    """Write a JSON document to `path` if one was given, whole or not at all."""
    if path is not None:
        write_whole(destination(file_of(path, "-o")), json_text(content) + "\n")


def file_of(path: Path, option: str) -> Path:
    """The path that an option gives for a file. Raises InputError where it is a directory, as '' is."""
    if os.path.isdir(path):  # Path.is_dir raises where the name is too long
        raise InputError(f"{option} {path} is a directory; give it the name of a file")
    return path


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
    """Print a table on stdout, as wide as COLUMNS or the terminal."""
    from calib.reports.terminal.layout import table_text

    typer.echo(table_text(title, columns, rows, least), nl=False)
