"""manifest.json: how samples.parquet was measured, and how every case ended."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from calib.foundation.environment import Environment
from calib.foundation.files import read_record, write_json
from calib.foundation.names import ClusterName, Fingerprint, Oversubscribed, ProgramVersion, UtcTime
from calib.foundation.quantities import (
    CountOrNone,
    FormatVersion,
    KnownRanks,
    Magnitude,
    Ratio,
    Seconds,
    SignedMagnitude,
    SignedSeconds,
    UnixSeconds,
    WholeBytes,
)
from calib.foundation.run_files import MANIFEST_FILE
from calib.microbench.records.looks import Disturbance, Look
from calib.microbench.records.settings import BoardState, RankSoftware

MANIFEST_FORMAT = 1


def utc_now() -> str:
    """The time in UTC, ISO 8601 to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class CaseEnd(BaseModel):
    """How a case ended in one launch, and what was read beside its times.

    `stopped_by`: "interval", "budget", "failed: reason" or "skipped: reason".
    """

    model_config = ConfigDict(extra="forbid")

    case_id: str = Field(description="16 hex digits of what is measured")
    launch: KnownRanks = Field(description="index of the start of the ranks, from 0")
    label: str = Field(description="the case, for people")
    purpose: str = Field(description="why it is measured, for people")
    repetitions: CountOrNone = Field(description="timed repetitions")
    half_width: Ratio | None = Field(description="relative, of the 95% interval of the median")
    stopped_by: str = Field(description='interval, budget, "failed: reason" or "skipped: reason"')
    elapsed_s: Seconds = Field(description="s that the case took")
    started_unix_s: UnixSeconds | None = Field(
        default=None, description="when it began, s since 1970, UTC; null: it did not"
    )
    ended_ranks: bool = Field(default=False, description="a rank died or hung in it")
    first_s: Seconds | None = Field(
        default=None, description="the very first call: connections, lazy loading, kernel choice"
    )
    estimate_s: Seconds | None = Field(
        default=None, description="of a call, as NCCL itself expects it; null: it says nothing"
    )
    memory: dict[str, WholeBytes] = Field(
        default_factory=dict, description="bytes on the rank that needs most: training/footprint.py"
    )
    kernels: dict[str, list[str]] = Field(
        default_factory=dict, description="operation -> kernels that ran, on a GPU"
    )
    workspace: dict[str, WholeBytes] = Field(
        default_factory=dict,
        description="operation of a layer -> B that its kernels had for themselves at most, on a GPU",
    )
    channels: dict[str, CountOrNone] = Field(
        default_factory=dict,
        description="algorithm/protocol that NCCL took -> channels of a call, where its log says so",
    )
    gpu_before: list[dict[str, Any]] = Field(
        default_factory=list, description="of each rank: microbench/machine/telemetry.py"
    )
    gpu_after: list[dict[str, Any]] = Field(
        default_factory=list, description="of each rank: microbench/machine/telemetry.py"
    )
    mean_power_w: list[Magnitude | None] = Field(
        default_factory=list,
        description="W that each rank's GPU drew over the case, by its energy counter; null unknown",
    )
    again: CountOrNone = Field(
        default=0,
        description="how often it was measured again, because it was disturbed; the least disturbed "
        "one is kept",
    )
    waited: Ratio | None = Field(
        default=None,
        description="share of its timed calls in which a rank waited for a core; null: not counted",
    )
    disturbed: list[Disturbance] = Field(
        default_factory=list, description="what disturbed it; empty where nothing did"
    )


class GpuIdentity(BaseModel):
    """Which GPU: its name is that of many, its UUID that of one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    uuid: str = Field(description="as CUDA or NVML gives it, with or without GPU- or MIG- before")
    name: str = Field(description="product name")


class RankPlace(BaseModel):
    """Where one rank ran."""

    model_config = ConfigDict(extra="forbid")

    host: str = Field(description="host name")
    cores: list[KnownRanks] = Field(description="numbers of its cores")
    socket: KnownRanks | None = Field(
        default=None, description="number of the socket of these; null unknown or several"
    )
    numa_node: KnownRanks | None = Field(
        default=None, description="number of its NUMA node; null unknown"
    )
    gpu: GpuIdentity | None = Field(default=None, description="the GPU that it works on; null none")
    rack: str = Field(default="", description='hosts of one rack share it; "" unknown')


class ClockRecord(BaseModel):
    """The clock of one rank beside that of rank 0 (microbench/timing/clock.py)."""

    model_config = ConfigDict(extra="forbid")

    offset_s: SignedSeconds = Field(description="s that the rank's clock is ahead of rank 0's")
    drift: SignedMagnitude = Field(description="seconds per second")
    error_s: Seconds = Field(description="half-width of the offset within the launch")


class Seen(BaseModel):
    """Looks of a launch that manifest.json may not have: ranks that die do not finish their launch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    launch: KnownRanks = Field(description="index of the start of the ranks, from 0")
    ranks: KnownRanks = Field(description="that were started")
    started: UtcTime
    looks: list[Look] = Field(description="since the part before")


