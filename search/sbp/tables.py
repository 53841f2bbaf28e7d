"""Tables of costs of a network's chain; equal layers share one array."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from calib.foundation.arrays import Floats
from calib.foundation.errors import InputError
from calib.search.request import Look, never
from calib.search.sbp.methods import CostChain
from calib.search.sbp.prices import ChainPrices
from calib.search.sbp.states import ProductLayer, State, possible


def chain_of(
    prices: ChainPrices, states: Sequence[State], limit: float, look: Look = never
) -> CostChain:
    """Raises InputError where a layer has no state at all, BudgetOver."""
    layers = prices.network.layers
    nodes: dict[ProductLayer, tuple[Floats, Floats]] = {}
    edges: dict[tuple[int, bool], Floats] = {}
    own, between, nbytes = [], [], []
    for index, layer in enumerate(layers):
        last = index == len(layers) - 1
        key = layer._replace(name="last" if last else "")  # equal layers cost the same
        if key not in nodes:
            nodes[key] = _node(prices, index, states, last, look)
        own.append(nodes[key][0])
        nbytes.append(nodes[key][1])
        if index:
            moved = (layer.inputs, layer.reads_data)
            if moved not in edges:
                edges[moved] = _edge(prices, index, states, look)
            between.append(edges[moved])
    return CostChain(own, between, nbytes, limit)


def _node(
    prices: ChainPrices, index: int, states: Sequence[State], last: bool, look: Look
) -> tuple[Floats, Floats]:
    layer, per_micro = prices.network.layers[index], prices.batch // prices.micro
    seconds = np.full(len(states), math.inf)
    nbytes = np.full(len(states), math.inf)
    for k, state in enumerate(states):
        look()
        if possible(layer, state, per_micro, last):
            seconds[k] = sum(cost.seconds for cost in prices.node(index, state).values())
            nbytes[k] = prices.nbytes(index, state)
    if not np.isfinite(seconds).any():
        raise InputError(
            f"no state cuts {layer.name} ({layer.channels} -> {layer.filters}) and {per_micro} "
            f"samples of a micro-batch over these devices into equal parts"
        )
    return seconds, np.where(np.isfinite(nbytes), nbytes, 0.0)


def _edge(prices: ChainPrices, index: int, states: Sequence[State], look: Look) -> Floats:
    """The all-to-all depends on how rows are cut; on a whole state only where p1 does not divide."""
    splits = list(dict.fromkeys(state.split for state in states))
    first = {split: next(s for s in states if s.split == split) for split in splits}

    def change(before: State, state: State) -> float:
        look()
        return prices.change(index, before, state).seconds

    table = np.array([[change(first[a], first[b]) for b in splits] for a in splits])
    at = np.array([splits.index(state.split) for state in states])
    return np.asarray(table[at[:, None], at[None, :]])
