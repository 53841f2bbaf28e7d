"""A training run as its ranks are told of it: model, division, settings. job.json; no PyTorch here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from calib.foundation.division import Division
from calib.foundation.environment import Variables
from calib.foundation.errors import InputError
from calib.foundation.execution import USUAL, execution_of
from calib.foundation.files import read_record, write_json
from calib.foundation.names import Fingerprint, ModelName
from calib.foundation.own import Own
from calib.foundation.quantities import FormatVersion
from calib.training.plans.division import LayerwiseDivision
from calib.training.run.lines import Series
from calib.training.teams import BACKENDS

JOB_FILE = "ranks.job.json"  # beside ranks.log
JOB_FORMAT = 1
OPTIMIZERS = ("sgd", "momentum", "adam")
# ranks that wait for a dead one are gone within 30 s, including the time to end them
HANG_SECONDS = 20.0


@dataclass(frozen=True)
class Settings:
    """The settings of a run, beside model and division. `precision`: a share of the median, or None.

    `variables` are environment variables that its ranks are started with. `traced` iterations more are
    run under torch.profiler.

    Raises InputError for an unknown backend, execution or optimizer, and for an execution that the
    backend's device, the optimizer or a training function of one's own has not.
    """

    backend: str = "mpi"
    execution: str = USUAL
    optimizer: str = "momentum"
    synchronized_batch_norm: bool = False
    ddp: bool = False
    iterations: int = 100
    precision: float | None = None
    seed: int = 0
    hang_s: float = HANG_SECONDS
    own: Own | None = None
    variables: Variables = field(default_factory=dict)
    traced: int = 0

    def __post_init__(self) -> None:
        known = {
            "backend": (self.backend, tuple(BACKENDS)),
            "optimizer": (self.optimizer, OPTIMIZERS),
        }
        for what, (value, names) in known.items():
            if value not in names:
                raise InputError(f"unknown {what} {value!r}; known: {', '.join(names)}")
        execution = execution_of(self.execution)
        execution.require_on(BACKENDS[self.backend].device)
        if execution.dtype == "float16" and self.optimizer == "adam":
            # its 1e-8 and squares of gradients under 2e-4 are 0 in float16: 0 / 0
            raise InputError(
                "adam's updates are no numbers in float16; take bfloat16, or another optimizer"
            )
        if execution.cuda_graph and self.own is not None and self.own.function:
            raise InputError("a training function calls the module itself: leave +cuda_graph out")


class TrainingJob(BaseModel):
    """What every rank of a run is told: job.json."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    format_version: FormatVersion = JOB_FORMAT
    model: ModelName
    division: LayerwiseDivision | Division = Field(description="how training is divided")
    settings: Settings = Field(description="beside model and division")
    fingerprint: Fingerprint = ""
    plan: str = Field(default="", description="sha256 of the searched plan that the division is of")
    series: Series = ""

    def write(self, path: Path) -> None:
        """Write job.json whole or not at all."""
        write_json(path, self.model_dump(mode="json"))

    @classmethod
    def read(cls, path: Path) -> TrainingJob:
        """Read job.json. Raises FileError."""
        return read_record(cls, path, "job", JOB_FORMAT)


def traces_beside(path: Path) -> Path:
    """The folder of the traces of a run.jsonl."""
    return path.with_name(f"{path.stem}.traces")
