"""The `paper` form: ParaDL's equations as corrected in formulas.md, on one alpha and beta per level.

Compute is one PE's time per sample, scaled by 1/p. The numbers come from a `PaperCosts`: a parameter
file (costs.py) or published tables (published.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from calib.foundation.layers import Direction
from calib.oracle.cost import Cost, total
from calib.oracle.costs.contention import Phi
from calib.oracle.costs.link import Link
from calib.oracle.layout.workload import Select, Workload

# which values of Workload.split each Select names
SELECTED: dict[Select, tuple[bool, ...]] = {
    "all": (False, True),
    "split": (True,),
    "whole": (False,),
}


class PaperCosts(Protocol):
    """The inputs of the equations, for one model."""

    def each(self, direction: Direction) -> Sequence[Cost]:
        """FW_l or BW_l: seconds per sample of every layer of the model on one PE."""

    def total(self, work: Workload, select: Select, direction: Direction) -> Cost:
        """The sum of `each` over the layers that `select` names: split, whole or all."""
        chosen = zip(self.each(direction), work.split, strict=True)
        return total(cost for cost, is_split in chosen if is_split in SELECTED[select])

    def update(self) -> Sequence[Cost]:
        """WU_l: seconds of updating the weights of every layer once on one PE."""

    def update_total(self) -> Cost:
        """The sum of `update`."""
        return total(self.update())

    def link(self, span: int, operation: str, groups: int = 1) -> Link:
        """alpha and beta of an operation among `span` adjacent PEs.

        They are those of the slowest level that any of `groups` consecutive such groups crosses.
        """

    def contention(self, flows: float, span: int) -> Phi:
        """phi of so many concurrent rings that leave a node: flows over its links, at least 1."""
