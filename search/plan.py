"""The Plan record (plan.json): what a search chose for every layer, stage or variable, and how sure."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from calib.fitting.parameters.signature import SIGNATURE, broken, digest, with_signature
from calib.foundation.files import read_record, write_json
from calib.foundation.quantities import (
    Count,
    CountOrNone,
    FormatVersion,
    KnownRanks,
    Magnitude,
    Ranks,
    Ratio,
    Seconds,
    SignedMagnitude,
    SignedSeconds,
    Whole,
    WholeBytes,
)
from calib.oracle.projection import PhaseTime

PLAN_FORMAT = 1


class PlanRecord(BaseModel):
    """Base of all records of the file: frozen, no unknown keys, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class PlanLayer(PlanRecord):
    """A layer (operator, variable) and what was chosen for it.

    `choice` is for people (n=4; S0:2 B:4; parameter server, 128 parts), `degrees` for programs: by
    dimension (sample, channel, height, width, depth, input, ...) into how many parts it is cut; a
    dimension that is not there is whole. `seconds` are by what they are for (compute, synchronize,
    redistribute, ...): the layer's part of one iteration.
    """

    name: str
    kind: str
    choice: str
    degrees: dict[str, Ranks] = Field(default_factory=dict)
    stage: KnownRanks | None = None
    seconds: dict[str, SignedSeconds] = Field(default_factory=dict)
    bytes_per_device: WholeBytes = 0


class PlanStage(PlanRecord):
    """A stage of a pipeline: layers [first, stop) of the plan's order on `replicas` devices."""

    first: CountOrNone
    stop: Count
    replicas: Ranks
    seconds: Seconds = Field(description="of a mini-batch, over all its replicas")
    bytes_per_device: WholeBytes = 0
    inner: tuple[PlanStage, ...] = Field(
        default=(), description="how one of the replicas is divided again, inside a machine"
    )


class Searched(PlanRecord):
    """How far the search looked. `log10_space` is of the number of plans that the space holds."""

    evaluated: CountOrNone = Field(
        description="costs of whole plans, or entries of tables, looked at"
    )
    log10_space: Magnitude
    tables_seconds: Seconds = Field(description="building the tables of costs")
    seconds: Seconds = Field(description="the search itself")
    stopped: Literal["complete", "budget"] = Field(
        description="complete: the method ran to its end; budget: the budget did"
    )
    steps: dict[str, CountOrNone] = Field(
        default_factory=dict, description="of the method, by name"
    )
    course: tuple[tuple[Seconds, SignedSeconds], ...] = Field(
        default=(), description="(seconds since the start, best total so far), each time it fell"
    )


class Certificate(PlanRecord):
    """What is known of better plans, under the cost model of this search.

    optimal: there is none; bound: none is faster than `lower_bound_s`, so that the plan is at most
    `gap` (a share of the bound) above the best; none: nothing is known. Where only a part of the space
    was searched, all this is of that part alone, and `within` says which.
    """

    kind: Literal["optimal", "bound", "none"]
    lower_bound_s: Seconds | None = None
    gap: Ratio | None = None
    within: str = Field(
        default="", description="the pruned set that was searched; empty: all plans"
    )
    why: str


class Baseline(PlanRecord):
    """A plan that people take without a search, under the same cost model."""

    name: str
    total: PhaseTime | None = Field(description="None where it cannot be")
    bytes_per_device: WholeBytes = 0
    feasible: bool = True
    why: str = Field(default="", description="why it cannot be, or what it is")

    @classmethod
    def judged(
        cls, name: str, total: PhaseTime, nbytes: int, limit: int, why: str = ""
    ) -> Baseline:
        """One that takes `nbytes` of a device of `limit` (0: none was given), and whether it fits."""
        fits = not limit or nbytes <= limit
        if not fits:
            why = f"{nbytes} bytes on a device are more than {limit}"
        return cls(name=name, total=total, bytes_per_device=nbytes, feasible=fits, why=why)


class Event(PlanRecord):
    """One piece of work on a timeline: `row` is a device or link, `kind` colours it."""

    row: str
    kind: str
    label: str
    start_s: Seconds
    stop_s: Seconds


class Plan(PlanRecord):
    """What a search found for one model on one cluster."""

    format_version: FormatVersion = PLAN_FORMAT
    signature: str = Field(default="", description="sha256 of everything else, as RFC 8785 JSON")
    space: str
    method: str
    model: str
    nodes: Ranks
    devices_per_node: Ranks
    batch: Count | None = Field(
        description="global mini-batch B; null where a profile or publication does not say it"
    )
    form: Literal["measured", "paper"] = Field(
        description="measured: costs of the calibrated laws; paper: of the equations in its paper"
    )
    optimizer: str = "momentum"
    layers: tuple[PlanLayer, ...]
    stages: tuple[PlanStage, ...] = ()
    details: dict[str, str] = Field(default_factory=dict, description="schedule, mesh, slices, ...")
    phases: dict[str, PhaseTime] = Field(description="of one iteration, by what they are for")
    total: PhaseTime
    bytes_per_device: WholeBytes = Field(description="the most that any device holds")
    memory_limit_bytes: WholeBytes = Field(default=0, description="0: none was given")
    searched: Searched
    certificate: Certificate
    baselines: tuple[Baseline, ...] = ()
    timeline: tuple[Event, ...] = Field(default=(), description="of one iteration, where simulated")
    tables: dict[str, list[dict[str, Whole | SignedMagnitude | str]]] = Field(
        default_factory=dict, description="what the space shows beside: sweeps, bytes, partitions"
    )
    parameters: str = Field(description="name of the cluster that the parameters are of")
    parameters_sha256: str = Field(default="", description="signature of the parameter file")
    notes: tuple[str, ...] = ()

    @property
    def p(self) -> int:
        """Devices of the cluster that was searched for."""
        return self.nodes * self.devices_per_node

    def write(self, path: Path) -> None:
        """Write plan.json whole or not at all, with its signature."""
        write_json(path, with_signature(self.model_dump(mode="json")))

    @property
    def edited(self) -> str:
        """What shows that a plan that was read was edited by hand before; "" where nothing does."""
        content = self.model_dump(mode="json")
        return broken(content | {SIGNATURE: self.signature or None}, digest(content))

    @classmethod
    def read(cls, path: Path | str) -> Plan:
        """Read plan.json. Raises FileError."""
        return read_record(cls, Path(path), "plan file", PLAN_FORMAT)
