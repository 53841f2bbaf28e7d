"""Terms that several strategies share: compute, gradient exchange, flows between layers, updates."""

from __future__ import annotations

import math
from collections import Counter

from calib.foundation.division import Division
from calib.foundation.execution import ItemType
from calib.foundation.layers import Direction
from calib.oracle.cost import NOTHING, Cost, total
from calib.oracle.costs.contention import Phi
from calib.oracle.costs.layers import LayerCosts
from calib.oracle.costs.link import ALONE
from calib.oracle.costs.machine import Costs
from calib.oracle.layout.traffic import (
    Flow,
    Message,
    flow_message,
    gradient_messages,
    grouped_flows,
)
from calib.oracle.layout.workload import Select, Tensors, Workload, exchanged_weights, workload
from calib.oracle.model.spec import ModelSpec
from calib.oracle.once import once
from calib.oracle.paper.form import PaperCosts
from calib.oracle.terms import Term, TermCause

DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")
ADDED_UP = "adding up gradients"
SYMBOLS = {"forward": "FW", "backward": "BW"}


def compute_terms(model: ModelSpec, division: Division, costs: Costs) -> list[Term]:
    """Forward and backward at a rank's shapes, and what the sum of layers leaves out.

    Of all micro-batches that a rank runs one after the other, with the adding up of their gradients.
    """
    work, batch, turns = workload(model, division), division.local_batch, division.accumulation
    terms = [
        term for d in DIRECTIONS for term in _of_direction(costs.layers, work, batch, d, turns)
    ]
    if turns > 1 and work.weights.ntensors:
        terms.append(_accumulation(work, turns, costs))
    return terms


def _accumulation(work: Workload, turns: int, costs: Costs) -> Term:
    """The gradients of every micro-batch but the first are added to those before."""
    return Term(
        "backward",
        "update",
        ADDED_UP,
        costs.tensors.accumulating(work.weights).times(turns - 1),
        "(N-1) accumulate(|w| delta)",
        {"N": turns, "|w| delta": work.weights.nbytes},
    )


@once  # for data the same at all p and in all variants
def _of_direction(
    layers: LayerCosts, work: Workload, batch: int, direction: Direction, turns: int
) -> list[Term]:
    """The terms of one direction, `turns` times."""
    symbol = SYMBOLS[direction]
    times, number = ("N x ", {"N": turns}) if turns > 1 else ("", {})
    chosen: list[tuple[Select, TermCause, str]] = [
        ("split", "compute", "layers that are split, at the part's shape"),
        ("whole", "redundant" if work.counts["split"] else "compute", "layers that are whole"),
    ]
    terms = [
        Term(
            direction,
            cause,
            what,
            layers.total(work, select, batch, direction).times(turns),
            f"{times}sum of {symbol}_l over {sum(work.counts[select].values())} layers at B' samples",
            {**number, "B'": batch},
        )
        for select, cause, what in chosen
        if work.counts[select]
    ]
    runs = Counter(work.counts["all"])
    of_compute: TermCause = terms[0].cause if terms else "compute"
    if direction == "backward" and work.again:
        runs += Counter(work.again)
        terms.append(
            Term(
                direction,
                of_compute,
                "checkpointed layers, run again",
                layers.again(work, batch).times(turns),
                f"{times}sum of FW_l over {sum(work.again.values())} layers at B' samples",
                {**number, "B'": batch},
            )
        )
    extra, count, nbytes = layers.beside(work, runs, batch, direction)
    if not count:
        return terms
    return [
        *terms,
        Term(
            direction,
            of_compute,
            "what an iteration adds to isolated layers",
            extra.times(turns),
            f"{times}(layers a + bytes b)" if times else "layers a + bytes b",
            {**number, "layers": count, "bytes": nbytes},
        ),
    ]


def update_terms(model: ModelSpec, division: Division, costs: Costs, share: int = 1) -> list[Term]:
    """WU of the rank's weights, or of a `share`-th of them (a sharded optimizer)."""
    weights = workload(model, division).weights
    cost = costs.update(weights, share)
    formula = f"WU({costs.optimizer}, |w| delta{f' / {share}' if share > 1 else ''})"
    return [Term("update", "update", "weight update", cost, formula, {"|w| delta": weights.nbytes})]


def exchange_terms(model: ModelSpec, division: Division, costs: Costs) -> list[Term]:
    """The gradient exchange and the packing around it; empty without an exchange."""
    messages = gradient_messages(model, division)
    if not messages:
        return []
    return exchange_of(messages, exchanged_weights(model, division), model.items, costs)


