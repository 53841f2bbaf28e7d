"""manifest.json: the circumstances of samples.parquet, and how every case ended."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from calib.foundation.files import read_record, write_json
from calib.foundation.quantities import (
    CountOrNone,
    FormatVersion,
    KnownRanks,
    Magnitude,
    Ratio,
    Seconds,
    SignedMagnitude,
    SignedSeconds,
    WholeBytes,
)
from calib.foundation.run_files import MANIFEST_FILE

MANIFEST_FORMAT = 1


def utc_now() -> str:
    """The time in UTC, ISO 8601 to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class CaseEnd(BaseModel):
    """How a case ended in one launch, and what was read beside its times.

    `stopped_by`: "interval", "budget", "failed: reason" or "skipped: reason".
    """

    model_config = ConfigDict(extra="forbid")

    case_id: str
    launch: KnownRanks
    label: str
    purpose: str
    repetitions: CountOrNone
    half_width: Ratio | None = Field(description="relative, of the 95% interval of the median")
    stopped_by: str
    elapsed_s: Seconds
    ended_ranks: bool = Field(default=False, description="a rank died or hung in it")
    first_s: Seconds | None = Field(
        default=None, description="the very first call: connections, lazy loading, kernel choice"
    )
    memory: dict[str, WholeBytes] = Field(
        default_factory=dict, description="bytes on the rank that needs most: microbench/memory.py"
    )
    kernels: dict[str, list[str]] = Field(
        default_factory=dict, description="operation -> kernels that ran, on a GPU"
    )
    gpu_before: list[dict[str, Any]] = Field(
        default_factory=list, description="of each rank: microbench/machine/telemetry.py"
    )
    gpu_after: list[dict[str, Any]] = Field(default_factory=list)


class RankPlace(BaseModel):
    """Where one rank ran."""

    model_config = ConfigDict(extra="forbid")

    host: str
    cores: list[KnownRanks]
    numa_node: KnownRanks | None = None
    gpu: str | None = Field(default=None, description="index and name, or none")
    rack: str = ""


class ClockRecord(BaseModel):
    """The clock of one rank beside that of rank 0 (microbench/timing/clock.py)."""

    model_config = ConfigDict(extra="forbid")

    offset_s: SignedSeconds
    drift: SignedMagnitude = Field(description="seconds per second")
    error_s: Seconds = Field(description="half-width of the offset within the launch")


class LaunchRecord(BaseModel):
    """One start of the ranks."""

    model_config = ConfigDict(extra="forbid")

    launch: KnownRanks
    ranks: KnownRanks
    command: str
    started: str
    finished: str = ""
    places: list[RankPlace]
    oversubscribed: bool
    timer: dict[str, Magnitude]
    clocks: list[ClockRecord] = Field(default_factory=list)
    allocator: str = Field(default="unknown", description="microbench/machine/allocator.py")
    load_average: Magnitude | None = Field(description="of the first host, before measuring")


class ImportedFile(BaseModel):
    """One log of another tool that rows of the run come from (`calib import`)."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(description="base name of the file")
    sha256: str
    tool: str
    tool_version: str = Field(default="", description="as the file says it")
    library_version: str = Field(default="", description="of NCCL, as the file says it")
    rows: CountOrNone
    faults: list[tuple[CountOrNone, str]] = Field(
        default_factory=list, description="line (from 1) and why it is no row"
    )
    notes: list[str] = Field(default_factory=list, description="what was taken from elsewhere")


class Manifest(BaseModel):
    """Provenance of a run's samples."""

    model_config = ConfigDict(extra="forbid")

    format_version: FormatVersion = MANIFEST_FORMAT
    program_version: str
    cluster_name: str
    cluster_fingerprint: str
    seed: CountOrNone
    target_half_width: Ratio
    launches: list[LaunchRecord] = Field(default_factory=list)
    cases: list[CaseEnd] = Field(default_factory=list)
    imported: list[ImportedFile] = Field(
        default_factory=list, description="the logs that the rows come from, if another tool's"
    )
    samples_sha256: str = ""

    def keep(self, ends: Iterable[CaseEnd]) -> None:
        """Add how cases ended; of a case that was begun again, the last end stands."""
        cases = {(case.case_id, case.launch): case for case in [*self.cases, *ends]}
        self.cases = list(cases.values())

    def write(self, run: Path) -> None:
        """Write manifest.json into a run directory."""
        write_json(run / MANIFEST_FILE, self.model_dump())

    @classmethod
    def read(cls, run: Path) -> Manifest:
        """Read manifest.json of a run directory. Raises FileError."""
        return read_record(cls, run / MANIFEST_FILE, "manifest", MANIFEST_FORMAT)
