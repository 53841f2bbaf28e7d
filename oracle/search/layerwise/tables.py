"""The tables of a search: t_C + t_S and bytes of every layer, t_X of every edge, by configuration.

Equal layers share one array, and so do edges between tensors that are cut alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oracle.cost import Cost, total
from oracle.model import Layer
from oracle.partitions import Configuration
from oracle.repeats import kinds_of
from oracle.search.layerwise.copies import copied
from oracle.search.layerwise.elimination import Edge
from oracle.search.layerwise.layouts import Layout, needs, owns
from oracle.search.layerwise.memory import largest, layer_bytes
from oracle.search.layerwise.moving import busiest
from oracle.search.layerwise.prices import Prices
from oracle.search.request import Progress, silent
from oracle.strategies.common import DELTA
from oracle.trace import INPUT

Floats = NDArray[np.float64]
Chosen = Sequence[tuple[Configuration, ...]]  # of every layer


@dataclass(frozen=True)
class Tables:
    """By layer, in the order of the model's: `configurations`, seconds, bytes; and t_X of the edges."""

    configurations: tuple[tuple[Configuration, ...], ...]
    nodes: tuple[Floats, ...]
    edges: tuple[Edge, ...]
    nbytes: tuple[Floats, ...]

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

    def __init__(self, prices: Prices) -> None:
        self.prices, self.model = prices, prices.model
        self.devices, self.batch = prices.devices, prices.batch
        self.index = {layer.name: i for i, layer in enumerate(self.model.layers)}
        # (who reads, its how manieth input, who owns)
        self.edges = [
            (j, which, self.index[name])
            for j, layer in enumerate(self.model.layers)
            for which, name in enumerate(layer.inputs) if name != INPUT
        ]  # fmt: skip

    def own(self, index: int, of: Sequence[Configuration]) -> Layout:
        """What the devices have of a layer's output."""
        return owns(self.model.layers[index].shape, of, self.batch, self.devices.p)

    def need(self, index: int, which: int, of: Sequence[Configuration]) -> Layout:
        """What they read of one of its inputs."""
        return needs(self.model.layers[index].shape, which, of, self.batch, self.devices.p)

    def nbytes(self, index: int, of: Sequence[Configuration], optimizer: str) -> list[int]:
        """What a layer takes on a device under each configuration."""
        shape = self.model.layers[index].shape
        each = [largest(self.need(index, n, of)) for n in range(len(shape.input_shapes))]
        read = [sum(sizes) for sizes in zip(*each, strict=True)]
        return [
            layer_bytes(shape, self.prices.part(index, one), one, self.batch, items, optimizer)
            for one, items in zip(of, read, strict=True)
        ]

    def layer(self, index: int, of: Configuration) -> Cost:
        """t_C + t_S of a layer."""
        prices = self.prices
        return total([prices.compute(index, of), prices.synchronize(index, of),
                      prices.update(index, of), prices.terms(index, of)])  # fmt: skip

    def both_ways(self, index: int) -> float:
        """2 where a gradient of a layer's output goes back, else 1."""
        return 2.0 if _carries(self.model.layers[index]) else 1.0

    def moved(self, own: Layout, need: Layout) -> tuple[Floats, Floats]:
        """Bytes of the busiest device at both levels, by the configurations of owner and reader."""
        within, between = busiest(own, need, self.devices)
        return DELTA * within, DELTA * between

    def copied(self, own: Layout, need: Layout) -> tuple[Floats, Floats]:
        """Bytes that the busiest device copies around the messages, forward and backward."""
        there, back = copied(own, need)
        return DELTA * there, DELTA * back

    def moves(self, within: float, between: float) -> Cost:
        """What moving such bytes takes in one direction."""
        return total([self.prices.move(within, False), self.prices.move(between, True)])


def _carries(layer: Layer) -> bool:
    return layer.needs_input_grad or bool(layer.shape.parameter_shapes)


def tables(pricing: Pricing, chosen: Chosen, optimizer: str, progress: Progress = silent) -> Tables:
    """The tables of these configurations. Raises MissingParameter."""
    kinds = kinds_of(pricing.model)
    nodes: dict[int, Floats] = {}
    nbytes: dict[int, Floats] = {}
    for done, kind in enumerate(dict.fromkeys(kinds)):
        nodes[kind] = np.array([pricing.layer(kind, of).seconds for of in chosen[kind]])
        nbytes[kind] = np.array(pricing.nbytes(kind, chosen[kind], optimizer), dtype=np.float64)
        progress("tables of layers", done / len(kinds))
    return Tables(
        tuple(chosen[kind] for kind in kinds), tuple(nodes[kind] for kind in kinds),
        tuple(_edges(pricing, chosen, kinds, progress)), tuple(nbytes[kind] for kind in kinds),
    )  # fmt: skip


def _edges(
    pricing: Pricing, chosen: Chosen, kinds: Sequence[int], progress: Progress
) -> list[Edge]:
    """t_X of every edge."""
    known: dict[tuple[int, int, int, float], Floats] = {}
    alike: dict[tuple[bytes, bytes, float], Floats] = {}
    keys: dict[tuple[int, int], bytes] = {}
    found: list[Edge] = []
    for done, (j, which, i) in enumerate(pricing.edges):
        ways = pricing.both_ways(i)
        key = (kinds[i], kinds[j], which, ways)
        if key not in known:
            own, need = pricing.own(i, chosen[i]), pricing.need(j, which, chosen[j])
            ends = (_key(keys, (kinds[i], -1), own), _key(keys, (kinds[j], which), need), ways)
            if ends not in alike:
                within, between = pricing.moved(own, need)
                alike[ends] = ways * _seconds(pricing.moves, within, between)
                if pricing.prices.form == "measured":
                    there, back = pricing.copied(own, need)
                    price = pricing.prices.copy
                    alike[ends] = alike[ends] + _looked_up(price, there)
                    if ways > 1.0:
                        alike[ends] = alike[ends] + _looked_up(price, back)
            known[key] = alike[ends]
            progress("tables of edges", done / len(pricing.edges))
        found.append((i, j, known[key]))
    return found


def _key(keys: dict[tuple[int, int], bytes], of: tuple[int, int], layout: Layout) -> bytes:
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


def priced_layers(
    pricing: Pricing, plan: Mapping[str, Configuration], optimizer: str
) -> list[LayerPrice]:
    """What each layer of a plan costs; what moves counts for the layer that reads it."""
    layers = pricing.model.layers
    of = [plan[layer.name] for layer in layers]
    incoming: list[list[Cost]] = [[] for _ in layers]
    for j, which, i in pricing.edges:
        own, need = pricing.own(i, of[i : i + 1]), pricing.need(j, which, of[j : j + 1])
        within, between = (float(m[0, 0]) for m in pricing.moved(own, need))
        ways = pricing.both_ways(i)
        incoming[j].append(pricing.moves(within, between).times(ways))
        there, back = (float(m[0, 0]) for m in pricing.copied(own, need))
        incoming[j] += [pricing.prices.copy(there), pricing.prices.copy(back if ways > 1 else 0.0)]
    prices = pricing.prices
    return [
        LayerPrice(
            prices.compute(j, of[j]), prices.synchronize(j, of[j]), prices.update(j, of[j]),
            total([*incoming[j], prices.terms(j, of[j])]),
            pricing.nbytes(j, of[j : j + 1], optimizer)[0],
        )
        for j in range(len(layers))
    ]  # fmt: skip
