"""What would make an iteration faster, by the oracle: other strategies, overlap, item types."""

from __future__ import annotations

import math
from collections.abc import Iterator

from calib.foundation.division import Division, traits_of
from calib.foundation.errors import MissingParameter
from calib.foundation.records import Estimate, Record
from calib.oracle.cost import Cost
from calib.oracle.costs.machine import Machine
from calib.oracle.layout.shards import fitted, why_impossible
from calib.oracle.model.spec import ModelSpec
from calib.oracle.predict import iteration, project
from calib.oracle.template import EVERY

MOST = 3


class Change(Record):
    """Another way to train the same global batch on as many ranks; `gain` is of an iteration, s."""

    what: str
    gain: Estimate
    predicted: Estimate


def changes_for(
    model: ModelSpec, division: Division, machine: Machine, optimizer: str
) -> list[Change]:
    """The changes that gain by prediction, of those that fit into memory.

    Errors that both predictions have (the machine's speed, the same layers) cancel in a gain.
    """
    now = iteration(model, division, machine, optimizer)
    found = []
    for what, other_model, other in _others(model, division, machine):
        try:
            fits = project(other_model, other, machine, optimizer=optimizer).feasible
            cost = iteration(other_model, other, machine, optimizer) if fits else None
        except MissingParameter:
            continue
        if cost is not None and cost.seconds < now.seconds:
            predicted = Estimate(value=cost.seconds, low=cost.low, high=cost.high)
            found.append(Change(what=what, gain=gain_of(now, cost), predicted=predicted))
    return found


def _others(
    model: ModelSpec, division: Division, machine: Machine
) -> Iterator[tuple[str, ModelSpec, Division]]:
    """What, model and division of everything that is not what runs."""
    node = machine.parameters.ranks_per_node
    for template in EVERY:
        if traits_of(template.strategy).parallel != (division.p > 1):
            continue
        if template.why_no_groups(division.p):
            continue
        other = fitted(model, template.division(division.p, division.batch, node, model))
        if other != fitted(model, division) and not why_impossible(model, other):
            yield other.words, model, other
    for execution in machine.parameters.executions:
        if execution != model.execution:
            yield execution, model.run_as(execution), division


def gain_of(now: Cost, other: Cost) -> Estimate:
    """The difference of two predictions on one machine: errors of the same source cancel."""
    errors: dict[str, list[float]] = {}
    for sign, cost in ((1.0, now), (-1.0, other)):
        for source, down, up in cost.errors:
            of = errors.setdefault(source, [0.0, 0.0])
            of[0] += sign * down
            of[1] += sign * up
    value = now.seconds - other.seconds
    below, above = (math.sqrt(math.fsum(e[side] ** 2 for e in errors.values())) for side in (0, 1))
    return Estimate(value=value, low=value - below, high=value + above)
