"""Data+filter: p1 groups with B/p1 samples each, whose p2 ranks share the filters; p = p1 p2.

(B/p) sum_split(FW + BW) + (B/p1) sum_rest(FW + BW) + sum(WU)/p2 + filter's messages in a group
+ 2 (p1-1) (alpha + W phi beta / p): each rank reduces its W/p2 with its counterparts in the other
groups. p2 rings share the links of a node, so phi = rings per link (formulas.md; ParaDL A.1.6,
equations 20 to 22).
"""

from __future__ import annotations

from calib.foundation.division import Division
from calib.oracle.layout.workload import model_weights
from calib.oracle.model.spec import ModelSpec
from calib.oracle.paper.form import PaperCosts
from calib.oracle.strategies import shared_layers
from calib.oracle.strategies.common import paper_allreduce
from calib.oracle.strategies.shared_layers import limit, measured, memory
from calib.oracle.terms import Term

__all__ = ["limit", "measured", "memory", "paper"]


def paper(model: ModelSpec, division: Division, costs: PaperCosts) -> list[Term]:
    """The formula, with alpha and beta of a group inside it and of all p ranks between groups."""
    p1, p2 = division.replicas, division.parts
    phi = costs.contention(p2, division.p) if p1 > 1 else None
    nbytes = model_weights(model).nbytes / p2
    what = "segmented allreduce of gradients"
    return [
        *shared_layers.paper(model, division, costs),
        *paper_allreduce(costs, p1, nbytes, what, division.p, phi),
    ]
