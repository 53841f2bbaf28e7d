"""Data: (B/p) sum(FW + BW) + sum(WU) + AR(p, W), and packing around the allreduce (formulas.md).

Every rank has all weights and B/p samples; gradients are exchanged in one flat buffer after the
backward, as in the paper's framework. Two variants (Division):

- overlap: the exchange runs during the backward, which hides min(eta AR, BW) of it. The paper has
  eta = 0; without a measured eta its interval is 0 to 1. If overlapped iterations were measured to be
  slower, the slowdown is added to the backward. With accumulation BW is that of the last micro-batch.
  Where this very iteration was measured with overlap, all terms are scaled to it;
- sharded optimizer (Xu et al., arXiv:2004.13336; ZeRO stage 1): gradients are reduce-scattered, each
  rank updates 1/p of the weights, and the weights are gathered.
"""

from __future__ import annotations

import math
from dataclasses import replace

from calib.foundation.division import Division
from calib.foundation.layer_keys import iteration_key
from calib.foundation.records import Estimate
from calib.oracle.cost import Cost
from calib.oracle.costs.machine import Costs
from calib.oracle.layout.workload import layer_keys, model_weights, workload
from calib.oracle.memory.naive import replicated_parts
from calib.oracle.model.spec import ModelSpec
from calib.oracle.paper.form import PaperCosts
from calib.oracle.projection import Basis, Limit
from calib.oracle.sources import OVERLAP
from calib.oracle.strategies.common import (
    compute_terms,
    exchange_terms,
    paper_allreduce,
    paper_compute,
    paper_update,
    update_terms,
)
from calib.oracle.terms import Term, by_phase

ANY_ETA = Estimate(value=0.0, low=0.0, high=1.0)
NO_ETA = (
    "overlap of exchange and backward was not measured: anything from none to all may be hidden"
)
HIDDEN = "hidden behind the backward"
FAR_ETA = (
    "overlap was measured on other numbers of ranks only: anything from none to all may be hidden"
)


def measured(model: ModelSpec, division: Division, costs: Costs) -> list[Term]:
    """Layers at the rank's batch, packing, exchange, update; on one rank serial training."""
    share = division.p if division.sharded_optimizer else 1
    compute = compute_terms(model, division, costs)
    exchange = exchange_terms(model, division, costs)
    update = update_terms(model, division, costs, share)
    terms = [*compute, *exchange, *update]
    if division.overlap and division.p > 1:
        law = costs.network.overlap(division.p)
        # a sharded optimizer's allgather follows the update: no backward is left to hide it
        reduced = next(term.cost for term in exchange if term.phase == "exchange")
        known = costs.network.knows_overlap(division.p)
        basis: Basis = "interpolated" if known else "extrapolated"
        note = "" if known else FAR_ETA if law else NO_ETA
        eta = law.eta if law else ANY_ETA
        last = compute if division.accumulation == 1 else _last_micro_batch(model, division, costs)
        hidden = _hidden(reduced, by_phase(last)["backward"], eta, basis, note)
        if law is not None and law.slowdown.high > 0:
            seconds = math.fsum(term.cost.seconds for term in (*last, *exchange, *update))
            terms.append(_slower(seconds, law.slowdown, basis))
        terms.append(hidden)
        if (whole := _measured_whole(model, division, costs)) is not None:
            return _as_measured(terms, whole)
    return terms


def _measured_whole(model: ModelSpec, division: Division, costs: Costs) -> Estimate | None:
    """Seconds of the iteration where this very one was measured with its exchange overlapped."""
    if division.sharded_optimizer or division.accumulation > 1:
        return None
    keys = (key for key in layer_keys(model, division) if key is not None)
    key = iteration_key(keys, model_weights(model).key, costs.optimizer)
    return costs.network.overlapped(key, division.p)


