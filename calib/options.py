"""Options that several verbs share, and how their text is read."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from calib.foundation.division import Gradients, Schedule
from calib.foundation.environment import checked
from calib.foundation.errors import InputError
from calib.foundation.execution import USUAL, execution_of
from calib.foundation.layers import Shape

MOST = 10_000_000  # ranks or samples: beyond any machine, and safe to multiply

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Where to write the result.")]
RanksOption = Annotated[
    int | None,
    typer.Option("--ranks", "-n", min=1, help="Ranks to start; default one per GPU or core."),
]
DeviceOption = Annotated[
    Literal["cpu", "cuda"] | None,
    typer.Option(
        "--device",
        help="What layers run on: cpu or cuda; default cuda where GPUs are visible and PyTorch is "
        "built for CUDA.",
    ),
]
Libraries = Annotated[
    str | None,
    typer.Option(
        help="Comma-separated, the one that trains first: mpi, nccl, torch_gloo, torch_nccl, "
        "torch_mpi; default torch_mpi, of cuda torch_nccl. With nccl its algorithms are measured."
    ),
]
Launcher = Annotated[
    str,
    typer.Option(
        help="How ranks are started: local, slurm, slurm-pmix, or a template such as "
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

VariablesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME=VALUE",
        help="A variable that the ranks are started with; repeatable. Without it nothing is set, and "
        "they run in the environment of this shell.",
    ),
]
ExecutionOption = Annotated[
    str,
    typer.Option(
        help="How layers run: float32, tf32 (GPUs), float64, float16, bfloat16, or bfloat16-mixed "
        "(autocast); behind it +channels_last, +cuda_graph (GPUs)."
    ),
]

Executions = Annotated[
    str | None,
    typer.Option(
        "--execution",
        help="Comma-separated ways to run layers, each by itself: float32 (default), bfloat16, ...; "
        "`calib train` lists them.",
    ),
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
BatchPerRank = Annotated[
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
RankCounts = Annotated[
    str, typer.Option("-p", help="ranks: 1,2,4; 4:64 doubles; 2:10:+4 has steps; or a mixture.")
]
FormName = Annotated[
    Literal["measured", "paper"],
    typer.Option(help="measured: of the shapes that ranks run; paper: ParaDL's equations."),
]
OptimizerOption = Annotated[
    Literal["sgd", "momentum", "adam"], typer.Option(help="What updates the weights.")
]
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
SequenceParallel = Annotated[
    bool, typer.Option("--sequence-parallel", help="Tensor: 1/p of the tokens between its regions.")
]
Accumulate = Annotated[
    int | None,
    typer.Option(
        "--accumulate",
        min=1,
        max=MOST,
        help="Micro-batches of a rank whose gradients are added up before the exchange.",
    ),
]
AccumulateList = Annotated[
    str | None,
    typer.Option(
        "--accumulate", help="Micro-batches whose gradients are added up; a list as for -p."
    ),
]
GradientsOption = Annotated[
    Gradients | None, typer.Option(help="Of data+spatial, who exchanges between groups.")
]

MOST_NUMBERS = 100_000
MOST_BYTES = 2**50
SIZE_UNITS = {"": 1, "B": 1}
SIZE_UNITS |= {prefix: 1024**power for power, prefix in enumerate("KMGT", start=1)}  # nccl-tests'
SIZE_UNITS |= {f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", start=1)}
SIZE_UNITS |= {f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", start=1)}
MOST_SIZE = 1e21
A_SIZE = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,19})?)\s*([A-Za-z]*)")
MINIS = ("vgg16-mini", "resnet50-mini", "cosmoflow-mini")


def model_list(text: str | None) -> list[str]:
    """The names in a comma-separated option. Raises InputError when there is none."""
    if text is None:
        return list(MINIS)
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise InputError("--models names no model")
    return names


def execution_list(text: str | None) -> list[str]:
    """The canonical names in a comma-separated option, each once; float32 alone without the option.

    Raises InputError.
    """
    if text is None:
        return [USUAL]
    words = [word for word in text.split(",") if word.strip()]
    if not words:
        raise InputError("--execution names none")
    return list(dict.fromkeys(execution_of(word).name for word in words))


def numbers(text: str | None, option: str) -> list[int]:
    """Whole numbers from 1: "1,2,6", "4:64" (4, 8, ..., 64), "2:10:+4" (2, 6, 10), or a mixture.

    In rising order, each once; none where the option is not given. Raises InputError.
    """
    if text is None:
        return []
    found: set[int] = set()
    for word in text.split(","):
        found.update(_range(word, text, option))
        if len(found) > MOST_NUMBERS:
            raise InputError(f"{option} {text!r}: over {MOST_NUMBERS} numbers")
    return sorted(found)


def _range(word: str, text: str, option: str) -> Sequence[int]:
    ends, plus, step = word.partition(":+")
    parts = [*ends.split(":"), *([step] if plus else [])]
    digits = [part.strip() for part in parts]
    if len(parts) > 2 + bool(plus) or (plus and len(parts) != 3) or not all(map(_whole, digits)):
        raise InputError(
            f"{option} {text!r} is not a list of numbers such as 1,2,4, a range 4:64 that doubles, "
            "or one with steps 2:10:+4"
        )
    first, last, *by = [int(part) for part in digits] if len(digits) > 1 else [int(digits[0])] * 2
    if min(first, last, *by) < 1 or max(first, last) > MOST:
        raise InputError(f"{option}: numbers must be from 1 to {MOST}")
    if first > last:
        raise InputError(f"{option} {word!r}: a range goes up")
    if by:
        return range(first, last + 1, by[0])[: MOST_NUMBERS + 1]
    return [first << k for k in range((last // first).bit_length())]


def _whole(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and text.isascii() and len(text) < 20


def share_of(text: str | None, option: str) -> float | None:
    """A share as 1% or 0.01. Raises InputError where it is none between 0 and 1."""
    if text is None:
        return None
    word = text.strip()
    try:
        value = float(word.removesuffix("%")) / (100.0 if word.endswith("%") else 1.0)
    except ValueError:
        value = math.nan
    if not 0.0 < value < 1.0:
        raise InputError(f"{option} {text!r} is not a share such as 1% or 0.01")
    return value


def bytes_of(text: str, option: str) -> int:
    """The bytes in a size such as 16GiB, 40GB, 1.5TiB, 1000. Raises InputError."""
    found = A_SIZE.fullmatch(text.strip())
    nbytes = float(found[1]) * SIZE_UNITS.get(found[2], math.inf) if found else math.inf
    if not nbytes <= MOST_SIZE:  # nor NaN
        raise InputError(f"{option} {text!r} is not a size such as 16GiB or 40GB")
    return round(nbytes)


def size_range(text: str, option: str) -> tuple[int, int]:
    """Two ends in bytes from 64KiB:64MiB or 65536:67108864; one alone is both. Raises InputError."""
    values = [bytes_of(word, option) for word in text.split(":")]
    low, high = values[0], values[-1]
    if len(values) > 2 or not 1 <= low <= high <= MOST_BYTES:
        raise InputError(
            f"{option} {text!r} is not like 64KiB:64MiB: from 1 B to {MOST_BYTES >> 40} TiB, the "
            "smaller first"
        )
    return low, high


def size_ranges(text: str, option: str) -> list[tuple[int, int]]:
    """The ends of each range in 8:64K,1M:1G. Raises InputError."""
    return [size_range(word, option) for word in text.split(",")]


def size_list(text: str, option: str) -> list[int]:
    """Bytes in rising order, each once: 4K,1M are two, and 1M:1G doubles. Raises InputError."""
    ranges = size_ranges(text, option)
    return sorted({low << k for low, high in ranges for k in range((high // low).bit_length())})


def sample_shape(text: str) -> Shape:
    """The sizes in a word such as 3x224x224, or with commas. Raises InputError."""
    words = text.lower().replace(",", "x").split("x")
    if not all(word.isascii() and word.isdecimal() for word in words):
        raise InputError(f"--input {text!r} is not a shape such as 3x224x224")
    if not all(len(word) <= len(str(MOST)) and 1 <= int(word) <= MOST for word in words):
        raise InputError(f"--input {text!r}: sizes must be from 1 to {MOST}")
    return tuple(map(int, words))


def variables_of(words: Sequence[str] | None) -> dict[str, str]:
    """The variables in words NAME=VALUE. Raises InputError."""
    found: dict[str, str] = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not equals:
            raise InputError(f"--env {word!r} is not NAME=VALUE")
        if name in found:
            raise InputError(f"--env sets {name} twice")
        found[name] = value
    try:
        return checked(found)
    except ValueError as error:
        raise InputError(f"--env: {error}") from error


def word_list(text: str | None) -> tuple[str, ...] | None:
    """The words of an option, separated by commas; None where it is not given."""
    return None if text is None else tuple(word.strip() for word in text.split(",") if word.strip())
