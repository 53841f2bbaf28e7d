"""Serial: B sum(FW + BW) + sum(WU) (formulas.md; ParaDL section 4.2).

The paper form has the same sums for N micro-batches whose gradients are added up.
"""

from __future__ import annotations

from calib.foundation.division import Division
from calib.oracle.costs.machine import Costs
from calib.oracle.layout.workload import workload
from calib.oracle.memory.naive import replicated_parts
from calib.oracle.model.spec import ModelSpec
from calib.oracle.paper.form import PaperCosts
from calib.oracle.projection import Limit
from calib.oracle.strategies.common import compute_terms, paper_compute, paper_update, update_terms
from calib.oracle.terms import Term


def measured(model: ModelSpec, division: Division, costs: Costs) -> list[Term]:
    """Layers at the whole batch or at a micro-batch, and the update."""
    return [*compute_terms(model, division, costs), *update_terms(model, division, costs)]


def paper(model: ModelSpec, division: Division, costs: PaperCosts) -> list[Term]:
    """B sum(FW + BW) + sum(WU)."""
    work = workload(model, division)
    return [*paper_compute(work, costs, division.batch, division.batch), paper_update(costs)]


def memory(model: ModelSpec, division: Division, optimizer: str) -> dict[str, int]:
    """Everything on one rank."""
    return replicated_parts(model, division.local_batch, False, optimizer)


def limit(model: ModelSpec, division: Division) -> Limit:
    """One rank."""
    return Limit(ranks=1, why="serial runs on one rank")
