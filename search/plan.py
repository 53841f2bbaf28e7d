"""The Plan record (plan.json): what a search chose for each layer, stage or variable, and how sure."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from calib.fitting.parameters.signature import SIGNATURE, broken, digest, with_signature
from calib.foundation.files import read_record, write_json
from calib.foundation.names import ModelName, OptimizerName
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
    """Base of the records of this file: frozen, no unknown keys, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class PlanLayer(PlanRecord):
    """A layer (operator, variable) and what was chosen for it, in words and as `degrees`."""

    name: str = Field(description="of the layer, operator or variable")
    kind: str = Field(description="conv, linear, variable, ...")
    choice: str = Field(
        description="what was chosen, for people: n=4; S0:2 B:4; parameter server, 128 parts"
    )
    degrees: dict[str, Ranks] = Field(
        default_factory=dict,
        description="into how many parts each dimension is cut (sample, channel, height, ...); one "
        "that is not there is whole",
    )
    stage: KnownRanks | None = Field(
        default=None, description="of a pipeline, from 0; null of a plan without stages"
    )
    seconds: dict[str, SignedSeconds] = Field(
        default_factory=dict,
        description="s of one iteration, by what they are for: compute, synchronize, redistribute, "
        "...",
    )
    bytes_per_device: WholeBytes = Field(default=0, description="the most that one device holds, B")


class PlanStage(PlanRecord):
    """A stage of a pipeline: layers [first, stop) of the plan's order on `replicas` devices."""

    first: CountOrNone = Field(description="index of its first layer")
    stop: Count = Field(description="index behind its last layer")
    replicas: Ranks = Field(description="devices that take mini-batches in turn")
    seconds: Seconds = Field(description="of a mini-batch, over all its replicas")
    bytes_per_device: WholeBytes = Field(default=0, description="the most that one device holds, B")
    inner: tuple[PlanStage, ...] = Field(
        default=(), description="how one of the replicas is divided again, inside a machine"
    )


class Searched(PlanRecord):
    """How far the search looked."""

    evaluated: CountOrNone = Field(
        description="costs of whole plans, or entries of tables, looked at"
    )
    log10_space: Magnitude = Field(description="log10 of the number of plans in the space")
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

    Where only part of the space was searched, it holds for that part, which `within` names.
    """

    kind: Literal["optimal", "bound", "none"] = Field(
        description="optimal: no plan is better; bound: none is faster than lower_bound_s; none: "
        "nothing is known"
    )
    lower_bound_s: Seconds | None = Field(
        default=None, description="s that no plan is below; null: not known"
    )
    gap: Ratio | None = Field(
        default=None,
        description="share of the bound that the plan may be above the best; null: not known",
    )
    within: str = Field(
        default="", description="the pruned set that was searched; empty: all plans"
    )
    why: str = Field(description="the reason")

    @classmethod
    def bounded(cls, seconds: float, bound: float, why: str) -> Certificate:
        """Of a plan of so many seconds that no plan is faster than `bound`."""
        gap = max(0.0, seconds / bound - 1.0) if bound else 0.0
        return cls(kind="bound", lower_bound_s=bound, gap=gap, why=why)


class Baseline(PlanRecord):
    """A plan that people take without a search, under the same costs."""

    name: str = Field(description="data, model, one-weird-trick, ...")
    total: PhaseTime | None = Field(description="null where it cannot be")
    bytes_per_device: WholeBytes = Field(default=0, description="the most that one device holds, B")
    feasible: bool = Field(default=True, description="whether it can be, and fits the memory")
    why: str = Field(default="", description="why it cannot be, or what it is")

    @classmethod
    def judged(
        cls, name: str, total: PhaseTime, nbytes: int, limit: int, why: str = ""
    ) -> Baseline:
        """One that holds `nbytes` per device, and whether that fits the `limit` (0: none)."""
        fits = not limit or nbytes <= limit
        if not fits:
            why = f"{nbytes} bytes on a device are more than {limit}"
        return cls(name=name, total=total, bytes_per_device=nbytes, feasible=fits, why=why)


class Event(PlanRecord):
    """One piece of work on a timeline, coloured by `kind`."""

    row: str = Field(description="the device or link that works")
    kind: str = Field(description="of work: forward, backward, send, ...")
    label: str = Field(description="which piece of work")
    start_s: Seconds = Field(description="s since the iteration began")
    stop_s: Seconds = Field(description="s since the iteration began")


class SearchedPlan(PlanRecord):
    """What a search found for one model on one cluster."""

    format_version: FormatVersion = PLAN_FORMAT
    signature: str = Field(default="", description="sha256 of everything else, as RFC 8785 JSON")
    space: str = Field(description="of plans: layerwise, sbp, pipeline, exchange or variables")
    method: str = Field(description="of search, in its space")
    model: ModelName
    nodes: Ranks = Field(description="of the cluster that was searched for")
    devices_per_node: Ranks = Field(description="of the cluster that was searched for")
    batch: Count | None = Field(
        description="global mini-batch B; null where a profile or publication does not say it"
    )
    form: Literal["measured", "paper"] = Field(
        description="measured: costs of the calibrated laws; paper: of the equations in its paper"
    )
    optimizer: OptimizerName = "momentum"
    layers: tuple[PlanLayer, ...] = Field(
        description="in the order of the model, each with what was chosen for it"
    )
    stages: tuple[PlanStage, ...] = Field(default=(), description="of a pipeline, in their order")
    details: dict[str, str] = Field(default_factory=dict, description="schedule, mesh, slices, ...")
    phases: dict[str, PhaseTime] = Field(description="of one iteration, by what they are for")
    total: PhaseTime = Field(description="one iteration")
    bytes_per_device: WholeBytes = Field(description="the most that any device holds")
    memory_limit_bytes: WholeBytes = Field(default=0, description="0: none was given")
    searched: Searched = Field(description="how far the search looked, and how long it took")
    certificate: Certificate = Field(description="what is known of better plans")
    baselines: tuple[Baseline, ...] = Field(
        default=(), description="plans without a search, under the same costs"
    )
    timeline: tuple[Event, ...] = Field(default=(), description="of one iteration, where simulated")
    tables: dict[str, list[dict[str, Whole | SignedMagnitude | str]]] = Field(
        default_factory=dict, description="what the space shows beside: sweeps, bytes, partitions"
    )
    parameters: str = Field(description="name of the cluster that the parameters are of")
    parameters_sha256: str = Field(default="", description="signature of the parameter file")
    notes: tuple[str, ...] = Field(default=(), description="what a reader must know")

    @property
    def p(self) -> int:
        """Devices of the cluster that was searched for."""
        return self.nodes * self.devices_per_node

    def write(self, path: Path) -> None:
        """Write plan.json whole or not at all, with its signature."""
        write_json(path, with_signature(self.model_dump(mode="json")))

    @property
    def edited(self) -> str:
        """How a plan that was read shows that it was edited by hand; "" where it does not."""
        content = self.model_dump(mode="json")
        return broken(content | {SIGNATURE: self.signature or None}, digest(content))

    @classmethod
    def read(cls, path: Path | str) -> SearchedPlan:
        """Read plan.json. Raises FileError."""
        return read_record(cls, Path(path), "plan file", PLAN_FORMAT)
