"""The tables of a search: t_C + t_S and bytes of every layer, t_X of every edge, by configuration.

Equal layers share one array, and so do edges between tensors that are cut alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from calib.foundation.arrays import Floats
from calib.oracle.cost import Cost, total
from calib.oracle.layout.partitions import Configuration
from calib.oracle.layout.repeats import kinds_of
from calib.oracle.strategies.common import DELTA
from calib.oracle.trace.tracing import INPUT
from calib.search.layerwise.elimination import Edge, Sums
from calib.search.layerwise.layouts import BoxLayout, needs, owns
from calib.search.layerwise.memory import Memory, carries
from calib.search.layerwise.moving import busiest, copied
from calib.search.layerwise.prices import LayerPrices
from calib.search.request import Look, Progress, never, silent

ChosenConfigurations = Sequence[tuple[Configuration, ...]]  # of every layer


@dataclass(frozen=True)
class CostTables:
    """By layer, in the order of the model's: `configurations`, seconds; and t_X of the edges.

    No peak of a plan is below the sum of bytes `kept`; the least `unfreed` is of a plan with little to
    hold at once (memory.py).
    """

    configurations: tuple[tuple[Configuration, ...], ...]
    nodes: tuple[Floats, ...]
    edges: tuple[Edge, ...]
    kept: Sums
    unfreed: Sums

    @property
    def log10_plans(self) -> float:
        """Of the number of plans."""
        return float(sum(np.log10(len(of)) for of in self.configurations))

    @property
    def entries(self) -> int:
        """Costs in all tables, equal ones once."""
        arrays = {id(a): a.size for a in (*self.nodes, *(cost for _, _, cost in self.edges))}
        return sum(arrays.values())


@dataclass(frozen=True)
class LayerPrice:
    """What a layer costs in a plan, by what for, and the bytes that it takes on a device."""

    compute: Cost
    synchronize: Cost
    update: Cost
    redistribute: Cost
    nbytes: int


class Pricing:
    """Costs of the layers of one model and of what moves between them."""

    def __init__(self, prices: LayerPrices) -> None:
        self.prices, self.model = prices, prices.model
        self.devices, self.batch = prices.devices, prices.batch
        self.index = {layer.name: i for i, layer in enumerate(self.model.layers)}
        # (who reads, its how manieth input, who owns)
        self.edges = [
            (j, which, self.index[name])
            for j, layer in enumerate(self.model.layers)
            for which, name in enumerate(layer.inputs)
            if name != INPUT
        ]
        self.memory = Memory(prices)

    def own(self, index: int, of: Sequence[Configuration]) -> BoxLayout:
        """What the devices have of a layer's output."""
        return owns(self.model.layers[index].shape, of, self.batch, self.devices.p)

    def need(self, index: int, which: int, of: Sequence[Configuration]) -> BoxLayout:
        """What they read of one of its inputs."""
        return needs(self.model.layers[index].shape, which, of, self.batch, self.devices.p)

    def layer(self, index: int, of: Configuration) -> Cost:
        """t_C + t_S of a layer."""
        prices = self.prices
        return total(
            [
                prices.compute(index, of),
                prices.synchronize(index, of),
                prices.update(index, of),
                prices.terms(index, of),
            ]
        )

    def both_ways(self, index: int) -> float:
        """2 where a gradient of a layer's output goes back, else 1."""
        return 2.0 if carries(self.model.layers[index]) else 1.0

    def moved(self, own: BoxLayout, need: BoxLayout, look: Look = never) -> tuple[Floats, Floats]:
        """Bytes of the busiest device at both levels, by the configurations of owner and reader."""
        within, between = busiest(own, need, self.devices, look)
        return DELTA * within, DELTA * between

    def copied(self, own: BoxLayout, need: BoxLayout, look: Look = never) -> tuple[Floats, Floats]:
        """Bytes that the busiest device copies around the messages, forward and backward."""
        there, back = copied(own, need, look)
        return DELTA * there, DELTA * back

    def moves(self, within: float, between: float) -> Cost:
        """What moving such bytes takes in one direction."""
        return total([self.prices.move(within, False), self.prices.move(between, True)])


def tables(
    pricing: Pricing, chosen: ChosenConfigurations, progress: Progress = silent, look: Look = never
) -> CostTables:
    """The tables of these configurations. Raises MissingParameter, BudgetOver."""

    def cost(index: int, of: Configuration) -> float:
        look()
        return pricing.layer(index, of).seconds

    kinds, layers = kinds_of(pricing.model), pricing.model.layers
    nodes: dict[int, Floats] = {}
    held: dict[tuple[int, bool], Floats] = {}  # [kept or unfreed, configuration]
    keys = [(kind, INPUT in layer.inputs) for kind, layer in zip(kinds, layers, strict=True)]
    for index, (kind, reads) in enumerate(keys):
        of = chosen[index]
        if kind not in nodes:
            nodes[kind] = np.array([cost(index, one) for one in of])
        if (kind, reads) not in held:
            held[kind, reads] = np.array([pricing.memory.layer(index, one) for one in of]).T
        progress("tables of layers", index / len(kinds))
    edges, kept, joined = _edges(pricing, chosen, kinds, progress, look)
    rows = {key: (of[0], of[1]) for key, of in held.items()}  # equal layers share one array
    return CostTables(
        tuple(chosen[kind] for kind in kinds),
        tuple(nodes[kind] for kind in kinds),
        tuple(edges),
        Sums([rows[key][0] for key in keys], kept),
        Sums([rows[key][1] for key in keys], joined),
    )


