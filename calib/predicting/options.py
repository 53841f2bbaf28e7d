"""Options of what is predicted or trained: a strategy, its division, the parameters; what they make."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calib.fitting.parameters.file import Parameters
from calib.fitting.parameters.memory import STATES
from calib.foundation.errors import FileError, InputError
from calib.oracle.costs.machine import Machine
from calib.oracle.projection import Form
from calib.oracle.sweep import Choices
from calib.oracle.what_if.changes import apply
from calib.predicting.choices import Predictor
from calib.rundir import LATEST_PARAMETERS

ParameterFile = Annotated[Path, typer.Option(help="parameters.json.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH*=N",
        help="What if a parameter were another, as "
        "'communication.inter_node.beta_s_per_byte*=0.5'; = *= /= +=; repeatable.",
    ),
]
Pes = Annotated[
    str, typer.Option("-p", help="PEs: 1,2,4; 4:64 doubles; 2:10:+4 has steps; or a mixture.")
]
FormName = Annotated[
    str, typer.Option(help="measured: of the shapes that ranks run; paper: ParaDL's equations.")
]
Optimizer = Annotated[str, typer.Option(help="sgd, momentum or adam.")]
Samples = Annotated[
    int | None,
    typer.Option(min=1, max=10**12, help="Samples of an epoch, which is then predicted too."),
]
Boundaries = Annotated[
    str | None,
    typer.Option(help="Index of the first layer of every stage but the first; default balanced."),
]
ScheduleName = Annotated[
    str | None, typer.Option(help="Of a pipeline: gpipe or 1f1b; default gpipe.")
]
Grid = Annotated[
    str | None, typer.Option(help="Parts of an image along height, width, depth, as 4x2.")
]
SplitUntil = Annotated[str, typer.Option(help="Last layer that a spatial strategy splits.")]
Overlap = Annotated[
    bool, typer.Option("--overlap", help="Data: the exchange goes on during the backward.")
]
Sharded = Annotated[
    bool, typer.Option("--sharded-optimizer", help="Data: a PE updates 1/p of the weights.")
]


def choices_of(
    inner: int | None,
    segments: int | None,
    schedule: str | None,
    boundaries: str | None,
    grid: str | None,
    split_until: str,
) -> Choices:
    """What the options give the strategies. Raises InputError."""
    if schedule not in (None, "gpipe", "1f1b"):
        raise InputError(f"unknown schedule {schedule!r}; known: gpipe, 1f1b")
    return Choices(
        inner or 0,
        segments or 4,
        "1f1b" if schedule == "1f1b" else "gpipe",
        whole_numbers(boundaries, ",", "--boundaries", "3,7,12"),
        whole_numbers(grid, "x", "--grid", "4x2"),
        split_until,
    )


def whole_numbers(text: str | None, between: str, option: str, example: str) -> tuple[int, ...]:
    """Numbers from 1 in their order. Raises InputError."""
    words = [] if text is None else [word.strip() for word in text.split(between)]
    if not all(word.isascii() and word.isdecimal() and int(word[:9]) > 0 for word in words):
        raise InputError(f"{option} {text!r} is not like {example}")
    if any(len(word) > 9 for word in words) or (option == "--grid" and len(words) > 3):
        raise InputError(f"{option} {text!r}: too many or too large")
    return tuple(map(int, words))


def predictor_of(
    path: Path,
    settings: list[str] | None,
    choices: Choices,
    form: str,
    optimizer: str,
    samples: int | None,
    explain: bool = False,
) -> Predictor:
    """The machine of a parameter file, with what --set changes. Raises InputError or FileError."""
    if form not in ("measured", "paper"):
        raise InputError(f"unknown form {form!r}; known: measured, paper")
    if optimizer not in STATES:
        raise InputError(f"unknown optimizer {optimizer!r}; known: {', '.join(STATES)}")
    if path == LATEST_PARAMETERS and not path.exists():
        raise FileError(
            f"there is no {path} here; `calib calibrate` makes one, or give --parameters FILE"
        )
    machine = Parameters.read(path)
    if settings:
        machine = apply(machine, settings)
    named: Form = "paper" if form == "paper" else "measured"
    return Predictor(Machine(machine), choices, named, optimizer, samples, explain)


def something(predictor: Predictor) -> None:
    """Raise the MissingParameter that kept every point from being predicted, if one did."""
    if predictor.missing is not None and not predictor.predicted:
        raise predictor.missing
