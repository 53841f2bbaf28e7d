"""What records are made of: a frozen base, and one number with its 95% interval."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from calib.foundation.quantities import (
    MAX_BYTES,
    MAX_FLOPS,
    MAX_PER_SECOND,
    MAX_RATIO,
    MAX_S_PER_BYTE,
    MAX_SECONDS,
    SignedMagnitude,
)

Z_95 = NormalDist().inv_cdf(0.975)


class Record(BaseModel):
    """Base of records: frozen, no unknown keys."""

    # built when first used: `calib predict` starts in half a second and needs few of them
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """pydantic's copy, without the cached properties of this one."""
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied


class Estimate(Record):
    """A number with its 95% interval. The field that holds it says its unit and its bounds."""

    value: SignedMagnitude = Field(description="in the unit that the field with the estimate has")
    low: SignedMagnitude = Field(description="lower end of the 95% interval")
    high: SignedMagnitude = Field(description="upper end of the 95% interval")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"interval [{self.low}, {self.high}] does not hold {self.value}")
        return self

    @classmethod
    def exactly(cls, value: float) -> Self:
        """The value alone."""
        return cls(value=value, low=value, high=value)

    @classmethod
    def around(cls, value: float, low: float, high: float) -> Self:
        """The value with an interval, stretched where a bootstrap's interval leaves the value out."""
        return cls(value=value, low=min(low, value), high=max(high, value))

    @classmethod
    def within_factor(cls, value: float, factor: float) -> Self:
        """A value >= 0 that may be `factor` times as little or as much."""
        return cls(value=value, low=value / factor, high=value * factor)

    @property
    def has_interval(self) -> bool:
        """Whether it says how sure it is: a single time does not, and has low = value = high.

        A log of one run has one time of each size. A value of 0 is a bound.
        """
        return self.low < self.high or self.value == 0

    @property
    def numbers(self) -> tuple[float, float, float]:
        """(value, low, high), in the order of a table's columns."""
        return self.value, self.low, self.high

    @staticmethod
    def columns(name: str, unit: str) -> tuple[str, str, str]:
        """What the columns of `numbers` are called: total_s, total_low_s, total_high_s."""
        return f"{name}_{unit}", f"{name}_low_{unit}", f"{name}_high_{unit}"

    @property
    def half_width(self) -> float:
        """Relative half-width of the interval; 0 where the value is 0."""
        return (self.high - self.low) / (2 * self.value) if self.value > 0 else 0.0

    def covers(self, value: float) -> bool:
        """Whether `value` lies in the interval."""
        return self.low <= value <= self.high

    def scaled(self, factor: float) -> Estimate:
        """This estimate times a constant factor >= 0."""
        return Estimate(value=self.value * factor, low=self.low * factor, high=self.high * factor)

    def per_second(self, amount: float) -> Estimate | None:
        """`amount` over this time in s, the ends of the interval turned round.

        None where the time may be nothing.
        """
        fastest = amount / self.low if self.low > 0 else math.inf
        if fastest > MAX_FLOPS:
            return None
        return Estimate(value=amount / self.value, low=amount / self.high, high=fastest)

    def interval(self, confidence: float) -> tuple[float, float]:
        """(low, high) at another confidence, with normal errors on either side."""
        share = NormalDist().inv_cdf((1.0 + confidence) / 2.0) / Z_95
        down, up = self.value - self.low, self.high - self.value
        return self.value - share * down, self.value + share * up


def _within(least: float, most: float, unit: str) -> AfterValidator:
    """Refuse an estimate whose interval goes beyond the bounds of its unit."""

    def check(of: Estimate) -> Estimate:
        if not least <= of.low <= of.high <= most:
            raise ValueError(
                f"[{of.low:g}, {of.high:g}] is not within {least:g} to {most:g} {unit}"
            )
        return of

    return AfterValidator(check)


TimeEstimate = Annotated[Estimate, _within(0, MAX_SECONDS, "s")]
SignedTimeEstimate = Annotated[Estimate, _within(-MAX_SECONDS, MAX_SECONDS, "s")]
TimePerByte = Annotated[Estimate, _within(0, MAX_S_PER_BYTE, "s/B")]
BytesEstimate = Annotated[Estimate, _within(0, MAX_BYTES, "B")]
FlopsPerSecond = Annotated[Estimate, _within(1, MAX_PER_SECOND, "flop/s")]
BytesPerSecond = Annotated[Estimate, _within(1, MAX_PER_SECOND, "B/s")]
RatioEstimate = Annotated[Estimate, _within(0, MAX_RATIO, "times")]
