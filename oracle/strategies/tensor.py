"""Tensor: regions between linear layers, cut by heads or features, on p ranks with the same samples.

(B/p) sum_region(FW + BW) + B sum_rest(FW + BW) + WU(w_rank) + sum_ends AR(p, B |y|) + sum_entries
AR(p, B |x|): Shoeybi et al., arXiv:1909.08053 (Megatron-LM), section 3. A region's first linear layers
have 1/p of their output features, its last ones 1/p of their input features; what is between runs on
parts, without messages (oracle/layout/regions.py). Where it ends, y is summed in the forward; where it
begins, dL/dx is summed in the backward, once for all layers that read x. So a block of a transformer has
four allreduces of tokens x width. Biases of the last layers, and all other layers, are whole on every
rank. Their gradients are the same everywhere, so nothing is exchanged after the backward.
"""

from __future__ import annotations

from calib.foundation.division import Division
from calib.oracle.layout.regions import narrowest_cut
from calib.oracle.layout.workload import model_weights, workload
from calib.oracle.memory.naive import activation_bytes, naive_parts
from calib.oracle.model.spec import ModelSpec
from calib.oracle.once import once_per_geometry
from calib.oracle.paper.form import PaperCosts
from calib.oracle.projection import Limit
from calib.oracle.strategies.common import paper_compute
from calib.oracle.strategies.shared_layers import measured, paper_flows
from calib.oracle.terms import Term

__all__ = ["limit", "measured", "memory", "paper"]


def paper(model: ModelSpec, division: Division, costs: PaperCosts) -> list[Term]:
    """The terms above, with 2 (p-1) (alpha + m beta / p) for each allreduce.

    ParaDL has no such strategy; these are its terms for it. WU is of the weights that a rank has.
    """
    share = workload(model, division).weights.nbytes / model_weights(model).nbytes
    update = costs.update_total()
    return [
        *paper_compute(
            workload(model, division), costs, division.batch / division.p, division.batch
        ),
        *paper_flows(model, division, costs),
        Term(
            "update",
            "update",
            "weight update",
            update.times(share),
            "sum(WU) |w_rank| / |w|",
            {"sum(WU)": update.seconds, "|w_rank| / |w|": share},
        ),
    ]


def memory(model: ModelSpec, division: Division, optimizer: str) -> dict[str, int]:
    """Activations of B samples, in parts inside regions, and the weights that a rank has."""
    activations = activation_bytes(model, division.local_batch * rank_items(model, division))
    return naive_parts(activations, workload(model, division).weights.nbytes, False, optimizer)


@once_per_geometry
def rank_items(model: ModelSpec, division: Division) -> int:
    """sum(|x| + |y|) of one sample on a rank."""
    work = workload(model, division)
    counts = work.counts["all"].items()
    return sum(n * work.pieces[piece].shape.tensor_items for piece, n in counts)


def limit(model: ModelSpec, division: Division) -> Limit:
    """The heads and features of all regions, which p divides."""
    found = narrowest_cut(model)
    if found is None:
        return Limit(ranks=1, why="p <= 1: no region of layers can be divided")
    common, width, name = found
    why = f"{name} has the fewest heads or features, {width}: p divides {common}"
    return Limit(ranks=common, why=why)
