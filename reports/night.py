"""The Night record (night.json): plan and result of a nightly run, and its short check."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from calib.foundation.division import Divided
from calib.foundation.files import read_record, write_json
from calib.foundation.names import ModelName, ProgramVersion, UtcTime
from calib.foundation.quantities import CountOrNone, FormatVersion, Seconds, Whole
from calib.foundation.records import Record, TimeEstimate
from calib.foundation.run_files import NIGHT_FILE
from calib.microbench.records.looks import Disturbance
from calib.reports.scoring.accuracy import CheckKind, Missing, by_others

NIGHT_FORMAT = 1


class Check(Record):
    """One case of the short calibration check: seconds now, and as the stored parameters have it."""

    kind: CheckKind = Field(
        description="what can drift: links, layers (kernels), copies and packing (memory)"
    )
    what: str = Field(
        description='what several cases are of: "allreduce, torch_mpi, node, p=2", "conv layers, '
        'p=2"'
    )
    case: str = Field(description='which of them: a size ("4 MiB"), a layer\'s key')
    expected: TimeEstimate = Field(description="seconds, of the parameter file")
    measured: TimeEstimate = Field(description="seconds, tonight")
    disturbed: list[Disturbance] = Field(
        default_factory=list, description="what disturbed it; empty where nothing did"
    )

    @property
    def disturbed_by_others(self) -> bool:
        """Whether others disturbed it: a machine that is only slow is the machine as it is now."""
        return by_others(self.disturbed)


class PlannedPoint(Divided, Record):
    """A training run that the night is to hold. `file` is relative to the run directory."""

    model: ModelName
    label: str = Field(description="model, strategy with its layout, p")
    file: str = Field(description="of the training, relative to the run directory")


class Night(Record):
    """What a nightly run is made of. Written when it begins, and again when it ends."""

    format_version: FormatVersion = NIGHT_FORMAT
    id: str = Field(min_length=8, description="unique; the same in copies of the run directory")
    started: UtcTime
    finished: str = Field(default="", description="UTC, ISO 8601; empty while it runs")
    program_version: ProgramVersion = ""
    calibration: str = Field(description="run directory of the parameters, as it was named")
    planned: list[PlannedPoint] = Field(
        default_factory=list, description="the trainings that it is to hold"
    )
    unplanned: list[Missing] = Field(
        default_factory=list, description="points of the plan that cannot be laid out"
    )
    failed: dict[str, str] = Field(default_factory=dict, description="label of a point -> why")
    checks: list[Check] = Field(
        default_factory=list,
        description="calibration checks: seconds tonight, and as the parameters have them",
    )
    unchecked: list[Missing] = Field(default_factory=list, description="checks that were not made")
    iterations: CountOrNone = Field(description="timed iterations of a training")
    seed: Whole = Field(description="seed of the random numbers")
    check_budget_s: Seconds = Field(description="s for the short calibration check")
    hang_s: Seconds = Field(description="s that ranks may make no progress")

    def write(self, run: Path) -> None:
        """Write night.json whole or not at all."""
        write_json(run / NIGHT_FILE, self.model_dump())

    @classmethod
    def read(cls, run: Path) -> Night:
        """Read night.json of a run directory. Raises FileError."""
        return read_record(cls, run / NIGHT_FILE, "night", NIGHT_FORMAT)
