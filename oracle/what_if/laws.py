"""Collective laws after a change of alpha or beta.

A law is t(m) = start + bytes(m), where start is its time at 0 bytes. Scaling alpha by f gives
f start + bytes(m), scaling beta gives start + f bytes(m), and adding d to alpha or beta adds steps d or
volume m d (formulas.md, "Collectives"). So the ends, pieces and points of a fit stay consistent, pieces
meet where they met, and no time is negative. The start is the fit's intercept, or the smallest time if
that is less. An = is the scaling that sets alpha or beta (an addition if it was 0).

Structural laws scale these. A measured phi multiplies beta as before.
"""

from __future__ import annotations

from dataclasses import dataclass

from calib.fitting.parameters.collectives import (
    CollectiveFit,
    CollectivePoint,
    HockneyPiece,
    SharedPoint,
)
from calib.foundation.errors import InputError
from calib.foundation.records import Estimate


@dataclass(frozen=True)
class Operator:
    """An operator (= *= /= +=) and its number."""

    operator: str
    number: float

    @property
    def constant_factor(self) -> float | None:
        """The factor of *= and /=; None for = and +=."""
        return {"*=": self.number, "/=": 1.0 / (self.number or 1.0)}.get(self.operator)

    def number_for(self, value: float) -> float:
        """A number after the change."""
        if self.constant_factor is not None:
            return value * self.constant_factor
        return self.number if self.operator == "=" else value + self.number

    def factor_for(self, value: float) -> float | None:
        """The change of `value` as a factor; None if it is an addition."""
        if self.operator == "=" and value > 0:
            return self.number / value
        return self.constant_factor

    def estimate(self, of: Estimate) -> Estimate:
        """An estimate after the change; its ends scale or move with the value."""
        factor = self.factor_for(of.value)
        if factor is not None:
            return of.scaled(factor)
        return moved(of, self.number)  # +=, or = on 0


def moved(of: Estimate, by: float) -> Estimate:
    """Value and ends moved; the lower end of a non-negative estimate stops at 0."""
    value, low = of.value + by, of.low + by
    if of.low >= 0 and value >= 0:
        low = max(0.0, low)
    return Estimate(value=value, low=low, high=of.high + by)


@dataclass(frozen=True)
class _Law:
    """t' = start_factor start + byte_factor (t - start) + add + add_per_byte m."""

    start: float
    start_factor: float = 1.0
    byte_factor: float = 1.0
    add: float = 0.0
    add_per_byte: float = 0.0

    def piece(self, of: HockneyPiece, first: bool) -> HockneyPiece:
        """A changed piece; the interval of the first one scales with the start."""
        offset = of.intercept_s.value - self.start
        whole = self.start_factor * self.start + self.byte_factor * offset + self.add
        if first and offset == 0:
            intercept = moved(of.intercept_s.scaled(self.start_factor), self.add)
        else:
            intercept = of.intercept_s.scaled(self.byte_factor)
            intercept = moved(intercept, whole - intercept.value)
        slope = moved(of.slope_s_per_byte.scaled(self.byte_factor), self.add_per_byte)
        return HockneyPiece(
            from_nbytes=of.from_nbytes,
            to_nbytes=of.to_nbytes,
            intercept_s=intercept,
            slope_s_per_byte=slope,
        )

    def point(self, of: CollectivePoint) -> CollectivePoint:
        """A changed point."""
        return CollectivePoint(nbytes=of.nbytes, seconds=self.time(of.nbytes, of.seconds), n=of.n)

    def time(self, nbytes: int, t: Estimate) -> Estimate:
        """A changed time of so many bytes; its interval keeps its relative width."""
        value = self.start_factor * self.start + self.byte_factor * (t.value - self.start)
        value += self.add + self.add_per_byte * nbytes
        return t.scaled(value / t.value) if t.value > 0 else moved(t, value - t.value)


def changed_fit(fit: CollectiveFit, link: str, change: Operator) -> CollectiveFit:
    """A direct law with another alpha_s or beta_s_per_byte (`link`). Raises InputError if negative."""
    of_alpha = link == "alpha_s"
    steps, volume = fit.shape
    known = fit.alpha_s.value if of_alpha else fit.beta_s_per_byte.value
    if change.number_for(known) < 0:
        raise InputError(f"{link} of {known:g} cannot become {change.number_for(known):g}")
    factor, start = change.factor_for(known), _start(fit)
    if factor is None:
        law = _Law(
            start,
            add=steps * change.number if of_alpha else 0.0,
            add_per_byte=0.0 if of_alpha else volume * change.number,
        )
    elif of_alpha:
        law = _Law(start, start_factor=factor)
    else:
        law = _Law(start, byte_factor=factor)
    content = {
        "intercept_s": moved(fit.intercept_s.scaled(law.start_factor), law.add),
        "slope_s_per_byte": moved(fit.slope_s_per_byte.scaled(law.byte_factor), law.add_per_byte),
        "pieces": [law.piece(piece, k == 0) for k, piece in enumerate(fit.pieces)],
        "points": [law.point(point) for point in fit.points],
        "beyond": [
            SharedPoint(nbytes=point.nbytes, seconds=law.time(point.nbytes, point.seconds))
            for point in fit.beyond
        ],
    }
    return CollectiveFit.model_validate({**dict(fit), **content})


def _start(fit: CollectiveFit) -> float:
    """The time of pieces and points at 0 bytes."""
    ends = [piece.at(m) for piece in fit.pieces for m in (piece.from_nbytes, piece.to_nbytes)]
    times = [point.seconds.value for point in fit.points]
    return max(0.0, min([fit.intercept_s.value, *ends, *times]))
