"""The Request (plan.toml): what a user wants measured. The plan follows from it."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from calib.fitting.parameters.file import TRAINING_LIBRARIES
from calib.foundation.collectives import Operation
from calib.foundation.environment import Variables
from calib.foundation.errors import FileError, InputError
from calib.foundation.execution import USUAL, ExecutionName, execution_of
from calib.foundation.files import read_bytes, wording, write_whole
from calib.foundation.names import DeviceName, Library
from calib.foundation.nccl import NcclAlgorithm
from calib.foundation.quantities import CountOrNone
from calib.microbench.budget import FEWEST_LAUNCHES
from calib.microbench.cases import MAX_LAUNCHES
from calib.options import MINIS, MOST

StrategyName = Literal[
    "serial",
    "data",
    "fully_sharded",
    "spatial",
    "pipeline",
    "filter",
    "channel",
    "tensor",
    "sequence",
    "data+filter",
    "data+spatial",
]
OptimizerNames = Literal["sgd", "momentum", "adam"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)
MOST_SECONDS = 1e6
OVERLAPPED_MODELS = 2
# what only ranks on CPUs do: start by the host's clock, and exchange through windows of MPI
OF_HOSTS = ("windows", "sparse")
SECONDS_IN = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Effort:
    """How much a calibration does.

    Each point is trained in so many `turns`: launches of the ranks, of so many timed `iterations`, with
    those of the other points between them. `extras`: cold buffers, contention, passes apart, sparse
    exchanges (of CPUs), overlap.
    """

    budget_s: float
    launches: int
    grid_factor: int
    iterations: int
    turns: int = 1
    extras: bool = True

    def rounds_of(self, budget_s: float) -> int:
        """How many launches as long as those of this effort a budget holds; at least two."""
        most = min(int(budget_s / self.budget_s * self.launches), MAX_LAUNCHES)
        return max(FEWEST_LAUNCHES, most)


FULL = Effort(budget_s=210.0, launches=6, grid_factor=2, iterations=30, turns=3)
QUICK = Effort(budget_s=30.0, launches=3, grid_factor=8, iterations=20, extras=False)


def seconds_of(text: str, option: str = "") -> float:
    """The seconds in "90", "90s", "10m" or "1.5h", given to `option`. Raises InputError."""
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([smh]?)\s*", text)
    seconds = float(found[1]) * SECONDS_IN[found[2]] if found else 0.0
    if not 1.0 <= seconds <= MOST_SECONDS:
        raise InputError(
            f"{option} {text!r}".strip()
            + f" is not a time from 1 s to {MOST_SECONDS:.0f} s, such as 90s, 10m or 1.5h"
        )
    return seconds


def _seconds(value: Any) -> Any:
    """A time that is written as text, as seconds."""
    if not isinstance(value, str):
        return value
    try:
        return seconds_of(value)
    except InputError as error:
        raise ValueError(str(error)) from error


PlanCount = Annotated[int, Field(ge=1, le=MOST)]
BudgetSeconds = Annotated[
    float,
    BeforeValidator(_seconds),
    Field(ge=1.0, le=MOST_SECONDS, allow_inf_nan=False),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 1, "maximum": MOST_SECONDS},
                {"type": "string", "pattern": r"^\s*[0-9.]+\s*[smh]?\s*$"},
            ]
        }
    ),
]


class Sparse(BaseModel):
    """A sparse variable, whose exchange is measured by every method (microbench/cases.py)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int = Field(default=10_000, ge=1, lt=1 << 31, description="of the variable")
    width: int = Field(default=64, ge=1, le=1 << 20, description="items of a row")
    shares: tuple[Annotated[float, Field(gt=0, le=1)], ...] = Field(
        default=(0.1,), min_length=1, description="a: rows that a rank touches over all rows"
    )
    partitions: tuple[PlanCount, ...] = Field(
        default=(1, 2, 4, 8),
        description="parts of the variable on the servers; four numbers at least check their law",
    )

    @model_validator(mode="after")
    def _cut(self) -> Sparse:
        if len(set(self.partitions)) < 4:
            raise ValueError("four different numbers of partitions at least are needed")
        if max(self.partitions) > self.rows:
            raise ValueError(f"{max(self.partitions)} partitions are more than {self.rows} rows")
        return self


