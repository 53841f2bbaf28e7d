"""The TrainingRun record (run.jsonl): per-iteration seconds per phase and rank, and circumstances.

Line 1 is the header, then one line per iteration, then (unless the run was killed) an end line.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from foundation.errors import FileError
from foundation.files import first_error, read_bytes, refuse_newer
from oracle.projection import PHASES

RUN_FORMAT = 1
# largest relative difference from the serial gradients; over it a run has done other work
GRADIENT_TOLERANCE = 1e-5
# in the order in which an iteration passes through them
RUN_PHASES = (
    "forward", "backward", "halo", "layerwise", "pack", "exchange", "unpack", "update",
)  # fmt: skip
# of a prediction and of what pages show: pack holds unpack
TIMED_PHASES = PHASES
# in which a rank may wait for others
SHARED_PHASES = ("halo", "layerwise", "exchange")


class RunHeader(BaseModel):
    """What ran, where and how."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    record: Literal["run"] = "run"
    format_version: int = RUN_FORMAT
    model: str
    strategy: str
    p: int = Field(ge=1)
    batch_per_pe: int = Field(ge=1)
    batch: int = Field(ge=1)
    optimizer: str
    dtype: str
    seed: int
    iterations: int = Field(description="planned, without the warm-up")
    warmup: int
    library: str
    hosts: list[str] = Field(description="host of each rank")
    threads_per_rank: int
    oversubscribed: bool
    cluster_fingerprint: str = ""
    started: str = Field(description="UTC, ISO 8601")
    versions: dict[str, str] = Field(default_factory=dict)
    launch: str = ""
    gradient_difference: float | None = Field(
        default=None,
        description="largest |exchanged - serial| / max |serial| over the tensors, before timing",
    )
    allocator: str = Field(default="unknown", description="microbench/allocator.py")
    notes: list[str] = Field(default_factory=list)


class Iteration(BaseModel):
    """One iteration: seconds of each phase on each rank; `loss` averaged over ranks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    record: Literal["iteration"] = "iteration"
    index: int
    warmup: bool
    seconds: dict[str, list[float]] = Field(description="keys: RUN_PHASES; one item per rank")
    loss: float

    @model_validator(mode="after")
    def _whole(self) -> Iteration:
        lengths = {len(times) for times in self.seconds.values()}
        if set(self.seconds) != set(RUN_PHASES) or len(lengths) != 1 or lengths == {0}:
            raise ValueError(f"seconds needs one time per rank for each of {', '.join(RUN_PHASES)}")
        if not all(t >= 0 and math.isfinite(t) for times in self.seconds.values() for t in times):
            raise ValueError("a time is negative, NaN or infinite")
        return self

    @property
    def critical_rank(self) -> int:
        """The rank that waited least: the others waited for it.

        Its phases with other ranks (halo, layerwise, exchange) are the shortest, so they hold the
        least waiting; without any it is the rank with the longest iteration.
        """
        ranks = range(len(self.seconds["forward"]))
        shared = [sum(self.seconds[phase][rank] for phase in SHARED_PHASES) for rank in ranks]
        if any(shared):
            return min(ranks, key=shared.__getitem__)
        return max(ranks, key=lambda rank: sum(self.seconds[phase][rank] for phase in RUN_PHASES))

    def phase_seconds(self, phase: str) -> float:
        """Seconds of a phase on the critical rank; "pack" is packing and unpacking."""
        rank = self.critical_rank
        parts = ("pack", "unpack") if phase == "pack" else (phase,)
        return sum(self.seconds[part][rank] for part in parts)

    @property
    def total_seconds(self) -> float:
        """Seconds of the iteration on the critical rank."""
        return sum(self.seconds[phase][self.critical_rank] for phase in RUN_PHASES)


class RunEnd(BaseModel):
    """The last line of a run that was not killed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    record: Literal["end"] = "end"
    peak_rss_bytes: list[int] = Field(description="of each rank")
    wall_seconds: float = Field(description="of the timed iterations, on rank 0")


class TrainingRun(BaseModel):
    """A training run as read from run.jsonl."""

    model_config = ConfigDict(frozen=True)

    header: RunHeader
    iterations: list[Iteration]
    end: RunEnd | None

    @property
    def timed(self) -> list[Iteration]:
        """The iterations after the warm-up."""
        return [iteration for iteration in self.iterations if not iteration.warmup]

    @property
    def complete(self) -> bool:
        """Whether the run reached its end with all the iterations it planned."""
        return self.end is not None and len(self.timed) == self.header.iterations

    @classmethod
    def read(cls, path: Path) -> TrainingRun:
        """Read run.jsonl. A last line cut by a kill is dropped. Raises FileError."""
        lines = read_bytes(path, "training run").decode(errors="replace").split("\n")
        whole = lines[:-1]  # what follows the last newline is empty or was cut
        header: RunHeader | None = None
        iterations: list[Iteration] = []
        end: RunEnd | None = None
        for number, line in enumerate(whole, 1):
            try:
                content = json.loads(line)
                record = content.get("record")
                if number == 1:
                    refuse_newer(content, RUN_FORMAT, f"training run {path}")
                    header = RunHeader.model_validate(content)
                elif record == "iteration":
                    iterations.append(Iteration.model_validate(content))
                else:
                    end = RunEnd.model_validate(content)
            except ValidationError as error:
                raise FileError(
                    f"training run {path}, line {number}: {first_error(error)}"
                ) from error
            except (ValueError, AttributeError) as error:
                raise FileError(f"training run {path}, line {number}: not a JSON record") from error
        if header is None:
            raise FileError(f"training run {path} is empty")
        return cls(header=header, iterations=iterations, end=end)
