"""The history's records: an Entry goes in, a Past comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic import Field

from calib.foundation.names import ClusterName, Fingerprint, MachineHash, ProgramVersion
from calib.foundation.quantities import CountOrNone
from calib.foundation.records import Record
from calib.reports.night import Check
from calib.reports.scoring.accuracy import Accuracy, CheckKind, Missing, by_others, score


class Entry(Record):
    """What one run directory adds. Recorded again under the same `id`, it takes the older one's place.

    `machine` is that of the hardware (Cluster.history): a history is of one machine, through changes
    of its software, which `versions` tell, and of one kind of device.
    """

    id: str = Field(min_length=8, description="the same in copies of the run directory")
    run: str = Field(description="name of the run directory")
    started: str = Field(description="UTC, ISO 8601; orders the history")
    nightly: bool = Field(description="whether it is a night, or a report of another run")
    cluster_name: ClusterName
    cluster_fingerprint: Fingerprint
    machine: MachineHash
    program_version: ProgramVersion
    parameters_id: str = Field(description="16 hex digits of parameters.json")
    versions: dict[str, str] = Field(default_factory=dict, description="library -> version")
    planned: CountOrNone = Field(
        description="points that the run was to hold; those that it has, where unknown"
    )
    accuracies: list[Accuracy] = Field(default_factory=list, description="its scored points")
    checks: list[Check] = Field(
        default_factory=list,
        description="its calibration checks: seconds then, and as the parameters have them",
    )
    missing: list[Missing] = Field(
        default_factory=list, description="what was planned and is not there or not scored"
    )


class Acceptance(Record):
    """A step that somebody looked at and takes as it is: from `night` on, it is the normal."""

    night: str = Field(description="id of the night with which the step begins")
    series: str = Field(description='name of the series, or "" for all that step that night')
    reason: str = Field(min_length=1, description="why it is the normal from then on")
    who: str = Field(default="", description="name of who accepted it")
    accepted: str = Field(description="UTC, ISO 8601")


@dataclass(frozen=True)
class PastNight:
    """One entry of the history without its points."""

    id: str
    run: str
    started: str
    nightly: bool
    cluster_name: str
    cluster_fingerprint: str
    machine: str
    program_version: str
    parameters_id: str
    planned: int
    versions: dict[str, str] = field(default_factory=dict)
    missing: tuple[Missing, ...] = ()


class PastPoint(NamedTuple):
    """A scored point; seconds. `night` is an index into Past.nights; `phases`: (predicted, measured).

    `work` is equal for runs of the same work on the same machine, whatever its versions.
    """

    night: int
    run_id: str
    work: str
    model: str
    strategy: str
    layout: str
    execution: str
    p: int
    batch_per_rank: float
    predicted_s: float
    predicted_low_s: float
    predicted_high_s: float
    measured_s: float
    measured_low_s: float
    measured_high_s: float
    oversubscribed: bool
    memory_predicted_bytes: float | None
    memory_measured_bytes: int | None
    disturbed: str  # words of Disturbance with commas between, or ""
    waited: float | None
    slowdown: float | None
    at_speed_s: float | None
    phases: dict[str, tuple[float, float]]

    @property
    def accuracy(self) -> float | None:
        """1 - |predicted - measured| / measured."""
        return score(self.predicted_s, self.measured_s)

    @property
    def accuracy_at_speed(self) -> float | None:
        """The same of the time at the speed of the calibration; None where that is not known."""
        return None if self.at_speed_s is None else score(self.predicted_s, self.at_speed_s)

    @property
    def disturbed_by_others(self) -> bool:
        """Whether others disturbed it: then it says nothing about the machine."""
        return by_others(filter(None, self.disturbed.split(",")))

    @property
    def counts(self) -> bool:
        """Whether it enters means."""
        return self.measured_s > 0 and not self.oversubscribed


class PastCheck(NamedTuple):
    """A case of a night's check; seconds. `night` is an index into Past.nights."""

    night: int
    kind: CheckKind
    what: str
    case: str
    expected_s: float
    measured_s: float
    disturbed: str = ""

    @property
    def disturbed_by_others(self) -> bool:
        """Whether others disturbed it: then it says nothing about the machine."""
        return by_others(filter(None, self.disturbed.split(",")))


@dataclass(frozen=True)
class Past:
    """The history of one machine, the oldest night first; points and checks in the nights' order."""

    nights: Sequence[PastNight]
    points: Sequence[PastPoint]
    checks: Sequence[PastCheck] = ()
    accepted: Sequence[Acceptance] = ()
