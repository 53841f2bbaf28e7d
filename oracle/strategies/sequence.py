"""Sequence: p ranks with the same samples, each with 1/p of the tokens, in attention 1/p of the heads.

(B/p) sum_split(FW + BW) + B sum_rest(FW + BW) + sum(WU) + sum_switches 2 A2A(p, B |x| / p) +
sum_joined AG(p, B |x|) + AR(p, W): Jacobs et al., arXiv:2309.14509 (DeepSpeed-Ulysses), section 3.
Layers that work token by token have whole weights. A switch turns 1/p of the tokens into 1/p of the
heads, or these into those, in the forward and again in the backward: queries, keys, values, and what
attention makes of them, so a block of a transformer has eight all-to-alls of tokens x width / p. Where
whole layers read parts (a class token, a pooling), these are gathered. If the parts reach the loss, each
rank has that of its own tokens (oracle/layout/sequence.py). Gradients of weights are of parts of the
tokens, and one allreduce of all weights sums them. Tokens that p does not divide are filled up, and
1/p is ceil(tokens / p) of them; not where each rank has a loss of its own.
"""

from __future__ import annotations

from calib.foundation.division import Division
from calib.oracle.layout.sequence import sequence_limit
from calib.oracle.layout.workload import model_weights, workload
from calib.oracle.memory.naive import activation_bytes, naive_parts
from calib.oracle.model.spec import ModelSpec
from calib.oracle.paper.form import PaperCosts
from calib.oracle.projection import Limit
from calib.oracle.strategies.common import paper_allreduce, paper_compute, paper_update
from calib.oracle.strategies.shared_layers import measured, paper_flows
from calib.oracle.strategies.tensor import rank_items
from calib.oracle.terms import Term

__all__ = ["limit", "measured", "memory", "paper"]


def paper(model: ModelSpec, division: Division, costs: PaperCosts) -> list[Term]:
    """The terms above, with (p-1) (alpha + m beta / p) for each all-to-all of m bytes and allgather.

    ParaDL has no such strategy; these are its terms for it.
    """
    p = division.p
    return [
        *paper_compute(workload(model, division), costs, division.batch / p, division.batch),
        *paper_flows(model, division, costs),
        paper_update(costs),
        *paper_allreduce(costs, p, model_weights(model).nbytes),
    ]


def memory(model: ModelSpec, division: Division, optimizer: str) -> dict[str, int]:
    """Activations of B samples, of split layers in parts; all weights; the exchange's flat buffer."""
    activations = activation_bytes(model, division.local_batch * rank_items(model, division))
    weights = workload(model, division).weights.nbytes
    return naive_parts(activations, weights, division.p > 1, optimizer)


def limit(model: ModelSpec, division: Division) -> Limit:
    """The tokens and the heads."""
    found = sequence_limit(model)
    if found is None:
        return Limit(ranks=1, why="p <= 1: no attention whose heads and tokens can be told apart")
    return Limit(ranks=found.most, why=found.why)
