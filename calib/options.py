"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from calib.foundation.division import Gradients, Schedule
from calib.foundation.errors import InputError

MOST = 10_000_000  # ranks or samples: beyond any machine, and safe to multiply

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Where to write the result.")]
RanksOption = Annotated[
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
HangSeconds = Annotated[
    float,
    typer.Option(min=1.0, max=3600.0, help="Give ranks up that make no progress for so long."),
]
Across = Annotated[
    bool, typer.Option("--across", help="Also where they are of different clusters.")
]

# of a calibration
Models = Annotated[
    str | None, typer.Option(help="Comma-separated models or model.json files; default the minis.")
]
Budget = Annotated[
    str | None, typer.Option(help="Time to measure for, as 90s, 10m, 1.5h; default 4m.")
]
Quick = Annotated[bool, typer.Option("--quick", help="A coarse grid and little time.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Shuffles cases and makes data; default 0.")]

# of what is predicted, searched or trained
BatchPerPe = Annotated[
    int | None,
    typer.Option(min=1, max=MOST, help="Samples per rank and iteration; default by model."),
]
GlobalBatch = Annotated[
    int | None, typer.Option(min=1, max=MOST, help="Global batch instead, the same for all p.")
]
ParameterFile = Annotated[Path, typer.Option(help="parameters.json.")]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH*=N",
        help="What if a parameter were another, as "
        "'communication.inter_node.beta_s_per_byte*=0.5'; = *= /= +=; repeatable.",
    ),
]
Pes = Annotated[
    str, typer.Option("-p", help="ranks: 1,2,4; 4:64 doubles; 2:10:+4 has steps; or a mixture.")
]
FormName = Annotated[
    Literal["measured", "paper"],
    typer.Option(help="measured: of the shapes that ranks run; paper: ParaDL's equations."),
]
OptimizerOption = Annotated[str, typer.Option(help="sgd, momentum or adam.")]
SamplesOption = Annotated[
    int | None,
    typer.Option(min=1, max=10**12, help="Samples of an epoch, which is then predicted too."),
]
Inner = Annotated[
    int | None,
    typer.Option(
        min=1, max=MOST, help="p2 of a hybrid: ranks of a group; default the most inside a node."
    ),
]
Segments = Annotated[
    int | None, typer.Option(min=1, max=MOST, help="Micro-batches of a pipeline; default 4.")
]
ScheduleName = Annotated[Schedule | None, typer.Option(help="Of a pipeline; default gpipe.")]
Boundaries = Annotated[
    str | None,
    typer.Option(help="Index of the first layer of every stage but the first; default balanced."),
]
Grid = Annotated[
    str | None, typer.Option(help="Parts of an image along height, width, depth, as 4x2.")
]
SplitUntil = Annotated[str, typer.Option(help="Last layer that a spatial strategy splits.")]
OverlapOption = Annotated[
    bool, typer.Option("--overlap", help="Data: the exchange goes on during the backward.")
]
Sharded = Annotated[
    bool, typer.Option("--sharded-optimizer", help="Data: a rank updates 1/p of the weights.")
]
GradientsOption = Annotated[
    Gradients | None, typer.Option(help="Of data+spatial, who exchanges between groups.")
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
