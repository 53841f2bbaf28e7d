"""The tables of a search: t_C + t_S and bytes of every layer, t_X of every edge, by configuration.

Equal layers share one array, and so do edges between tensors that are cut alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from calib.foundation.arrays import Floats
from calib.foundation.layers import Shape
from calib.oracle.cost import Cost, total
from calib.oracle.layout.partitions import Configuration
from calib.oracle.layout.workload import kinds_of
from calib.oracle.model.graph import INPUT
from calib.search.layerwise.elimination import Edge, Sums
from calib.search.layerwise.layouts import BoxLayout, needs, owns
from calib.search.layerwise.memory import Memory, outputs_of
from calib.search.layerwise.moving import busiest, copied
from calib.search.layerwise.prices import LayerPrices
from calib.search.request import Look, Progress, SearchRequest, never, silent

ChosenConfigurations = Sequence[tuple[Configuration, ...]]  # of every layer


@dataclass(frozen=True)
class CostTables:
    """`configurations` of each layer, in the model's order, and numbers by them.

    `costs` are seconds. No plan's peak is below its sum of bytes `kept`; the plan with the least sum
    `unfreed` holds little at once (memory.py).
    """

    configurations: tuple[tuple[Configuration, ...], ...]
    costs: Sums
    kept: Sums
    unfreed: Sums

    @property
    def log10_plans(self) -> float:
        """log10 of the number of plans."""
        return float(sum(np.log10(len(of)) for of in self.configurations))

    def steps(self, of_method: dict[str, int]) -> dict[str, int]:
        """The steps of a method between the sizes of the tables (of equal ones, one counts)."""
        nodes, edges = self.costs
        arrays = {id(a): a.size for a in (*nodes, *(cost for _, _, cost in edges))}
        sizes = {"layers": len(nodes), "edges": len(edges)}
        return sizes | of_method | {"entries of tables": sum(arrays.values())}

    def chosen(self, choices: Sequence[int]) -> list[Configuration]:
        """The configurations of a plan."""
        return [of[choice] for of, choice in zip(self.configurations, choices, strict=True)]


class Pricing:
    """Costs of a request's layers and of what moves between them."""

    def __init__(self, request: SearchRequest) -> None:
        self.prices = prices = LayerPrices(request)
        self.model = prices.model
        self.devices, self.batch = prices.devices, prices.batch
        self.index = outputs_of(self.model)
        # (reader, which of its inputs, owner)
        self.edges = [
            (j, which, self.index[name])
            for j, layer in enumerate(self.model.layers)
            for which, name in enumerate(layer.inputs)
            if name != INPUT
        ]
        self.memory = Memory(prices)

    def own(self, index: int, of: Sequence[Configuration], size: Shape) -> BoxLayout:
        """What each device has of a layer's output of this size, its only one if it is cut."""
        shape = self.model.layers[index].shape
        if size != shape.output_shape:
            shape = shape.model_copy(update={"output_shape": size})
        return owns(shape, of, self.batch, self.devices.p)

    def need(self, index: int, which: int, of: Sequence[Configuration]) -> BoxLayout:
        """What each device reads of one of a layer's inputs."""
        return needs(self.model.layers[index].shape, which, of, self.batch, self.devices.p)

    def layer(self, index: int, of: Configuration) -> Cost:
        """t_C + t_S of a layer."""
        prices = self.prices
        phases = (prices.compute, prices.synchronize, prices.update, prices.terms)
        return total(phase(index, of) for phase in phases)

    def edge(self, own: BoxLayout, need: BoxLayout, back: bool, look: Look) -> Floats:
        """t_X by the configurations of owner and reader; `back`: a gradient goes the same way back."""
        prices = self.prices
        within, between = self.moved(own, need, look)
        seconds = _looked_up(lambda m: prices.move(m, between_nodes=False), within)
        seconds = seconds + _looked_up(lambda m: prices.move(m, between_nodes=True), between)
        seconds = (2.0 if back else 1.0) * seconds
        if prices.form == "measured":
            there, returned = self.copied(own, need, look)
            seconds = seconds + _looked_up(prices.copy, there)
            if back:
                seconds = seconds + _looked_up(prices.copy, returned)
        return seconds

    def moved(self, own: BoxLayout, need: BoxLayout, look: Look = never) -> tuple[Floats, Floats]:
        """Bytes at the busiest device inside its node and between nodes, by configurations."""
        within, between = busiest(own, need, self.devices, look)
        each = self.prices.item_bytes
        return each * within, each * between

    def copied(self, own: BoxLayout, need: BoxLayout, look: Look = never) -> tuple[Floats, Floats]:
        """Bytes that the busiest device copies around messages, forward and backward."""
        there, back = copied(own, need, look)
        each = self.prices.item_bytes
        return each * there, each * back