def exchange_of(
    messages: list[Message], weights: Tensors, items: ItemType, costs: Costs
) -> list[Term]:
    """The exchange of some gradients by messages, and the packing around it.

    The links of the first have rested for a whole backward.
    """
    passes = [
        Term(
            "pack",
            "pack",
            f"{name} the gradients",
            costs.tensors.passing(name, weights),
            f"{name}({weights.ntensors} tensors, W)",
            {"W": weights.nbytes},
        )
        for name in ("pack", "unpack")
    ]
    sent: list[Term] = []
    # an iteration adds overhead to the exchange of W once, however many messages it has
    share = max(message.nbytes for message in messages) / len(messages)
    for message in messages:
        alone = costs.sent(message, items.weight_bytes)
        cost = costs.tensors.exchanging(alone, share)
        term = Term(
            "exchange",
            "gradient exchange",
            f"{message.operation} of {message.why}",
            cost,
            f"{message.operation}(p={message.group_size}, W)",
            {"W": message.nbytes, "p": message.group_size, "groups at once": message.groups},
        )
        sent += [term, *([] if sent else rested_terms(term, message, 1, math.inf, alone, costs))]
    return passes + sent


def flow_terms(
    model: ModelSpec, division: Division, costs: Costs, compute: list[Term]
) -> list[Term]:
    """Messages between ranks that share layers: halos, joined outputs, summed gradients.

    Between them ranks compute, one as long as the other on average, and their links rest.
    """
    flows = grouped_flows(model, division)
    rested = total(term.cost for term in compute).seconds / max(1, sum(f.count for f in flows))
    return [term for flow in flows for term in _flow_terms(model, flow, division, costs, rested)]


def _flow_terms(
    model: ModelSpec, flow: Flow, division: Division, costs: Costs, rested: float
) -> list[Term]:
    """A flow, with the cost of waiting for each other where it was measured in place."""
    message = flow_message(model, flow, division)
    one = costs.sent(message, model.items.activation_bytes)
    cost = costs.tensors.meeting(flow.phase, one.times(flow.count), flow.count)
    more = f" and {flow.count - 1} more" if flow.count > 1 else ""
    what = flow.why if flow.operation == "halo" else f"{flow.operation} of {flow.why}"
    sent = Term(
        flow.phase,
        "p2p" if flow.phase == "halo" else "layer-wise",
        f"{what}{more}",
        cost,
        f"{flow.count} x {flow.operation}(p={message.group_size}, m)",
        {"m": message.nbytes, "groups at once": message.groups},
    )
    return [sent, *rested_terms(sent, message, flow.count, rested, one, costs)]


def rested_terms(
    sent: Term, message: Message, count: int, rested: float, one: Cost, costs: Costs
) -> list[Term]:
    """What `count` messages that take `one` in a row save, each after `rested` s of work."""
    saved = costs.rested(message, rested, one)
    if saved is NOTHING:
        return []
    return [
        Term(
            sent.phase,
            sent.cause,
            "what links that rested take at once",
            saved.times(count),
            f"- {count} x share min(beta m, beta burst, t)",
            {"m": message.nbytes, "t": rested},
        )
    ]


def paper_compute(
    work: Workload, costs: PaperCosts, samples_split: float, samples_whole: float
) -> list[Term]:
    """samples x sum(FW + BW), for split and for whole layers."""
    terms = []
    for direction in DIRECTIONS:
        chosen: list[tuple[Select, TermCause, float]] = [
            ("split", "compute", samples_split),
            ("whole", "redundant" if work.counts["split"] else "compute", samples_whole),
        ]
        for select, cause, samples in chosen:
            if work.counts[select]:
                name = SYMBOLS[direction]
                cost = costs.total(work, select, direction)
                terms.append(
                    Term(
                        direction,
                        cause,
                        f"{select} layers",
                        cost.times(samples),
                        f"samples x sum_{select} {name}",
                        {"samples": samples, f"sum_{select} {name}": cost.seconds},
                    )
                )
    return terms


def paper_update(costs: PaperCosts, share: int = 1) -> Term:
    """sum(WU) / share."""
    cost = costs.update_total()
    formula = "sum(WU)" + (f" / {share}" if share > 1 else "")
    return Term(
        "update",
        "update",
        "weight update",
        cost.times(1.0 / share),
        formula,
        {"sum(WU)": cost.seconds},
    )


def paper_allreduce(
    costs: PaperCosts,
    p: int,
    nbytes: float,
    what: str = "allreduce of gradients",
    span: int = 0,
    phi: Phi | None = None,
    groups: int = 1,
) -> list[Term]:
    """2 (p-1) (alpha + W phi beta / p) of the gradients that a ring carries; empty if p = 1.

    The ring is of p ranks among `span` adjacent ones (0: next to each other), one of `groups`.
    """
    if p == 1:
        return []
    link = costs.link(span or p, "allreduce", groups)
    cost = link.allreduce(p, nbytes, phi or ALONE)
    formula = f"2 (p-1) (alpha + W {'phi ' if phi else ''}beta / p)"
    values = {"p": p, "W": nbytes, **({"phi": phi.factor.value} if phi else {}), **link.values}
    return [Term("exchange", "gradient exchange", what, cost, formula, values)]
