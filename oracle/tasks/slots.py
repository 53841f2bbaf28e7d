"""Seconds of each layer in an iteration, of each message and of each pass, from the oracle's terms."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.foundation.layers import Direction
from calib.oracle.costs.machine import Costs
from calib.oracle.layout.shards import saving_late
from calib.oracle.layout.workload import workload
from calib.oracle.model.recomputed import run_again
from calib.oracle.model.spec import ModelSpec
from calib.oracle.projection import Phase
from calib.oracle.strategies.common import ADDED_UP, DIRECTIONS
from calib.oracle.strategies.stage_terms import Layers
from calib.oracle.terms import Term


class Slot(NamedTuple):
    """A layer that runs for some seconds."""

    place: int
    seconds: float


def layer_slots(
    model: ModelSpec, division: Division, costs: Costs, terms: Sequence[Term]
) -> dict[Direction, list[Slot]]:
    """The layers of one micro-batch on a rank, in the order in which they run.

    They come to what the terms say of the direction, but for adding up gradients: what an iteration adds
    to isolated layers is shared out by its own law, all else (a slowdown) evenly. Views take no time.
    """
    again = run_again(model, (), saving_late(model, division))
    layers = Layers(workload(model, division), division.local_batch, costs.layers, again)
    found: dict[Direction, list[Slot]] = {}
    for d in DIRECTIONS:
        seconds = layers.seconds[d]
        whole = math.fsum(_of_layers(terms, d)) / division.accumulation
        factor = whole / alone if (alone := math.fsum(seconds)) else 1.0
        slots = [Slot(place, factor * each) for place, each in enumerate(seconds)]
        found[d] = slots if d == "forward" else slots[::-1]
    return found


def _of_layers(terms: Iterable[Term], direction: Direction) -> list[float]:
    return [t.cost.seconds for t in terms if t.phase == direction and t.what != ADDED_UP]


def sent_seconds(
    terms: Iterable[Term], phases: Sequence[Phase], leave_out: str = ""
) -> list[float]:
    """Of each term that sends, with what the links save that rested before it (the term after it)."""
    found: list[float] = []
    for term in terms:
        if term.phase not in phases or term.what == leave_out:
            continue
        if term.cost.seconds < 0:
            found[-1] += term.cost.seconds
        else:
            found.append(term.cost.seconds)
    return found


def seconds_named(terms: Iterable[Term], what: str) -> float:
    """Of the terms of this name."""
    return math.fsum(term.cost.seconds for term in terms if term.what == what)


def require_all(predicted_s: float, tasks_s: float, division: Division) -> None:
    """Raise InputError where the tasks do not take what was predicted."""
    if not math.isclose(predicted_s, tasks_s, rel_tol=1e-9, abs_tol=1e-12):
        raise InputError(
            f"the tasks of {division.strategy} on {division.p} ranks take {tasks_s:.6g} s, but "
            f"{predicted_s:.6g} s are predicted: a trace cannot hold this iteration"
        )
