"""The `paper` form: ParaDL's equations as corrected in formulas.md, on one alpha and beta per level.

Compute is what one PE takes for a sample, scaled by 1/p. Where the numbers come from (a parameter file,
or tables that others published) is the business of `PaperCosts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from calib.fitting.parameters.records import Estimate
from calib.oracle.cost import NOTHING, Cost, total
from calib.oracle.costs.contention import Phi
from calib.oracle.layout.workload import Select, Workload
from calib.oracle.projection import Basis

Direction = Literal["forward", "backward"]
ALONE = Phi.exactly(1.0)


@dataclass(frozen=True, slots=True)
class Link:
    """alpha and beta of the slowest level that an operation crosses (formulas.md, "Levels")."""

    level: str
    alpha_s: Estimate
    beta_s_per_byte: Estimate
    basis: Basis = "measured"
    notes: tuple[str, ...] = ()

    def hockney(self, steps: float, nbytes: float, contention: Phi = ALONE) -> Cost:
        """steps alpha + nbytes phi beta, where nbytes are those that one PE sends in all steps."""
        alpha, beta, phi = self.alpha_s, self.beta_s_per_byte, contention.factor
        weight, alone = nbytes * phi.value, nbytes * beta.value
        errors = [
            (
                f"alpha {self.level}",
                steps * (alpha.value - alpha.low),
                steps * (alpha.high - alpha.value),
            ),
            (
                f"beta {self.level}",
                weight * (beta.value - beta.low),
                weight * (beta.high - beta.value),
            ),
        ]
        if phi.low < phi.high:
            below, above = alone * (phi.value - phi.low), alone * (phi.high - phi.value)
            errors.append(("contention", below, above))
        seconds = steps * alpha.value + weight * beta.value
        cost = Cost(seconds, self.basis, tuple(errors), (*self.notes, *contention.notes))
        return cost.at_best(contention.basis)

    def allreduce(self, p: int, nbytes: float, contention: Phi = ALONE) -> Cost:
        """Ring: 2 (p-1) (alpha + m phi beta / p); m is the reduced vector."""
        if p == 1:
            return NOTHING
        return self.hockney(2.0 * (p - 1), 2.0 * (p - 1) * nbytes / p, contention)

    def allgather(self, p: int, nbytes: float, contention: Phi = ALONE) -> Cost:
        """Ring: (p-1) (alpha + m phi beta / p); m is the gathered result. Reduce-scatter alike."""
        if p == 1:
            return NOTHING
        return self.hockney(p - 1.0, (p - 1.0) * nbytes / p, contention)

    def p2p(self, nbytes: float, count: float = 1.0) -> Cost:
        """count (alpha + m beta)."""
        return self.hockney(count, count * nbytes)


class PaperCosts(Protocol):
    """What the equations are fed with, for one model."""

    def each(self, direction: Direction) -> Sequence[Cost]:
        """FW_l or BW_l: seconds per sample of every layer of the model on one PE."""

    def total(self, work: Workload, select: Select, direction: Direction) -> Cost:
        """Their sum over the layers that a strategy splits, does not split, or all of them."""

    def update(self) -> Sequence[Cost]:
        """WU_l: seconds per iteration of updating the weights of every layer on one PE."""

    def update_total(self) -> Cost:
        """Their sum."""

    def link(self, span: int, operation: str, groups: int = 1) -> Link:
        """alpha and beta of an operation among PEs of which the last is `span` - 1 after the first.

        Of the slowest level that any of so many groups, one behind the other, crosses.
        """

    def contention(self, flows: float, span: int) -> Phi:
        """phi of so many rings at once that leave a node: flows over its links, at least 1."""


def sum_of(costs: Sequence[Cost], work: Workload, select: Select) -> Cost:
    """The sum over the layers that `select` names."""
    wanted = {"all": (True, False), "split": (True,), "whole": (False,)}[select]
    return total(c for c, is_split in zip(costs, work.split, strict=True) if is_split in wanted)
