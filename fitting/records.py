"""What every record of the parameter file is made of: frozen records and estimates with intervals."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

MAX_ALPHA_S = 10.0
# bounds beyond any machine, so that a mistake is no overflow
MAX_RANKS = 10**9
MAX_BYTES = 2**63 - 1

Finite = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Ranks = Annotated[int, Field(ge=1, le=MAX_RANKS)]  # or nodes, or groups
Count = Annotated[int, Field(ge=1, le=MAX_BYTES)]


class Record(BaseModel):
    """Base of all records of the file: frozen, no unknown keys, no NaN."""

    # built when first used: `calib predict` starts in half a second and needs few of them
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class SignedEstimate(Record):
    """A value that may be negative, with its 95% interval."""

    value: FiniteFloat
    low: FiniteFloat
    high: FiniteFloat

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"interval [{self.low}, {self.high}] does not hold {self.value}")
        return self

    @classmethod
    def around(cls, value: float, low: float, high: float) -> Self:
        """The value with an interval, stretched where a bootstrap's leaves the value out."""
        return cls(value=value, low=min(low, value), high=max(high, value))


class Estimate(SignedEstimate):
    """A value that cannot be negative, with its 95% interval."""

    value: Finite
    low: Finite
    high: Finite

    def scaled(self, factor: float) -> Estimate:
        """This estimate times a constant factor >= 0."""
        return Estimate(value=self.value * factor, low=self.low * factor, high=self.high * factor)


class Alpha(Estimate):
    """A start-up time; over 10 s it is a mistake of units."""

    @model_validator(mode="after")
    def _plausible(self) -> Alpha:
        if self.value > MAX_ALPHA_S:
            raise ValueError(f"alpha of {self.value} s is over {MAX_ALPHA_S} s")
        return self
