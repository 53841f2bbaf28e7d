"""What every record of the parameter file is made of: frozen records and estimates with intervals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from calib.foundation.quantities import (
    MAX_ALPHA_S,
    MAX_BYTES,
    MAX_RATIO,
    MAX_S_PER_BYTE,
    MAX_SECONDS,
    Magnitude,
    Ranks,
    SignedMagnitude,
    SignedRatio,
)


class Record(BaseModel):
    """Base of all records of the file: frozen, no unknown keys, no NaN."""

    # built when first used: `calib predict` starts in half a second and needs few of them
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class SignedEstimate(Record):
    """A value that may be negative, with its 95% interval."""

    value: SignedMagnitude = Field(description="in the unit that the field with the estimate has")
    low: SignedMagnitude = Field(description="lower end of the 95% interval")
    high: SignedMagnitude = Field(description="upper end of the 95% interval")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"interval [{self.low}, {self.high}] does not hold {self.value}")
        return self

    @property
    def has_interval(self) -> bool:
        """Whether it says how sure it is: one time alone has no error of its own to tell.

        A log of one run has one time of each size, and low = value = high. A value of 0 is a bound.
        """
        return self.low < self.high or self.value == 0

    @classmethod
    def around(cls, value: float, low: float, high: float) -> Self:
        """The value with an interval, stretched where a bootstrap's leaves the value out."""
        return cls(value=value, low=min(low, value), high=max(high, value))


class Estimate(SignedEstimate):
    """A value that cannot be negative, with its 95% interval."""

    value: Magnitude = Field(description="in the unit that the field with the estimate has")
    low: Magnitude = Field(description="lower end of the 95% interval")
    high: Magnitude = Field(description="upper end of the 95% interval")

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


Of = TypeVar("Of", bound=SignedEstimate)


def _within(most: float, unit: str) -> Callable[[Of], Of]:
    """Refuses an estimate whose interval reaches beyond what its unit can be."""

    def check(of: Of) -> Of:
        if max(-of.low, of.high) > most:
            raise ValueError(f"[{of.low:g}, {of.high:g}] {unit} is beyond {most:g} {unit}")
        return of

    return check


CallTime = Annotated[Estimate, AfterValidator(_within(MAX_SECONDS, "s"))]
SignedCallTime = Annotated[SignedEstimate, AfterValidator(_within(MAX_SECONDS, "s"))]
TimePerByte = Annotated[Estimate, AfterValidator(_within(MAX_S_PER_BYTE, "s/B"))]
BytesEstimate = Annotated[Estimate, AfterValidator(_within(MAX_BYTES, "B"))]
ActiveRanks = Annotated[Ranks, Field(description="ranks of one node that worked at once")]
Residuals = Annotated[
    list[SignedRatio], Field(description="measured / law - 1 at 5, 25, 50, 75 and 95% of them")
]
RatioEstimate = Annotated[Estimate, AfterValidator(_within(MAX_RATIO, "times"))]
