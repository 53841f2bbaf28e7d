"""Tensor: regions between linear layers, cut by heads or features, on p ranks with the same samples.

(B/p) sum_region(FW + BW) + B sum_rest(FW + BW) + WU(w_rank) + sum_ends AR(p, B |y|) + sum_entries
AR(p, B |x|): Shoeybi et al., arXiv:1909.08053 (Megatron-LM), section 3. A region's first linear layers
have 1/p of their output features, its last ones 1/p of their input features; what is between runs on
parts, without messages (oracle/layout/regions.py). Where it ends, y is summed in the forward; where it
begins, dL/dx is summed in the backward, once for all layers that read x. So a block of a transformer has
four allreduces of tokens x width. Biases of the last layers, and all other layers, are whole on every
rank. Their gradients are the same everywhere, so nothing is exchanged after the backward.

With sequence parallelism (Korthikanti et al., arXiv:2205.05198, section 4.2.2) norms, dropout and
residuals between regions run on 1/p of the tokens (oracle/layout/region_tokens.py): each allreduce
becomes a reduce-scatter of what a region makes and an allgather of what the next one reads, and in the
backward the other way round, with as many bytes. Activations between regions are 1/p. Norms' weights and
the biases of last layers have gradients of a rank's own tokens, which one allreduce sums, AR(p, W_part).
A region keeps the whole x for its backward; Megatron-LM gathers it again.
"""

from __future__ import annotations

from calib.foundation.division import Division
from calib.oracle.layout.region_tokens import token_parts
from calib.oracle.layout.regions import narrowest_cut
from calib.oracle.layout.tokens import narrowest_tokens
from calib.oracle.layout.workload import exchanged_weights, model_weights, workload
from calib.oracle.memory.naive import activation_bytes, naive_parts
from calib.oracle.model.spec import ModelSpec
from calib.oracle.once import once_per_geometry
from calib.oracle.paper.form import PaperCosts
from calib.oracle.projection import Limit
from calib.oracle.strategies.common import paper_allreduce, paper_compute
from calib.oracle.strategies.shared_layers import measured, paper_flows
from calib.oracle.terms import Term

__all__ = ["limit", "measured", "memory", "paper"]


def paper(model: ModelSpec, division: Division, costs: PaperCosts) -> list[Term]:
    """The terms above, with (p-1) (alpha + m beta / p) for each operation, twice for an allreduce.

    ParaDL has no such strategy; these are its terms for it. WU is of the weights that a rank has.
    """
    share = workload(model, division).weights.nbytes / model_weights(model).nbytes
    update, exchanged = costs.update_total(), _exchanged_bytes(model, division)
    of_tokens = "allreduce of gradients, each of its tokens"
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
        *(paper_allreduce(costs, division.p, exchanged, of_tokens) if exchanged else ()),
    ]


def _exchanged_bytes(model: ModelSpec, division: Division) -> int:
    return exchanged_weights(model, division).nbytes if division.cuts_tokens else 0


def memory(model: ModelSpec, division: Division, optimizer: str) -> dict[str, int]:
    """Activations of B samples, in parts inside regions, and the weights that a rank has.

    With sequence parallelism also in parts between regions, and the buffer of exchanged gradients.
    """
    activations = activation_bytes(model, division.local_batch * rank_items(model, division))
    found = naive_parts(activations, workload(model, division).weights.nbytes, False, optimizer)
    exchanged = _exchanged_bytes(model, division)
    return found | ({"exchange": exchanged} if exchanged else {})


@once_per_geometry
def rank_items(model: ModelSpec, division: Division) -> int:
    """sum(|x| + |y|) of one sample on a rank."""
    work = workload(model, division)
    counts = work.counts["all"].items()
    return sum(n * work.pieces[piece].shape.tensor_items for piece, n in counts)


def limit(model: ModelSpec, division: Division) -> Limit:
    """The heads and features of all regions, which p divides; and the tokens, where they are cut."""
    found = narrowest_cut(model)
    if found is None:
        return Limit(ranks=1, why="p <= 1: no region of layers can be divided")
    common = found.common
    why = f"{found.name} has the fewest heads or features, {found.fewest}: p divides {common}"
    if not division.sequence_parallel:
        return Limit(ranks=common, why=why)
    tokens = narrowest_tokens(model, token_parts(model))
    if tokens is None:
        return Limit(ranks=1, why="p <= 1: no region ends with a tensor of tokens")
    most = next(p for p in range(common, 0, -1) if common % p == 0 and tokens.allows(p))
    of = "which p is at most" if tokens.filled else f"of which it divides {tokens.common}"
    why += f"; {tokens.name} has the fewest tokens, {tokens.fewest}, {of}"
    return Limit(ranks=most, why=why)