def _as_measured(terms: list[Term], whole: Estimate) -> list[Term]:
    """The terms, all longer or shorter by as much as makes them the measured iteration.

    Its parts differ from those without overlap by more than what is hidden: DistributedDataParallel
    keeps gradients in memory of its own, so that malloc gives back other pages, or none.
    """
    law = math.fsum(term.cost.seconds for term in terms)
    factor, note = whole.value / law, f"iterations with overlap were measured: {whole.value:.4g} s"

    def scaled(term: Term) -> Term:
        seconds = term.cost.seconds * factor
        down, up = (1 - whole.low / whole.value) * seconds, (whole.high / whole.value - 1) * seconds
        cost = Cost(seconds, "measured", ((OVERLAP, down, up),), (*term.cost.notes, note))
        return term._replace(cost=cost, values={**term.values, "measured / law": factor})

    return [scaled(term) for term in terms]


def _last_micro_batch(model: ModelSpec, division: Division, costs: Costs) -> list[Term]:
    """Its compute: the exchange runs during the last backward alone (no_sync before it)."""
    one = replace(division, batch=division.batch // division.accumulation, accumulation=1)
    return compute_terms(model, one, costs)


def _slower(seconds: float, slowdown: Estimate, basis: Basis) -> Term:
    """The slowdown of an iteration that takes T `seconds` without overlap."""
    value, low, high = (of * seconds for of in (slowdown.value, slowdown.low, slowdown.high))
    note = f"iterations with overlap were measured to take {slowdown.value:.1%} longer than without"
    return Term(
        "backward",
        "gradient exchange",
        "slowdown by the overlapped exchange",
        Cost(value, basis, ((OVERLAP, value - low, high - value),), (note,) if value else ()),
        "slowdown T",
        {"slowdown": slowdown.value, "T": seconds},
    )


def _hidden(exchange: Cost, backward: Cost, eta: Estimate, basis: Basis, note: str = "") -> Term:
    """- min(eta AR, BW)."""
    seconds, least, most = (
        min(e * exchange.seconds, backward.seconds) for e in (eta.value, eta.low, eta.high)
    )
    errors = ((OVERLAP, most - seconds, seconds - least),)
    cost = Cost(-seconds, basis, errors, (note,) if note else ())
    return Term(
        "exchange",
        "gradient exchange",
        HIDDEN,
        cost,
        "- min(eta AR, BW)",
        {"eta": eta.value, "AR": exchange.seconds, "BW": backward.seconds},
    )


def paper(model: ModelSpec, division: Division, costs: PaperCosts) -> list[Term]:
    """(B/p) sum(FW + BW) + sum(WU) + AR(p, W).

    N micro-batches of B/(p N) samples have the same sums; adding up their gradients is not in the paper.
    """
    p, nbytes = division.p, model_weights(model).nbytes
    share = p if division.sharded_optimizer else 1
    samples = division.batch / p
    terms = [
        *paper_compute(workload(model, division), costs, samples, samples),
        paper_update(costs, share),
    ]
    sharded = "reduce-scatter of gradients, allgather of weights"
    what = sharded if division.sharded_optimizer else "allreduce of gradients"
    terms += paper_allreduce(costs, p, nbytes, what)
    if division.overlap and p > 1:  # the paper's eta
        backward = by_phase(terms)["backward"].times(1.0 / division.accumulation)
        eta = Estimate(value=0, low=0, high=0)
        terms.append(_hidden(terms[-1].cost, backward, eta, "interpolated"))
    return terms


def memory(model: ModelSpec, division: Division, optimizer: str) -> dict[str, int]:
    """Serial with B/p samples, and the flat buffer of the exchange."""
    share = division.p if division.sharded_optimizer else 1
    return replicated_parts(model, division.local_batch, division.p > 1, optimizer, share)


def limit(model: ModelSpec, division: Division) -> Limit:
    """p <= B."""
    return Limit(ranks=division.batch, why="at least one sample per rank: p <= B")
