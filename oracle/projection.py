"""The Projection record: what one iteration will cost, phase by phase, and how sure that is."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Basis = Literal["measured", "interpolated", "extrapolated", "exact"]
# from the surest to the least sure; a sum is as sure as its worst part
BASIS_ORDER: tuple[Basis, ...] = ("exact", "measured", "interpolated", "extrapolated")
PHASES = ("forward", "backward", "pack", "exchange", "update")


class PhaseTime(BaseModel):
    """Seconds of one phase of one iteration with a 95% interval, and what they rest on.

    basis: measured (this very case was), interpolated (between measured cases), extrapolated
    (beyond them), exact (zero by definition).
    """

    model_config = ConfigDict(frozen=True)

    seconds: float
    low: float
    high: float
    basis: Basis


class Projection(BaseModel):
    """One iteration of one model under one strategy on p processing elements."""

    model_config = ConfigDict(frozen=True)

    model: str
    strategy: str
    p: int = Field(ge=1)
    batch_per_pe: int = Field(ge=1)
    batch: int = Field(ge=1, description="global mini-batch B")
    phases: dict[str, PhaseTime] = Field(description="keys: PHASES")
    total: PhaseTime
    bytes_per_pe: int = Field(ge=0)
    bytes_by_part: dict[str, int]
    feasible: bool = True
    limits: list[str] = Field(default_factory=list, description="why it cannot run, if it cannot")
    notes: list[str] = Field(default_factory=list, description="what the numbers rest on")


def worst_basis(parts: list[Basis]) -> Basis:
    """The least sure of `parts`."""
    return max(parts, key=BASIS_ORDER.index, default="exact")