class LaunchRecord(BaseModel):
    """One start of the ranks."""

    model_config = ConfigDict(extra="forbid")

    launch: KnownRanks = Field(description="index of the start of the ranks, from 0")
    ranks: KnownRanks = Field(description="number of ranks")
    command: str = Field(description="command that started the ranks")
    started: UtcTime
    finished: str = Field(default="", description="UTC, ISO 8601; empty while it runs")
    places: list[RankPlace] = Field(description="where each rank ran")
    oversubscribed: Oversubscribed
    timer: dict[str, Magnitude] = Field(description="resolution and overhead of the clock, s")
    clocks: list[ClockRecord] = Field(
        default_factory=list, description="each rank's clock beside that of rank 0"
    )
    environment: Environment = Field(
        default_factory=Environment, description="what the ranks ran in"
    )
    load_average: Magnitude | None = Field(description="of the first host, before measuring")
    software: list[RankSoftware] = Field(
        default_factory=list, description="libraries as loaded, and environment, of all ranks"
    )
    boards: list[BoardState] = Field(
        default_factory=list, description="the GPUs of the ranks as they were set up"
    )
    looks: list[Look] = Field(
        default_factory=list, description="how the machine was, in the order of time"
    )

    def seen(self, looks: list[Look]) -> Seen:
        """Looks of this launch."""
        return Seen(launch=self.launch, ranks=self.ranks, started=self.started, looks=looks)


class ImportedFile(BaseModel):
    """One log of another tool that rows of the run come from (`calib import`)."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(description="base name of the file")
    sha256: str = Field(description="hex digest of the file")
    tool: str = Field(description="tool that wrote it")
    tool_version: str = Field(default="", description="as the file says it")
    library_version: str = Field(default="", description="of NCCL, as the file says it")
    of_run: bool = Field(
        default=False,
        description="its times are of a run (a training job) that had other things to do beside "
        "them, not of a benchmark; so marked in the samples, too",
    )
    rows: CountOrNone = Field(
        description="rows that were read from it; of a run the calls of its ranks, of which those of "
        "several files make one row"
    )
    faults: list[tuple[CountOrNone, str]] = Field(
        default_factory=list, description="line (from 1) and why it is no row"
    )
    notes: list[str] = Field(default_factory=list, description="what was taken from elsewhere")


class Manifest(BaseModel):
    """Provenance of a run's samples."""

    model_config = ConfigDict(extra="forbid")

    format_version: FormatVersion = MANIFEST_FORMAT
    program_version: ProgramVersion
    cluster_name: ClusterName
    cluster_fingerprint: Fingerprint
    seed: CountOrNone = Field(description="seed of the random numbers")
    target_half_width: Ratio = Field(
        description="half-width of the median's 95% interval, relative, at which a case is done"
    )
    launches: list[LaunchRecord] = Field(default_factory=list, description="starts of the ranks")
    cases: list[CaseEnd] = Field(
        default_factory=list, description="how every case ended in each launch"
    )
    imported: list[ImportedFile] = Field(
        default_factory=list, description="the logs that the rows come from, if another tool's"
    )
    samples_sha256: str = Field(
        default="", description='hex digest of samples.parquet; "" while the measurement runs'
    )

    def looks_of(self, ranks: int) -> list[Look]:
        """What launches of so many ranks saw, in the order of time."""
        return [look for each in self.launches if each.ranks == ranks for look in each.looks]

    def saw(self, seen: Iterable[Seen]) -> None:
        """Add looks to launches that have not finished; the others have all of theirs."""
        of = {(each.launch, each.ranks, each.started): each for each in self.launches}
        for each in seen:
            launch = of.get((each.launch, each.ranks, each.started))
            if launch is not None and not launch.finished:
                there = {look.unix_s for look in launch.looks}
                more = [look for look in each.looks if look.unix_s not in there]
                launch.looks = sorted([*launch.looks, *more], key=lambda look: look.unix_s)

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
