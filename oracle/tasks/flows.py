"""Where the ranks that share layers send what they share: filter, channel, tensor, data+filter."""

from __future__ import annotations

from collections.abc import Sequence

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.foundation.layers import Direction
from calib.oracle.costs.machine import Costs
from calib.oracle.layout.traffic import Sending, equal_flows, flow_message, sendings
from calib.oracle.layout.workload import kinds_of
from calib.oracle.model.spec import ModelSpec
from calib.oracle.strategies.shared_layers import CutLoop, LoopOperation, cut_tensors, cutting
from calib.oracle.tasks.around import Around, Beside, When
from calib.oracle.tasks.slots import sent_seconds
from calib.oracle.terms import Term

AGAIN = ", again"  # of what checkpointed regions make once more
# where shards are joined or cut (TENSORS in strategies/shared_layers.py)
CUT_AT: dict[tuple[str, LoopOperation], tuple[Direction, When]] = {
    ("filters", "concat"): ("forward", "after"),
    ("filters", "split"): ("backward", "before"),
    ("channels", "split"): ("forward", "before"),
    ("channels", "concat"): ("backward", "after"),
}


def around_layers(
    model: ModelSpec, division: Division, costs: Costs, terms: Sequence[Term]
) -> Around:
    """The collectives of shared layers, and the passes that join and cut their tensors."""
    around = Around()
    known = iter(sent_seconds(terms, ["halo", "layerwise"]))
    kinds = kinds_of(model)
    for sending in sendings(model, division):
        # one message of so many items, in the order of the terms (grouped_flows)
        each = {
            items: next(known, 0.0) / count
            for items, (_, count) in equal_flows(model, sending).items()
        }
        for place in sending.places:
            items = sending.items[kinds[place]]
            message = flow_message(model, sending.flow(model, place, items), division)
            beside = Beside(f"{message.operation} of {message.why}", each[items], message)
            around.add(sending.direction, _when(sending), place, beside)
    if next(known, None) is not None:
        raise InputError(f"the messages of {division.strategy} belong to no layer")
    if division.parts > 1 and division.traits.cuts in ("filters", "channels"):
        _add_cuts(around, model, division, costs)
    return around


def _when(sending: Sending) -> When:
    """Outputs are sent after their layer, and what is made again before the backward needs it."""
    return "before" if sending.why.endswith(AGAIN) else "after"


def _add_cuts(around: Around, model: ModelSpec, division: Division, costs: Costs) -> None:
    places = {layer.name: place for place, layer in enumerate(model.layers)}
    for operation, tensors in cut_tensors(model, division).items():
        for name, shape in tensors.items():
            direction, when = CUT_AT[division.traits.cuts, operation]
            if name.endswith(AGAIN):
                direction, when = "backward", "before"
            loop = [CutLoop(operation, shape, 1)]
            seconds = cutting(operation, loop, model, division, costs).seconds
            if seconds:
                place = places[name.removesuffix(AGAIN)]
                around.add(direction, when, place, Beside(f"{operation} of {name}", seconds))
