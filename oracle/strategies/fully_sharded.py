"""Fully sharded data parallelism: (B/p) sum(FW + BW) + sum(WU) / p + 2 AG(p, W) + RS(p, W).

Every rank has a shard of all weights, gradients and optimizer state, and B/p samples (Rajbhandari et
al., arXiv:1910.02054: ZeRO stage 3; Zhao et al., arXiv:2304.11277: FSDP). A unit's weights
(oracle/layout/units.py) are gathered before its forward and again before its backward, after which its
gradients are reduce-scattered; those of the root are gathered once. Nothing overlaps, in either form.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

from calib.fitting.parameters.memory import STATES
from calib.foundation.division import Division
from calib.oracle.cost import counted, total
from calib.oracle.costs.machine import Costs
from calib.oracle.layout.shards import rank_parameters
from calib.oracle.layout.stages import activations_before
from calib.oracle.layout.traffic import unit_messages
from calib.oracle.layout.units import model_units
from calib.oracle.layout.workload import Tensors, tensors, workload
from calib.oracle.memory.naive import activation_bytes
from calib.oracle.memory.unit_bytes import unit_bytes
from calib.oracle.model.spec import ModelSpec
from calib.oracle.paper.form import PaperCosts
from calib.oracle.projection import Limit
from calib.oracle.strategies import serial
from calib.oracle.strategies.common import compute_terms, paper_compute, paper_update, rested_terms
from calib.oracle.terms import Term

SENT: tuple[tuple[Literal["allgather", "reduce_scatter"], str], ...] = (
    ("allgather", "weights"),
    ("reduce_scatter", "gradients"),
)


def measured(model: ModelSpec, division: Division, costs: Costs) -> list[Term]:
    """Layers at the rank's batch; collectives and packing unit by unit; update of the shards."""
    if not division.shards:
        return serial.measured(model, division, costs)
    shards = tensors(rank_parameters(model, division), model.items)
    compute = compute_terms(model, division, costs)
    return [
        *compute,
        *_passes(model, division, costs),
        *_collectives(model, division, costs, compute),
        Term(
            "update",
            "update",
            "weight update",
            costs.update(shards),
            f"WU({costs.optimizer}, |w| delta / p)",
            {"|w| delta / p": shards.nbytes, "units": shards.ntensors},
        ),
    ]


def _passes(model: ModelSpec, division: Division, costs: Costs) -> Iterable[Term]:
    """A unit's gradients are packed to be sent; the average of what arrives is the shard's."""
    items = model.items
    units = Counter(tensors(unit.shapes, items) for unit in model_units(model))
    shards = Counter(tensors((shape,), items) for shape in rank_parameters(model, division))
    chosen: list[tuple[Literal["pack", "unpack"], Counter[Tensors], str]] = [
        ("pack", units, "pack the gradients"),
        ("unpack", shards, "average the gradients of shards"),
    ]
    for name, lists, what in chosen:
        cost = counted([(costs.tensors.passing(name, of), n) for of, n in lists.items()])
        nbytes = sum(n * of.nbytes for of, n in lists.items())
        values = {"units": lists.total(), "bytes": nbytes}
        yield Term("pack", "pack", what, cost, f"sum of {name}(w_u) over units", values)


def _collectives(
    model: ModelSpec, division: Division, costs: Costs, compute: list[Term]
) -> Iterable[Term]:
    """All allgathers, then all reduce-scatters: calls in which ranks meet while layers run."""
    messages = Counter(m._replace(why="") for m in unit_messages(model, division))
    rested = total(term.cost for term in compute).seconds / max(1, messages.total())
    for operation, what in SENT:
        of = {m: n for m, n in messages.items() if m.operation == operation}
        nbytes, calls = sum(n * m.nbytes for m, n in of.items()), sum(of.values())
        each = {m: costs.sent(m, model.items.weight_bytes) for m in of}
        alone = counted([(each[m], n) for m, n in of.items()])
        sent = Term(
            "layerwise",
            "layer-wise",
            f"{operation} of {what}, {calls} calls",
            costs.tensors.meeting("layerwise", alone, calls),
            f"sum of {operation}(p, w_u) over units",
            {"p": division.p, "calls": calls, "bytes": nbytes},
        )
        yield sent
        for message, n in of.items():
            yield from rested_terms(sent, message, n, rested, each[message], costs)


def paper(model: ModelSpec, division: Division, costs: PaperCosts) -> list[Term]:
    """(B/p) sum(FW + BW) + sum(WU) / p + sum over calls of (p-1) (alpha + W_u beta / p)."""
    p, samples = division.p, division.batch / division.p
    terms = [
        *paper_compute(workload(model, division), costs, samples, samples),
        paper_update(costs, p),
    ]
    messages = unit_messages(model, division)
    for operation, what in SENT if division.shards else ():
        link = costs.link(p, operation)
        of = [message.nbytes for message in messages if message.operation == operation]
        cost = link.hockney((p - 1.0) * len(of), (p - 1.0) * sum(of) / p)
        values = {"p": p, "calls": len(of), "bytes": sum(of), **link.values}
        formula = "(p-1) (calls alpha + bytes beta / p)"
        terms.append(
            Term("layerwise", "layer-wise", f"{operation} of {what}", cost, formula, values)
        )
    return terms


def memory(model: ModelSpec, division: Division, optimizer: str) -> dict[str, int]:
    """Shards of everything, what is gathered of weights and gradients at once, and what is sent."""
    if not division.shards:
        return serial.memory(model, division, optimizer)
    found = unit_bytes(model, division.p)
    items = division.local_batch * activations_before(model)[-1]
    unused = model.items.weight_bytes * model.unused_items  # whole on every rank
    return {
        "activations": activation_bytes(model, items),
        "weights": found.shards + found.gathered + unused,
        "gradients": found.shards + found.gathered,
        "optimizer": STATES[optimizer] * found.shards,
        "exchange": found.sent,
    }


def limit(model: ModelSpec, division: Division) -> Limit:
    """p <= B."""
    return Limit(ranks=division.batch, why="at least one sample per rank: p <= B")
