"""The tasks of a predicted iteration under each strategy that has some.

Forward and backward run layer by layer with the oracle's seconds, and messages are sent where training
sends them. The tasks end when the iteration is predicted to end; where they would not, that is an error.

What is not in the tasks: intervals; differences between ranks, as a prediction is of a rank like all
others, or of a pipeline's slowest update; halos (spatial), which are no collective and go to several
neighbours at once; parts of the tokens (sequence, tensor with sequence parallelism).
"""

from __future__ import annotations

import math

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.oracle.costs.machine import Machine
from calib.oracle.layout.shards import fitted, why_impossible
from calib.oracle.model.spec import ModelSpec
from calib.oracle.predict import costs_of, measured_terms
from calib.oracle.strategies.pipeline import one_rank
from calib.oracle.tasks.pipeline import pipeline_tasks
from calib.oracle.tasks.program import Iteration
from calib.oracle.tasks.replicas import replica_tasks
from calib.oracle.tasks.slots import require_all


def tasks_of(
    model: ModelSpec, division: Division, machine: Machine, optimizer: str = "momentum"
) -> Iteration:
    """What every rank does in one iteration, measured form.

    Raises
    ------
    InputError
        The division is impossible, or has messages that no task stands for.
    MissingParameter
        The parameters lack something this prediction needs.
    """
    reasons = why_impossible(model, fitted(model, division)) or _without_tasks(division)
    if reasons:
        raise InputError(reasons[0])
    if division.traits.stages and division.p == 1:
        division = one_rank(division)
    terms, division = measured_terms(model, division, machine, optimizer)
    costs = costs_of(model, machine, division, optimizer)
    make = pipeline_tasks if division.traits.stages else replica_tasks
    found = make(model, division, costs, terms)
    require_all(math.fsum(term.cost.seconds for term in terms), found.seconds, division)
    return found


def _without_tasks(division: Division) -> list[str]:
    """What a strategy sends that no task stands for; empty where there is nothing."""
    if division.p == 1:
        return []
    if division.traits.cuts == "image":
        what = "halos, which a rank sends to several neighbours at once"
    elif division.cuts_tokens or division.traits.cuts == "tokens":
        what = "parts of the tokens, which several kinds of operation move"
    else:
        return []
    return [f"a trace cannot hold {division.strategy}: it sends {what}"]
