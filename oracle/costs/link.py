"""alpha and beta of one level, and ring algorithms on it (formulas.md)."""

from __future__ import annotations

from dataclasses import dataclass

from calib.foundation.records import Estimate
from calib.oracle.cost import NOTHING, Cost
from calib.oracle.costs.contention import Phi
from calib.oracle.projection import Basis
from calib.oracle.sources import CONTENTION, HOCKNEY, source_of

ALONE = Phi.exactly(1.0)


@dataclass(frozen=True, slots=True)
class Link:
    """alpha and beta of the slowest level that an operation crosses (formulas.md, "Levels")."""

    level: str
    alpha_s: Estimate
    beta_s_per_byte: Estimate
    basis: Basis = "measured"
    notes: tuple[str, ...] = ()

    @property
    def values(self) -> dict[str, float]:
        """alpha and beta for --explain."""
        return {"alpha": self.alpha_s.value, "beta": self.beta_s_per_byte.value}

    def hockney(self, steps: float, nbytes: float, contention: Phi = ALONE) -> Cost:
        """steps alpha + nbytes phi beta; `nbytes` is what one rank sends in all steps."""
        alpha, beta, phi = self.alpha_s, self.beta_s_per_byte, contention.factor
        weight, alone = nbytes * phi.value, nbytes * beta.value
        errors = [
            (
                source_of(HOCKNEY, f"alpha {self.level}"),
                steps * (alpha.value - alpha.low),
                steps * (alpha.high - alpha.value),
            ),
            (
                source_of(HOCKNEY, f"beta {self.level}"),
                weight * (beta.value - beta.low),
                weight * (beta.high - beta.value),
            ),
        ]
        if phi.low < phi.high:
            below, above = alone * (phi.value - phi.low), alone * (phi.high - phi.value)
            errors.append((CONTENTION, below, above))
        seconds = steps * alpha.value + weight * beta.value
        cost = Cost(seconds, self.basis, tuple(errors), (*self.notes, *contention.notes))
        return cost.at_best(contention.basis)

    def allreduce(self, p: int, nbytes: float, contention: Phi = ALONE) -> Cost:
        """Ring: 2 (p-1) (alpha + m phi beta / p); m is the reduced vector."""
        if p == 1:
            return NOTHING
        return self.hockney(2.0 * (p - 1), 2.0 * (p - 1) * nbytes / p, contention)

    def allgather(self, p: int, nbytes: float, contention: Phi = ALONE) -> Cost:
        """Ring: (p-1) (alpha + m phi beta / p); m is the gathered result. Also reduce-scatter."""
        if p == 1:
            return NOTHING
        return self.hockney(p - 1.0, (p - 1.0) * nbytes / p, contention)

    def p2p(self, nbytes: float, count: float = 1.0) -> Cost:
        """count (alpha + m beta)."""
        return self.hockney(count, count * nbytes)
