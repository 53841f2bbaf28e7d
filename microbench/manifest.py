"""manifest.json: the circumstances of samples.parquet, and how every case ended."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from foundation.files import read_record, write_json
from microbench.samples import MANIFEST_FILE

MANIFEST_FORMAT = 1


def utc_now() -> str:
    """The time in UTC, ISO 8601 to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class CaseEnd(BaseModel):
    """How a case ended in one launch: interval, budget, or failed (with the reason in `stopped_by`)."""

    model_config = ConfigDict(extra="forbid")

    case_id: str
    launch: int
    label: str
    purpose: str
    repetitions: int
    half_width: float | None = Field(description="relative, of the 95% interval of the median")
    stopped_by: str
    elapsed_s: float


class LaunchRecord(BaseModel):
    """One start of the ranks."""

    model_config = ConfigDict(extra="forbid")

    launch: int
    ranks: int
    command: str
    started: str
    finished: str = ""
    hosts: list[str]
    cores: list[list[int]]
    oversubscribed: bool
    timer: dict[str, float]
    allocator: str = Field(default="unknown", description="microbench/allocator.py")
    load_average: float | None = Field(description="of the first host, before measuring")


class Manifest(BaseModel):
    """Provenance of a run's samples."""

    model_config = ConfigDict(extra="forbid")

    format_version: int = MANIFEST_FORMAT
    program_version: str
    cluster_name: str
    cluster_fingerprint: str
    seed: int
    target_half_width: float
    launches: list[LaunchRecord] = Field(default_factory=list)
    cases: list[CaseEnd] = Field(default_factory=list)
    samples_sha256: str = ""

    def keep(self, end: CaseEnd) -> None:
        """Add how a case ended; of a case that was begun again, the last end stands."""
        same = (end.case_id, end.launch)
        self.cases = [case for case in self.cases if (case.case_id, case.launch) != same]
        self.cases.append(end)

    def write(self, run: Path) -> None:
        """Write manifest.json into a run directory."""
        write_json(run / MANIFEST_FILE, self.model_dump())

    @classmethod
    def read(cls, run: Path) -> Manifest:
        """Read manifest.json of a run directory. Raises FileError."""
        return read_record(cls, run / MANIFEST_FILE, "manifest", MANIFEST_FORMAT)
