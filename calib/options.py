"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calib.foundation.errors import InputError

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
