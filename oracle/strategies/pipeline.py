"""Pipeline: the slowest stage sets the pace (formulas.md).

    ((p+S-1)/S) B (max FW_Gi + max BW_Gi) + max WU_Gi + 2 (p+S-2) max(alpha + (B/S)|y_Gi| delta beta)

is the paper's form (its eq 12 includes WU), in which only the last layer of a stage sends. The measured
form is in stage_terms.py. On one rank there is nothing to overlap: it runs the whole batch at once, as
serial, whatever S.
"""

from __future__ import annotations

from collections.abc import Sequence

from calib.fitting.parameters.memory import STATES
from calib.foundation.division import Division
from calib.oracle.cost import Cost, total
from calib.oracle.costs.machine import Costs
from calib.oracle.layout.stages import (
    Borders,
    activations_before,
    by_stage,
    stage_borders,
    stage_names,
    stages_waves,
    weight_sizes,
    with_boundaries,
    with_stages,
)
from calib.oracle.layout.workload import workload
from calib.oracle.memory.naive import activation_bytes, naive_parts
from calib.oracle.model.spec import ModelSpec
from calib.oracle.paper.form import PaperCosts
from calib.oracle.projection import Limit
from calib.oracle.strategies import serial
from calib.oracle.strategies.common import DIRECTIONS, SYMBOLS
from calib.oracle.strategies.stage_terms import Stages, beyond, layers_of
from calib.oracle.terms import Term


def placed(model: ModelSpec, division: Division, costs: Costs | PaperCosts) -> Division:
    """A pipeline with boundaries, balanced by FW + BW unless it has some; others unchanged."""
    if not division.traits.stages or division.p == 1 or division.boundaries:
        return division
    if isinstance(costs, Costs):
        forward, backward = layers_of(model, division, costs).seconds.values()
    else:
        forward, backward = ([c.seconds for c in costs.each(d)] for d in DIRECTIONS)
    return with_stages(division, forward, backward)


def measured(model: ModelSpec, division: Division, costs: Costs) -> list[Term]:
    """Compute of a pipeline that never waits, and what waiting and sending add."""
    if division.p == 1:
        return serial.measured(model, one_rank(division), costs)
    return Stages(model, division, costs).terms()


def one_rank(division: Division) -> Division:
    """The division on one rank: serial, the whole batch at once."""
    return Division("serial", 1, division.batch)


def paper(model: ModelSpec, division: Division, costs: PaperCosts) -> list[Term]:
    """The paper's form: the slowest stage sets the pace."""
    if division.p == 1:
        return serial.paper(model, one_rank(division), costs)
    division = placed(model, division, costs)
    borders = stage_borders(model, division.boundaries)
    p, segments, batch = division.p, division.segments, division.batch
    terms = []
    work, turns = workload(model, division), p + segments - 1
    for d in DIRECTIONS:
        name = SYMBOLS[d]
        slowest = max_stage(costs.each(d), borders)
        ideal = costs.total(work, "all", d).times(batch / p)
        bubble = beyond(slowest.times(turns / segments * batch), ideal)
        values: dict[str, float | str] = {"p": p, "S": segments, "B": batch}
        terms += [
            Term(
                d,
                "compute",
                "all layers, by p stages that never wait",
                ideal,
                f"B sum({name}) / p",
                {"p": p, "B": batch},
            ),
            Term(
                d,
                "bubble",
                "filling, draining and unequal stages",
                bubble,
                f"(p+S-1)/S B max({name}_Gi) - B sum({name}) / p",
                values
                | {
                    f"max({name}_Gi)": slowest.seconds,
                    "stages": stage_names(model, division.boundaries),
                },
            ),
        ]
    link, rounds = costs.link(p, "p2p"), p + segments - 2
    items = max(model.layers[end - 1].shape.output_items for _, end in borders)
    nbytes = items * model.items.activation_bytes * batch / segments
    update = max_stage(costs.update(), borders)
    return [
        *terms,
        Term(
            "layerwise",
            "p2p",
            "output of the largest stage",
            link.p2p(nbytes, 2.0 * rounds),
            "2 (p+S-2) max(alpha + (B/S) |y_Gi| delta beta)",
            {"p": p, "S": segments, "(B/S) |y_Gi| delta": nbytes, **link.values},
        ),
        Term(
            "update",
            "update",
            "weight update of the slowest stage",
            update,
            "max(WU_Gi)",
            {"max(WU_Gi)": update.seconds},
        ),
    ]


def max_stage(costs: Sequence[Cost], borders: Borders) -> Cost:
    """The cost of the slowest stage."""
    seconds = by_stage([cost.seconds for cost in costs], borders)
    first, end = borders[seconds.index(max(seconds))]
    return total(costs[first:end])


def memory(model: ModelSpec, division: Division, optimizer: str) -> dict[str, int]:
    """The stage that needs most: its layers with all samples in flight there, and its weights.

    GPipe has all S micro-batches in flight, 1F1B at most p - i at stage i of 0..p-1. Without boundaries
    (see `placed`) stages are balanced by FLOPs, as no times are known here.
    """
    if division.p == 1:
        return serial.memory(model, one_rank(division), optimizer)
    items = activations_before(model)
    borders = stage_borders(model, with_boundaries(model, division).boundaries)
    waves, sizes = stages_waves(division), weight_sizes(model, borders)
    stages = [
        (activation_bytes(model, division.local_batch * n * (items[b] - items[a])), nbytes)
        for n, (a, b), (_, nbytes) in zip(waves, borders, sizes, strict=True)
    ]
    # the weights of naive_parts
    each = 2 + STATES[optimizer]
    activations, nbytes = max(stages, key=lambda of: of[0] + each * of[1])
    return naive_parts(activations, nbytes, False, optimizer)


def limit(model: ModelSpec, division: Division) -> Limit:
    """p <= G."""
    return Limit(ranks=len(model.layers), why="at least one layer per rank: p <= G")
