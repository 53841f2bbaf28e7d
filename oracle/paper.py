"""The `paper` form: ParaDL's equations as corrected in formulas.md, on one alpha and beta per level.

Compute is what one PE takes for a sample, scaled by 1/p. Where the numbers come from (a parameter file,
or tables that others published) is the business of `PaperCosts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from fitting.records import Estimate
from oracle.cost import NOTHING, Cost, total
from oracle.projection import Basis
from oracle.workload import Select, Workload

Direction = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True)
class Link:
    """alpha and beta of the slowest level that an operation crosses (formulas.md, "Levels")."""

    level: str
    alpha_s: Estimate
    beta_s_per_byte: Estimate
    basis: Basis = "measured"
    notes: tuple[str, ...] = ()

    def hockney(self, steps: float, nbytes: float, contention: float = 1.0) -> Cost:
        """steps alpha + nbytes phi beta, where nbytes are those that one PE sends in all steps."""
        alpha, beta, weight = self.alpha_s, self.beta_s_per_byte, nbytes * contention
        return Cost(
            steps * alpha.value + weight * beta.value,
            self.basis,
            (
                (f"alpha {self.level}", steps * (alpha.value - alpha.low),
                 steps * (alpha.high - alpha.value)),
                (f"beta {self.level}", weight * (beta.value - beta.low),
                 weight * (beta.high - beta.value)),
            ),
            self.notes,
        )  # fmt: skip

    def allreduce(self, p: int, nbytes: float, contention: float = 1.0) -> Cost:
        """Ring: 2 (p-1) (alpha + m phi beta / p); m is the reduced vector."""
        if p == 1:
            return NOTHING
        return self.hockney(2.0 * (p - 1), 2.0 * (p - 1) * nbytes / p, contention)

    def allgather(self, p: int, nbytes: float, contention: float = 1.0) -> Cost:
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

    def link(self, span: int, operation: str) -> Link:
        """alpha and beta of an operation among PEs of which the last is `span` - 1 after the first."""

    def contention(self, flows: float, span: int) -> float:
        """phi of so many rings at once that leave a node: flows over its links, at least 1."""


def sum_of(costs: Sequence[Cost], work: Workload, select: Select) -> Cost:
    """The sum over the layers that `select` names."""
    wanted = {"all": (True, False), "split": (True,), "whole": (False,)}[select]
    return total(c for c, is_split in zip(costs, work.split, strict=True) if is_split in wanted)