def tables(
    pricing: Pricing, chosen: ChosenConfigurations, progress: Progress = silent, look: Look = never
) -> CostTables:
    """The tables of these configurations. Raises MissingParameter, BudgetOver."""

    def cost(index: int, of: Configuration) -> float:
        look()
        return pricing.layer(index, of).seconds

    kinds, layers = kinds_of(pricing.model), pricing.model.layers
    nodes: dict[int, Floats] = {}
    held: dict[tuple[int, bool], tuple[Floats, Floats]] = {}
    keys = [(kind, INPUT in layer.inputs) for kind, layer in zip(kinds, layers, strict=True)]
    for index, key in enumerate(keys):
        of, kind = chosen[index], kinds[index]
        if kind not in nodes:
            nodes[kind] = np.array([cost(index, one) for one in of])
        if key not in held:
            kept, unfreed = np.array([pricing.memory.layer(index, one) for one in of]).T
            held[key] = kept, unfreed
        progress("tables of layers", index / len(kinds))
    edges, stays, joined = _edges(pricing, chosen, kinds, progress, look)
    return CostTables(
        tuple(chosen[kind] for kind in kinds),
        Sums([nodes[kind] for kind in kinds], edges),
        Sums([held[key][0] for key in keys], stays),
        Sums([held[key][1] for key in keys], joined),
    )


def _edges(
    pricing: Pricing,
    chosen: ChosenConfigurations,
    kinds: Sequence[int],
    progress: Progress,
    look: Look,
) -> tuple[list[Edge], list[Edge], list[Edge]]:
    """Of every edge t_X, the bytes kept for it, and twice those of a tensor joined anew."""
    known: dict[tuple[int, int, int, int], tuple[Floats, Floats, Floats]] = {}
    moves: dict[tuple[bytes, bytes, bool], Floats] = {}  # tensors that are cut alike move alike
    found: tuple[list[Edge], list[Edge], list[Edge]] = [], [], []
    for done, (j, which, i) in enumerate(pricing.edges):
        key = (kinds[i], kinds[j], which, pricing.memory.how(j, which))
        if key not in known:
            size = pricing.model.layers[j].shape.input_shapes[which]
            own, need = pricing.own(i, chosen[i], size), pricing.need(j, which, chosen[j])
            joined, stays = pricing.memory.edge(j, which, own, need, chosen[j])
            ends = (own.key, need.key, pricing.model.layers[i].has_gradient)
            if ends not in moves:
                moves[ends] = pricing.edge(own, need, ends[2], look)
            known[key] = moves[ends], stays, 2.0 * joined
            progress("tables of edges", done / len(pricing.edges))
        for edges, numbers in zip(found, known[key], strict=True):
            edges.append((i, j, numbers))
    return found


def _looked_up(price: Callable[[float], Cost], nbytes: Floats) -> Floats:
    """Seconds of each number of bytes; each distinct one is looked up once."""
    distinct, places = np.unique(nbytes, return_inverse=True)
    seconds: Floats = np.array([price(float(m)).seconds for m in distinct])
    found: Floats = seconds[places.reshape(nbytes.shape)]
    return found
