"""The `paper` form: ParaDL's equations as corrected in formulas.md, on one alpha and beta per level.

Compute is what one PE takes for a sample, scaled by 1/p. Where the numbers come from (a parameter file,
or tables that others published) is the business of `PaperCosts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from calib.foundation.layers import Direction
from calib.oracle.cost import Cost, total
from calib.oracle.costs.contention import Phi
from calib.oracle.costs.link import Link
from calib.oracle.layout.workload import Select, Workload


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
