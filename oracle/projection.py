"""The Projection record: predicted seconds of an iteration by phase, with intervals."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from calib.foundation.division import Divided
from calib.foundation.environment import Environment
from calib.foundation.execution import USUAL, ExecutionName
from calib.foundation.names import ModelName, OptimizerName
from calib.foundation.quantities import (
    Count,
    Factor,
    Seconds,
    SignedMagnitude,
    SignedRatio,
    WholeBytes,
)
from calib.foundation.records import BytesEstimate, Estimate

Basis = Literal["measured", "interpolated", "extrapolated", "exact"]
# surest first; a sum is as sure as its worst part
BASIS_ORDER: tuple[Basis, ...] = ("exact", "measured", "interpolated", "extrapolated")
Form = Literal["paper", "measured"]
Phase = Literal["forward", "backward", "halo", "layerwise", "pack", "exchange", "update"]
# layerwise: outputs and input gradients sent between ranks (filter, channel, pipeline, and the end of a
# spatial split; also units of weights, fully sharded); pack: packing, unpacking, split, concat;
# exchange: of weight gradients
PHASES: tuple[Phase, ...] = (
    "forward",
    "backward",
    "halo",
    "layerwise",
    "pack",
    "exchange",
    "update",
)


# classes of error sources (oracle/sources.py says what each is)
SourceClass = Literal[
    "measured times",
    "one launch",
    "speed",
    "layers not measured",
    "passes not measured",
    "sizes not measured",
    "layouts not measured",
    "alpha and beta",
    "contention",
    "in place",
    "overlap",
]


class PhaseTime(Estimate):
    """Seconds of one phase of one iteration with a 95% interval and their basis."""

    basis: Basis = Field(
        description="measured: this very case; interpolated, extrapolated: between or beyond "
        "measured cases; exact: zero by definition"
    )


class Limit(BaseModel):
    """The most ranks of a strategy, and why."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    ranks: Count | None = Field(
        default=None, description="the most ranks; null: nothing limits them"
    )
    why: str = Field(description="the reason")


class Bottleneck(BaseModel):
    """A limitation or bottleneck of ParaDL's Table 6 that applies."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    name: str = Field(description="its name in ParaDL's Table 6")
    kind: Literal["L", "B"] = Field(description="L a limitation, B a bottleneck")
    share: SignedRatio | None = Field(
        description="share of the iteration's time; null if it does not cost time (memory, number "
        "of ranks)"
    )
    why: str = Field(description="the reason")


class TermTime(BaseModel):
    """One term of the formula."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    phase: Phase = Field(description="phase of the iteration")
    what: str = Field(description="what takes the time")
    formula: str = Field(description="in symbols")
    values: dict[str, SignedMagnitude | str] = Field(description="of the symbols, SI units")
    time: PhaseTime = Field(description="value of the formula")


class ErrorSource(BaseModel):
    """A class of error sources, and its part of the interval of an iteration."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    source: SourceClass = Field(description="what the error comes from")
    below_s: Seconds = Field(
        description="95% error below the value, s; squares add to the interval's"
    )
    above_s: Seconds = Field(description="95% error above the value, s")
    share: float = Field(
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="of the variance of the interval, both sides together",
    )
    mostly: str = Field(default="", description="the largest single source of the class")


class Projection(Divided):
    """One iteration of one model under one division.

    An impossible division has no phases and no total; one that only exceeds the memory has them.
    `limits` has every reason.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    model: ModelName
    form: Form = Field(
        default="measured",
        description="measured: from all measurements; paper: ParaDL's equations as written",
    )
    optimizer: OptimizerName = "momentum"
    execution: ExecutionName = USUAL
    environment: Environment = Field(
        default_factory=Environment, description="what it holds for: that of the measurements"
    )
    split_ends_after: str = Field(default="", description="the last layer that is split")
    phases: dict[str, PhaseTime] = Field(description="keys: PHASES")
    total: PhaseTime | None = Field(
        default=None, description="of an iteration; null if the division is impossible"
    )
    sources: list[ErrorSource] = Field(
        default_factory=list,
        description="where the interval of the total comes from, the largest part first",
    )
    launch_factors: dict[str, Factor] = Field(
        default_factory=dict,
        description="of each phase: 95% of launches lie within what many say / and * this",
    )
    samples: Count | None = Field(default=None, description="D, of the epoch")
    epoch: PhaseTime | None = Field(default=None, description="D / B iterations")
    bytes_per_rank: WholeBytes = Field(description="naive sum, without reuse (gamma = 1)")
    bytes_by_part: dict[str, WholeBytes] = Field(
        description="B of one rank: activations, weights, ..."
    )
    peak_bytes: BytesEstimate | None = Field(
        default=None,
        description="with the fitted memory reuse (gamma): of a GPU with all that is on it, of a CPU of "
        "live tensors; null without a fit",
    )
    live_peak_bytes: BytesEstimate | None = Field(
        default=None,
        description="of a GPU: of live tensors alone; null: as peak_bytes, or without a fit",
    )
    limit: Limit = Field(
        default=Limit(why="not said"), description="the most ranks of the strategy, and why"
    )
    bottlenecks: list[Bottleneck] = Field(
        default_factory=list, description="rows of ParaDL's Table 6 that apply"
    )
    feasible: bool = Field(default=True, description="whether it can run")
    limits: list[str] = Field(
        default_factory=list, description="why it cannot run; empty if it can"
    )
    notes: list[str] = Field(default_factory=list, description="what the numbers rest on")
    terms: list[TermTime] = Field(default_factory=list, description="empty unless requested")


def worst_basis(parts: list[Basis]) -> Basis:
    """The least sure of `parts`."""
    return max(parts, key=BASIS_ORDER.index, default="exact")