def _edges(
    pricing: Pricing,
    chosen: ChosenConfigurations,
    kinds: Sequence[int],
    progress: Progress,
    look: Look,
) -> tuple[list[Edge], list[Edge], list[Edge]]:
    """Of every edge t_X, the bytes that are kept for it, and those of joining a tensor anew."""
    known: dict[tuple[int, int, int, float], Floats] = {}
    held: dict[tuple[int, int, int, int], tuple[Floats, Floats]] = {}
    alike: dict[tuple[bytes, bytes, float], Floats] = {}
    keys: dict[tuple[int, int], bytes] = {}
    found: tuple[list[Edge], list[Edge], list[Edge]] = [], [], []
    for done, (j, which, i) in enumerate(pricing.edges):
        ways, how = pricing.both_ways(i), pricing.memory.how(j, which)
        key, kept = (kinds[i], kinds[j], which, ways), (kinds[i], kinds[j], which, how)
        if key not in known or kept not in held:
            own, need = pricing.own(i, chosen[i]), pricing.need(j, which, chosen[j])
            joined, stays = pricing.memory.edge(j, which, own, need, chosen[j])
            held[kept] = stays, 2.0 * joined  # with what is joined
            ends = (_key(keys, (kinds[i], -1), own), _key(keys, (kinds[j], which), need), ways)
            if ends not in alike:
                within, between = pricing.moved(own, need, look)
                alike[ends] = ways * _seconds(pricing.moves, within, between)
                if pricing.prices.form == "measured":
                    there, back = pricing.copied(own, need, look)
                    price = pricing.prices.copy
                    alike[ends] = alike[ends] + _looked_up(price, there)
                    if ways > 1.0:
                        alike[ends] = alike[ends] + _looked_up(price, back)
            known[key] = alike[ends]
            progress("tables of edges", done / len(pricing.edges))
        for edges, numbers in zip(found, (known[key], *held[kept]), strict=True):
            edges.append((i, j, numbers))
    return found


def _key(keys: dict[tuple[int, int], bytes], of: tuple[int, int], layout: BoxLayout) -> bytes:
    if of not in keys:
        keys[of] = layout.key
    return keys[of]


def _seconds(moves: Callable[[float, float], Cost], within: Floats, between: Floats) -> Floats:
    """Of each pair of bytes, each distinct one looked up once."""
    found = np.zeros(within.shape)
    for nbytes, price in ((within, lambda m: moves(m, 0.0)), (between, lambda m: moves(0.0, m))):
        found += _looked_up(price, nbytes)
    return found


def _looked_up(price: Callable[[float], Cost], nbytes: Floats) -> Floats:
    distinct, places = np.unique(nbytes, return_inverse=True)
    seconds: Floats = np.array([price(float(m)).seconds for m in distinct])
    found: Floats = seconds[places.reshape(nbytes.shape)]
    return found


def priced_layers(pricing: Pricing, of: Sequence[Configuration]) -> tuple[list[LayerPrice], int]:
    """What each layer of a plan costs, with what moves to it, and the peak of a device's bytes."""
    layers, prices, memory = pricing.model.layers, pricing.prices, pricing.memory
    incoming: list[list[Cost]] = [[] for _ in layers]
    nbytes = [memory.layer(j, one)[0] for j, one in enumerate(of)]
    joined: dict[tuple[int, int], float] = {}
    for j, which, i in pricing.edges:
        own, need = pricing.own(i, of[i : i + 1]), pricing.need(j, which, of[j : j + 1])
        within, between = (float(m[0, 0]) for m in pricing.moved(own, need))
        ways = pricing.both_ways(i)
        incoming[j].append(pricing.moves(within, between).times(ways))
        there, back = (float(m[0, 0]) for m in pricing.copied(own, need))
        incoming[j] += [prices.copy(there), prices.copy(back if ways > 1 else 0.0)]
        joined[j, which], kept = (
            float(m[0, 0]) for m in memory.edge(j, which, own, need, of[j : j + 1])
        )
        nbytes[j] += kept
    return [
        LayerPrice(
            prices.compute(j, one),
            prices.synchronize(j, one),
            prices.update(j, one),
            total([*incoming[j], prices.terms(j, one)]),
            round(nbytes[j]),
        )
        for j, one in enumerate(of)
    ], memory.peak(of, joined)
