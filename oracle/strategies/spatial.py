"""Spatial: p parts of every image, in a 1-D, 2-D or 3-D grid (formulas.md; ParaDL section 3.2, eq 8-10).

B [ sum_split(FW + BW)/p + sum_rest(FW + BW) ] + sum(WU) + AR(p, W)
+ sum over split layers with K > 1 of 2 [ 2 alpha + B delta beta (halo(x) + halo(dy)) ]
+ AG(p, B |y_split| delta) where the split ends, and its scatter in the backward.

The split ends at the first layer that cannot be cut, or at Division.split_until. In the `measured` form
a halo costs what an exchange with all neighbours at once took, joining it to the part is a copy, and
there is no scatter: every rank has the whole gradient at the end of the split and takes its own part.
Neither form has the corners that a 2-D or 3-D grid gets from diagonal neighbours: floor(K/2)^2 items
per channel, against floor(K/2) times the length of a part.
"""

from __future__ import annotations

import math

from calib.foundation.division import Division
from calib.foundation.errors import MissingParameter
from calib.oracle.cost import NOTHING, Cost, total
from calib.oracle.costs.machine import Costs
from calib.oracle.layout.grids import most_cuts
from calib.oracle.layout.shards import split_places
from calib.oracle.layout.spatial import DIMENSIONS
from calib.oracle.layout.stages import activations_before
from calib.oracle.layout.workload import model_weights, workload
from calib.oracle.memory.naive import activation_bytes, naive_parts
from calib.oracle.model.spec import ModelSpec
from calib.oracle.paper.form import PaperCosts
from calib.oracle.projection import Limit
from calib.oracle.strategies.common import (
    compute_terms,
    exchange_terms,
    flow_terms,
    paper_allreduce,
    paper_compute,
    paper_update,
    update_terms,
)
from calib.oracle.strategies.halos import TENSORS, JoinLoop, end_items, joins, paper_halos
from calib.oracle.terms import Term

NO_CONCAT = (
    "no concat was measured: joining halos to their parts is left out; measure filter parallelism"
)


def measured(model: ModelSpec, division: Division, costs: Costs) -> list[Term]:
    """Layers at the part's shape, halos and their copies, the allgather, gradients, and the update."""
    compute = compute_terms(model, division, costs)
    return [
        *compute,
        *flow_terms(model, division, costs, compute),
        *join_terms(model, division, costs),
        *exchange_terms(model, division, costs),
        *update_terms(model, division, costs),
    ]


def join_terms(model: ModelSpec, division: Division, costs: Costs) -> list[Term]:
    """The copies that join parts; 0 with a note if the machine has no concat."""
    batch = division.local_batch
    return [
        Term(
            "pack",
            "pack",
            f"concat of {what}",
            _joining(found, model.items.activation_bytes * batch, costs),
            "sum of concat(pieces, B' items delta)",
            {
                "concats": sum(join.count for join in found),
                "B'": batch,
                "sum of items": sum(join.count * join.items for join in found),
            },
        )
        for what, found in joins(model, division).items()
    ]


def _joining(found: list[JoinLoop], item_bytes: int, costs: Costs) -> Cost:
    """The law of concat, not its measured times, which join channels and so copy differently."""
    try:
        return total(
            costs.tensors.cutting("concat", "", join.pieces, item_bytes * join.items, join.count)
            for join in found
        )
    except MissingParameter:
        return NOTHING.at_best("extrapolated").noted(NO_CONCAT)


def paper(model: ModelSpec, division: Division, costs: PaperCosts) -> list[Term]:
    """The formula: one group of p ranks, and AR(p, W)."""
    nbytes = model_weights(model).nbytes
    return [*paper_group(model, division, costs), *paper_allreduce(costs, division.p, nbytes)]


def paper_group(model: ModelSpec, division: Division, costs: PaperCosts) -> list[Term]:
    """A group of p2 ranks on B/p1 samples: compute, halos, the end of the split, the update."""
    samples = division.batch / division.replicas
    return [
        *paper_compute(workload(model, division), costs, division.batch / division.p, samples),
        *_paper_halos(model, division, costs),
        *_paper_end(model, division, costs),
        paper_update(costs),
    ]


def _paper_halos(model: ModelSpec, division: Division, costs: PaperCosts) -> list[Term]:
    """A message to both neighbours along every cut dimension, or to one if it has 2 parts."""
    terms = []
    for direction, (messages, items) in paper_halos(model, division).items():
        link = costs.link(division.parts, "p2p", division.replicas)
        nbytes = model.items.activation_bytes * division.local_batch * items
        terms.append(
            Term(
                "halo",
                "p2p",
                f"halos of {TENSORS[direction]}",
                link.hockney(messages, nbytes),
                "n alpha + B delta beta sum(halo) over n messages, one after the other",
                {
                    "n": messages,
                    "B": division.local_batch,
                    "delta": model.items.activation_bytes,
                    "sum(halo)": items,
                    **link.values,
                },
            )
        )
    return terms


def _paper_end(model: ModelSpec, division: Division, costs: PaperCosts) -> list[Term]:
    """AG(p, B |y_split| delta) of every y that whole layers read, and its equally long scatter."""
    ends = end_items(model, division)
    if not ends:
        return []
    p = division.parts
    link = costs.link(p, "allgather", division.replicas)
    nbytes = model.items.activation_bytes * division.local_batch * sum(ends)
    steps = len(ends) * (p - 1)
    cost = link.hockney(steps, (p - 1) * nbytes / p)
    values = {"p": p, "n": len(ends), "m": nbytes, **link.values}
    formula = "(p-1) (n alpha + m beta / p), m = B delta sum|y_split|"
    return [
        Term("layerwise", "layer-wise", what, cost, formula, values)
        for what in ("allgather of y, where the split ends", "scatter of its gradient")
    ]


def memory(model: ModelSpec, division: Division, optimizer: str) -> dict[str, int]:
    """Activations of B/p1 samples, those of split layers / p2; all weights; the exchange's flat buffer.

    formulas.md; ParaDL eq 8.
    """
    until = activations_before(model)
    split = until[len(split_places(model, division))]
    weights = workload(model, division).weights.nbytes
    items = division.local_batch * (split / division.parts + until[-1] - split)
    return naive_parts(activation_bytes(model, items), weights, division.p > 1, optimizer)


def limit(model: ModelSpec, division: Division) -> Limit:
    """The product of the most parts along every dimension, in all layers that must be split.

    Those are the first layer, or all up to `split_until`. formulas.md: p <= min prod(spatial
    dimensions), and every part as long as the halo. For a hybrid it limits p2.
    """
    p = "p2" if division.traits.hybrid else "p"
    cuts = most_cuts(model, division.split_until)
    if not cuts:
        return Limit(ranks=1, why=f"{p} <= 1: the layers to split are not all of images")
    most = " x ".join(str(parts) for parts, _ in cuts)
    of = ", ".join(
        f"{along} {n} ({name})" for along, (n, name) in zip(DIMENSIONS, cuts, strict=False)
    )
    return Limit(
        ranks=math.prod(parts for parts, _ in cuts),
        why=f"{p} <= {most} parts that have a row and are as long as their halo: {of}",
    )
