"""Plans that people take without a search: data parallelism, Megatron's, one weird trick.

data: (p, 1, 1) for all layers. Megatron (Narayanan et al., SC 2021): p1 by samples, and p2 devices that
cut columns of one product and rows of the next; of all p2 the fastest that fits, else the smallest. One
weird trick: data for convolutions, Megatron's pairs over all devices for fully connected layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from oracle.search.links import Group
from oracle.search.sbp.states import ONE, Layer, State
from oracle.search.sbp.tables import Tables

Chosen = list[int] | str


def data(tables: Tables) -> Chosen:
    """Samples over all devices."""
    devices = tables.request.devices
    state = State(Group(devices.nodes, devices.per_node), ONE, ONE)
    return _indices(tables, [state] * len(tables.columns))


def megatron(tables: Tables) -> Chosen:
    """The best p2."""
    limit = tables.request.devices.memory_bytes
    plans = [_indices(tables, of) for of in _pairs(tables)]
    possible = [of for of in plans if not isinstance(of, str)]
    fitting = [of for of in possible if not limit or tables.bytes_of(of) <= limit]
    if fitting:
        return min(fitting, key=tables.cost)
    if possible:
        return min(possible, key=tables.bytes_of)
    return next(of for of in plans if isinstance(of, str))


def _pairs(tables: Tables) -> list[list[State]]:
    found = []
    for state in tables.all_states:
        rest, model = state.split, state.broadcast
        if state.partial == ONE:
            found.append(alternating(tables.network.layers, rest, model))
    return found


def alternating(layers: Sequence[Layer], rest: Group, model: Group) -> list[State]:
    """Columns, rows, columns, ... of the products; the logits, and what begins, by columns."""
    found, columns = [], True
    for k, layer in enumerate(layers):
        last = k + 1 == len(layers)
        if layer.kind == "conv":
            found.append(
                State(Group(rest.nodes * model.nodes, rest.per_node * model.per_node), ONE, ONE)
            )
            continue
        if layer.kind == "embedding":
            found.append(State(rest, ONE, model))
            continue
        by_columns = columns or last
        found.append(State(rest, model, ONE) if by_columns else State(rest, ONE, model))
        columns = not by_columns
    return found


def one_weird_trick(tables: Tables) -> Chosen:
    """Of networks with convolutions."""
    if not any(layer.kind == "conv" for layer in tables.network.layers):
        return "it has no convolutions"
    devices = tables.request.devices
    everyone = Group(devices.nodes, devices.per_node)
    return _indices(tables, alternating(tables.network.layers, ONE, everyone))


def _indices(tables: Tables, states: Sequence[State]) -> Chosen:
    found = []
    for layer, column, state in zip(tables.network.layers, tables.columns, states, strict=True):
        if state not in column.states:
            return f"{layer.name} cannot be cut as {state}"
        found.append(column.states.index(state))
    return found


BASELINES: dict[str, Callable[[Tables], Chosen]] = {
    "data": data, "megatron": megatron, "one weird trick": one_weird_trick,
}  # fmt: skip
