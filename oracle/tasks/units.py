"""Where fully sharded training gathers the weights of a unit, and scatters its gradients."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.foundation.layers import Direction
from calib.oracle.costs.machine import Costs
from calib.oracle.layout.shards import rank_parameters
from calib.oracle.layout.traffic import Message, unit_messages
from calib.oracle.layout.units import ROOT, model_units, units_of
from calib.oracle.layout.workload import tensors
from calib.oracle.model.spec import ModelSpec
from calib.oracle.strategies.fully_sharded import SENT
from calib.oracle.tasks.around import Around, Beside
from calib.oracle.tasks.slots import sent_seconds
from calib.oracle.terms import Term


class Run(NamedTuple):
    """Layers of one unit that run one after the other: the first of them that runs, and the last."""

    unit: str
    first: int
    last: int


def around_units(
    model: ModelSpec, division: Division, costs: Costs, terms: Sequence[Term]
) -> Around:
    """Each unit's allgather before its layers, and its reduce-scatter when they have run back.

    Raises InputError for checkpointed regions, which gather units again in the middle of a backward.
    """
    around, messages = Around(), iter(unit_messages(model, division))
    forward = list(_runs(model, range(len(model.layers))))
    backward = list(_runs(model, range(len(model.layers) - 1, -1, -1)))
    sent = _seconds(model, division, costs, terms)
    units = model_units(model)
    of_unit = {
        unit.name: ([next(messages) for _ in range(unit.gathers)], next(messages)) for unit in units
    }
    shards = dict(zip(of_unit, rank_parameters(model, division), strict=True))
    # the root's are the first that are gathered, and the last whose gradients are sent
    for unit in sorted(units, key=lambda of: of.name != ROOT):
        places: list[tuple[Direction, int]] = [("forward", 0)]
        if unit.name != ROOT:
            places = [("forward", run.first) for run in forward if run.unit == unit.name]
            places += [("backward", run.first) for run in backward if run.unit == unit.name]
        if len(places) != unit.gathers:
            raise InputError(
                f"fully_sharded gathers {unit.name} {unit.gathers} times, also where its layers are "
                "run again: no task says when"
            )
        for (direction, place), message in zip(places, of_unit[unit.name][0], strict=True):
            around.add(direction, "before", place, _beside(message, sent))
    for unit in sorted(units, key=lambda of: of.name == ROOT):
        ends = [run.last for run in backward if run.unit == unit.name]
        place = 0 if unit.name == ROOT else ends[-1]
        packed = costs.tensors.passing("pack", tensors(unit.shapes, model.items)).seconds
        shard = tensors((shards[unit.name],), model.items)
        averaged = costs.tensors.passing("unpack", shard).seconds
        name = unit.name or "the root"
        for beside in (
            Beside(f"pack the gradients of {name}", packed),
            _beside(of_unit[unit.name][1], sent),
            Beside(f"average the gradients of {name}", averaged),
        ):
            around.add("backward", "after", place, beside)
    return around


def _beside(message: Message, sent: dict[Message, float]) -> Beside:
    name = f"{message.operation} of {message.why}"
    return Beside(name, sent[message._replace(why="")], message)


def _runs(model: ModelSpec, places: Iterable[int]) -> Iterator[Run]:
    """The units of layers with weights, but for the root's, in this order of the layers."""
    weighted = [layer.name for layer in model.layers if layer.shape.parameter_shapes]
    unit_of = units_of(weighted)
    units = ((unit_of.get(model.layers[place].name, ROOT), place) for place in places)
    inside = ((name, place) for name, place in units if name != ROOT)
    for name, of in itertools.groupby(inside, key=itemgetter(0)):
        run = [place for _, place in of]
        yield Run(name, run[0], run[-1])


def _seconds(
    model: ModelSpec, division: Division, costs: Costs, terms: Sequence[Term]
) -> dict[Message, float]:
    """Of one message of each kind: a share of what its operation takes in all, as if it were alone."""
    counts = Counter(message._replace(why="") for message in unit_messages(model, division))
    found: dict[Message, float] = {}
    for (operation, _), whole in zip(SENT, sent_seconds(terms, ["layerwise"]), strict=True):
        alone = {
            message: costs.sent(message, model.items.weight_bytes).seconds
            for message in counts
            if message.operation == operation
        }
        sum_of = math.fsum(counts[message] * each for message, each in alone.items())
        factor = whole / sum_of if sum_of else 0.0
        found |= {message: factor * each for message, each in alone.items()}
    return found