class Request(BaseModel):
    """Models, strategies and p that predictions will be asked for, and how well to measure.

    The first of `libraries` is by default what training sends by.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    models: tuple[str, ...] = Field(
        default=MINIS, min_length=1, description="names of models, or model.json files"
    )
    strategies: tuple[StrategyName, ...] = Field(
        default=("serial", "data"),
        min_length=1,
        description="strategies that predictions will be asked for",
    )
    p: tuple[PlanCount, ...] = Field(
        min_length=1, description="numbers of ranks that predictions will be asked for"
    )
    ranks: PlanCount | None = Field(
        default=None,
        description="size of the largest launch; null: the largest p that the machine has cores or "
        "GPUs for",
    )
    batch: PlanCount | None = Field(
        default=None,
        description="global mini-batch, samples (strong scaling); not with batch_per_rank",
    )
    batch_per_rank: PlanCount | None = Field(
        default=None,
        description="samples per rank (weak scaling); without batch and this: each model's own",
    )
    segments: PlanCount = Field(default=4, description="S: micro-batches of a pipeline")
    device: DeviceName = Field(default="cpu", description="where buffers and kernels are")
    libraries: tuple[Library, ...] = Field(
        default_factory=lambda known: TRAINING_LIBRARIES[known.get("device", "cpu")][:1],
        min_length=1,
        description="libraries that send messages: the first is measured at every size that a "
        "strategy sends, the others on a coarse grid; default torch_mpi, on GPUs torch_nccl",
    )
    algorithms: tuple[NcclAlgorithm, ...] | None = Field(
        default=None,
        description="that library nccl is told to use, for a law of each beside its own choice; null: "
        "ring, tree and nvls",
    )
    collectives: tuple[Operation, ...] = Field(default=OPERATIONS, description="on the size grid")
    executions: tuple[ExecutionName, ...] = Field(
        default=(USUAL,),
        min_length=1,
        description="how layers run, each of which is measured and predicted: item type, then "
        "+channels_last, +cuda_graph",
    )
    optimizers: tuple[OptimizerNames, ...] = Field(
        default=("momentum",), min_length=1, description="optimizers whose updates are timed"
    )
    grid_factor: int = Field(
        default=FULL.grid_factor,
        ge=2,
        le=1000,
        description="ratio of neighbouring sizes of the grid",
    )
    contention: bool = Field(
        default=True, description="whether collectives of several groups at once are measured"
    )
    cold: bool = Field(
        default=True,
        description="whether allreduces of buffers outside of the caches are measured, too",
    )
    graphs: bool = Field(
        default=False,
        description="whether collectives of NCCL in CUDA graphs are measured, too: laws beside those "
        "of calls, which no prediction uses",
    )
    windows: bool = Field(
        default=False,
        description="whether starts in a window on synchronised clocks are measured, too: for "
        "people, as no law is fitted to them; not on GPUs",
    )
    passes_apart: bool = Field(default=True, description="dL/dx and dL/dw of a layer, each alone")
    sparse: Sparse | None = Field(
        default=None,
        description="variable whose sparse exchange is measured; null: none; not on GPUs",
    )
    overlap: CountOrNone = Field(
        default=OVERLAPPED_MODELS,
        description="of how many models, those with the most weights, whole iterations of data "
        "parallelism are measured with the exchange overlapped and without; 0: none",
    )
    budget_s: BudgetSeconds = Field(
        default=FULL.budget_s,
        description="s for measuring, all launches together; or text as 90s, 10m, 1.5h",
    )
    launches: int = Field(
        default=FULL.launches, ge=1, le=1000, description="how often the ranks are started anew"
    )
    seed: CountOrNone = Field(default=0, description="seed of the random numbers")
    target: float = Field(
        default=0.025, gt=0, lt=1, description="half-width of the median's 95% interval, relative"
    )
    variables: Variables = {}

    @field_validator(
        "models", "strategies", "p", "libraries", "collectives", "executions", "optimizers"
    )
    @classmethod
    def _once(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(values))

    @field_validator("p")
    @classmethod
    def _in_order(cls, values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(values))

    @model_validator(mode="after")
    def _agrees(self) -> Request:
        if self.batch is not None and self.batch_per_rank is not None:
            raise ValueError("give batch or batch_per_rank, not both")
        gpu = [name for name in self.libraries if name.endswith("nccl")]
        if gpu and self.device == "cpu":
            raise ValueError(f'library {gpu[0]} needs device = "cuda"')
        for name in self.executions:
            try:
                execution_of(name).require_on(self.device)
            except InputError as error:
                raise ValueError(str(error)) from error
        if self.algorithms and "nccl" not in self.libraries:
            raise ValueError("algorithms are told to library nccl, which libraries lacks")
        if self.graphs and not gpu:
            raise ValueError("graphs are of libraries nccl and torch_nccl")
        hosts = [name for name in OF_HOSTS if getattr(self, name)]
        if hosts and self.device != "cpu":
            raise ValueError(f'{hosts[0]} needs device = "cpu"')
        return self

    def global_batch(self, p: int, model_batch_per_rank: int) -> int:
        """B on p ranks; `model_batch_per_rank` where nothing is asked for."""
        if self.batch is not None:
            return self.batch
        return p * (self.batch_per_rank or model_batch_per_rank)

    def write(self, path: Path) -> None:
        """Write plan.toml whole or not at all."""
        import tomli_w

        content = self.model_dump(mode="json", exclude_none=True)
        write_whole(path, tomli_w.dumps(content))

    @classmethod
    def read(cls, path: Path) -> Request:
        """Read plan.toml. Raises FileError with the line or the key that is wrong."""
        data = read_bytes(path, "plan file")
        try:
            content = tomllib.loads(data.decode())
        except (ValueError, RecursionError) as error:  # no UTF-8, no TOML, or nested too deep
            raise FileError(f"plan file {path} is not TOML: {error}") from error
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise FileError(f"plan file {path}: {mistakes(error)}") from error


def request_of(effort: Effort, **content: Any) -> Request:
    """A request at an effort; values of None are left at their default. Raises InputError."""
    known = {
        "budget_s": effort.budget_s,
        "launches": effort.launches,
        "grid_factor": effort.grid_factor,
        "contention": effort.extras,
        "cold": effort.extras,
        "passes_apart": effort.extras,
        "sparse": Sparse() if effort.extras and content.get("device") != "cuda" else None,
        "overlap": OVERLAPPED_MODELS if effort.extras else 0,
    }
    given = {key: value for key, value in content.items() if value is not None}
    try:
        return Request(**(known | given))
    except ValidationError as error:
        raise InputError(mistakes(error)) from error


def mistakes(error: ValidationError) -> str:
    """Every mistake of a request with its key, in one line."""
    found = error.errors()
    wrong = {detail["loc"][:1] for detail in found if len(detail["loc"]) > 1}
    return "; ".join(_mistake(detail) for detail in found if not _follows(detail, wrong))


def _follows(detail: ErrorDetails, wrong: Container[tuple[int | str, ...]]) -> bool:
    """Whether it is said only because an item of it (of `wrong` ones), or another key, is wrong."""
    if detail["type"] == "too_short" and detail["loc"] in wrong:
        return True  # a wrong item is not counted
    return detail["type"] == "default_factory_not_called"


def _mistake(detail: ErrorDetails) -> str:
    names = [str(part) for part in detail["loc"] if isinstance(part, str)]
    key = ".".join(names)
    if detail["type"] == "extra_forbidden":
        known = Sparse.model_fields if len(names) > 1 else Request.model_fields
        near = difflib.get_close_matches(names[-1], known, n=1)
        return f"unknown key {key}" + (f"; did you mean {near[0]}?" if near else "")
    said = wording(detail)
    if detail["type"] == "missing":
        return f"{key} {said}"
    value = "" if not key or isinstance(detail["input"], dict) else f" = {detail['input']!r}"
    return f"{key}{value}: {said}" if key else said
