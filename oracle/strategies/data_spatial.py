"""Data+spatial: p1 groups with B/p1 samples each, whose p2 ranks share the images; p = p1 p2.

Spatial's terms with B/p1 inside the groups + AR(p2, W) inside a group to its leader + AR(p1, W)
between the leaders (formulas.md; ParaDL sections 3.6 and 4.5). The leaders form one ring, so phi is
that of one flow. If all ranks take part (Division.gradients), a reduce-scatter and an allgather in the
group make up AR(p2, W), and p2 concurrent rings carry W/p2 each.
"""

from __future__ import annotations

from calib.foundation.division import Division
from calib.oracle.layout.workload import model_weights
from calib.oracle.model.spec import ModelSpec
from calib.oracle.paper.form import PaperCosts
from calib.oracle.projection import Limit
from calib.oracle.strategies import spatial
from calib.oracle.strategies.common import paper_allreduce
from calib.oracle.strategies.spatial import measured, memory
from calib.oracle.terms import Term

__all__ = ["limit", "measured", "memory", "paper"]

LEADER_RINGS = 1.0


def paper(model: ModelSpec, division: Division, costs: PaperCosts) -> list[Term]:
    """The formula, with alpha and beta of a group inside it and of all p ranks between leaders."""
    p, p1, p2 = division.p, division.replicas, division.parts
    rings, share = (float(p2), p2) if division.gradients == "all" else (LEADER_RINGS, 1)
    phi = costs.contention(rings, p) if p1 > 1 else None
    nbytes, inside = model_weights(model).nbytes, "allreduce of gradients in a group"
    return [
        *spatial.paper_group(model, division, costs),
        *paper_allreduce(costs, p2, nbytes, inside, groups=p1),
        *paper_allreduce(costs, p1, nbytes / share, "allreduce between groups", p, phi),
    ]


def limit(model: ModelSpec, division: Division) -> Limit:
    """p1 <= B, and p2 as in spatial."""
    inside = spatial.limit(model, division)
    return Limit(
        ranks=division.batch * (inside.ranks or 1),
        why=f"{inside.why}; and one sample for each of p1 <= B = {division.batch} groups",
    )
