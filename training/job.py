"""One training as its ranks are told of it: model, division, settings. job.json; no PyTorch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from calib.foundation.errors import FileError, InputError
from calib.foundation.files import check_version, read_json, write_json
from calib.oracle.division import Division
from calib.oracle.layout.partitions import Configuration
from calib.training.own.options import Own
from calib.training.plans.division import LAYERWISE, LayerwiseDivision
from calib.training.teams import BACKENDS

JOB_FILE = "ranks.job.json"  # beside ranks.log
JOB_FORMAT = 1
# as calib.training.step.DTYPES and calib.microbench.tensors have them
DTYPE_NAMES = ("float32", "bfloat16", "float64")
OPTIMIZERS = ("sgd", "momentum", "adam")
# with what it takes to end them, ranks that wait for a dead one are gone within 30 s
HANG_SECONDS = 20.0


@dataclass(frozen=True)
class Settings:
    """Of a run, beside model and division. `precision` is a share of the median, or None.

    Raises InputError for a backend, dtype or optimizer that training does not have.
    """

    backend: str = "mpi"
    dtype: str = "float32"
    optimizer: str = "momentum"
    synchronized_batch_norm: bool = False
    ddp: bool = False
    iterations: int = 100
    precision: float | None = None
    seed: int = 0
    hang_s: float = HANG_SECONDS
    own: Own | None = None

    def __post_init__(self) -> None:
        known = {
            "backend": (self.backend, tuple(BACKENDS)),
            "dtype": (self.dtype, DTYPE_NAMES),
            "optimizer": (self.optimizer, OPTIMIZERS),
        }
        for what, (value, names) in known.items():
            if value not in names:
                raise InputError(f"unknown {what} {value!r}; known: {', '.join(names)}")


@dataclass(frozen=True)
class TrainingJob:
    """What every rank of a run is told.

    `fingerprint` is the cluster's, where the driver knows it; `plan` the sha256 of the searched plan
    that `division` is of, where it is of one.
    """

    model: str
    division: Division
    settings: Settings
    fingerprint: str = ""
    plan: str = ""

    def plain(self) -> dict[str, Any]:
        """The content of job.json."""
        return {
            "format_version": JOB_FORMAT,
            "model": self.model,
            "division": _plain(self.division),
            "settings": asdict(self.settings),
            "fingerprint": self.fingerprint,
            "plan": self.plan,
        }

    @classmethod
    def of_plain(cls, content: Mapping[str, Any]) -> TrainingJob:
        """The job of `plain`. Raises InputError for what no job can be."""
        return cls(
            content["model"],
            _division(content["division"]),
            _settings().validate_python(content["settings"]),
            content["fingerprint"],
            content["plan"],
        )

    def write(self, path: Path) -> None:
        """Write job.json whole or not at all."""
        write_json(path, self.plain())

    @classmethod
    def read(cls, path: Path) -> TrainingJob:
        """Read job.json. Raises FileError."""
        content = read_json(path, "job")
        check_version(content, JOB_FORMAT, f"job {path}")
        try:
            return cls.of_plain(content)
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(f"{path} is no job: {error!r}") from error


@cache
def _settings() -> TypeAdapter[Settings]:
    return TypeAdapter(Settings)


def _plain(division: Division) -> dict[str, Any]:
    names = [field.name for field in fields(division) if field.init]
    content = {name: getattr(division, name) for name in names}
    if isinstance(division, LayerwiseDivision):
        content["configurations"] = [of.degrees for of in division.configurations]
    return content


def _division(content: Mapping[str, Any]) -> Division:
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in content.items()
    }
    if given["strategy"] != LAYERWISE:
        return Division(**given)
    degrees = given.pop("configurations")
    return LayerwiseDivision(**given, configurations=tuple(map(Configuration.of, degrees)))
