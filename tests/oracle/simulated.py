"""Rings simulated message by message, small networks of known sizes, and a machine of tables.

References for closed forms: nothing here is computed by oracle/.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from tests.oracle.handmade import allreduce_fit, estimate, layer_time, machine, tensor_loop

from calib.fitting.parameters.file import Parameters
from calib.foundation.layers import Direction, LayerShape
from calib.foundation.records import Estimate
from calib.oracle.cost import Cost
from calib.oracle.costs.contention import Phi
from calib.oracle.costs.link import Link
from calib.oracle.model.layer import Layer
from calib.oracle.model.spec import ModelSpec
from calib.oracle.paper.form import PaperCosts

INTERCEPT_S = 4e-6
Wire = Callable[[float, float], float]  # (when a message leaves, its bytes) -> when it is there


def wire(alpha_s: float, beta_s_per_byte: float) -> Wire:
    """Hockney: alpha + m beta after it left."""
    return lambda start, nbytes: start + alpha_s + nbytes * beta_s_per_byte


def shared_wire(alpha_s: float, beta_s_per_byte: float, flows: int, links: int) -> Wire:
    """The same while `flows` equal messages that leave at once take turns on `links` links.

    Every link serves its messages by rounds, a slice of each; the message asked for comes last.
    """

    def arrival(start: float, nbytes: float) -> float:
        slices, busy = 16, [0.0] * links
        left = [nbytes] * flows
        for _ in range(slices):
            for flow in range(flows):
                busy[flow % links] += nbytes / slices * beta_s_per_byte
                left[flow] -= nbytes / slices
        assert max(map(abs, left)) <= 1e-9 * max(nbytes, 1.0)
        return start + alpha_s + max(busy)

    return arrival


def ring_allgather(p: int, nbytes: float, link: Wire, clocks: Sequence[float] = ()) -> list[float]:
    """When each of p ranks has all `nbytes`, having begun with 1/p; `clocks` are when they begin."""
    clock = list(clocks) or [0.0] * p
    has = [{rank} for rank in range(p)]
    for step in range(p - 1):
        clock = _shift(clock, nbytes / p, link)
        sent = [(rank - step) % p for rank in range(p)]
        assert all(sent[rank] in has[rank] for rank in range(p))
        for rank in range(p):
            has[rank].add(sent[rank - 1])
    assert all(len(parts) == p for parts in has)
    return clock


def ring_allreduce(p: int, nbytes: float, link: Wire, clocks: Sequence[float] = ()) -> list[float]:
    """When each of p ranks has the whole sum of `nbytes`: reduce-scatter, then allgather."""
    clock = list(clocks) or [0.0] * p
    summed = [[{rank} for _ in range(p)] for rank in range(p)]  # whose terms are in each part
    for step in range(p - 1):
        clock = _shift(clock, nbytes / p, link)
        sent = [(rank - step) % p for rank in range(p)]
        arrived = [summed[rank - 1][sent[rank - 1]] for rank in range(p)]
        for rank in range(p):
            summed[rank][sent[rank - 1]] = summed[rank][sent[rank - 1]] | arrived[rank]
    whole = [rank for rank in range(p) for part in summed[rank] if len(part) == p]
    assert p == 1 or whole == list(range(p))  # one part each: scattered
    return ring_allgather(p, nbytes, link, clock)


def _shift(clock: Sequence[float], nbytes: float, link: Wire) -> list[float]:
    """One step: everyone sends to the right, and goes on when it has sent and received."""
    there = [link(start, nbytes) for start in clock]
    return [max(there[rank], there[rank - 1]) for rank in range(len(clock))]


@dataclass(frozen=True)
class Weighted:
    """Items of a weighted layer, of one sample: |x|, |y|; |w| and |bi|; F and C."""

    name: str
    x: int
    y: int
    weights: int
    biases: int
    filters: int
    channels: int


@dataclass(frozen=True)
class Network:
    """A model with the sizes that it was made from."""

    model: ModelSpec
    weighted: tuple[Weighted, ...]

    @property
    def parameters(self) -> int:
        """sum(|w| + |bi|)."""
        return sum(layer.weights + layer.biases for layer in self.weighted)


class _Build:
    def __init__(self) -> None:
        self.layers: list[Layer] = []

    def add(self, name: str, shape: LayerShape) -> None:
        source = self.layers[-1].name if self.layers else "input"
        behind_weights = any(layer.shape.parameter_shapes for layer in self.layers)
        layer = Layer(name=name, shape=shape, inputs=(source,), needs_input_grad=behind_weights)
        self.layers.append(layer)


def network(filters: Sequence[int], size: int, widths: Sequence[int], channels: int = 3) -> Network:
    """3x3 convolutions that keep `size` x `size`, each with a ReLU; then fully connected layers."""
    build, weighted, pixels = _Build(), [], size * size
    for number, wide in enumerate(filters, 1):
        images = (channels, size, size), (wide, size, size)
        attributes = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "groups": 1}
        build.add(
            f"conv{number}",
            LayerShape(
                kind="conv",
                input_shapes=(images[0],),
                output_shape=images[1],
                attributes=attributes,
                parameter_shapes=((wide, channels, 3, 3), (wide,)),
            ),
        )
        weighted.append(
            Weighted(
                f"conv{number}",
                channels * pixels,
                wide * pixels,
                wide * channels * 9,
                wide,
                wide,
                channels,
            )
        )
        relu = LayerShape(kind="relu", input_shapes=(images[1],), output_shape=images[1])
        build.add(f"relu{number}", relu)
        channels = wide
    items = channels * pixels
    flat = LayerShape(kind="flatten", input_shapes=((channels, size, size),), output_shape=(items,))
    build.add("flatten", flat)
    for number, wide in enumerate(widths, 1):
        build.add(
            f"fc{number}",
            LayerShape(
                kind="linear",
                input_shapes=((items,),),
                output_shape=(wide,),
                parameter_shapes=((wide, items), (wide,)),
            ),
        )
        weighted.append(Weighted(f"fc{number}", items, wide, wide * items, wide, wide, items))
        items = wide
    build.add("loss", LayerShape(kind="cross_entropy", input_shapes=((items,),), output_shape=()))
    model = ModelSpec(
        name="net",
        input_shape=build.layers[0].shape.input_shapes[0],
        classes=items,
        layers=tuple(build.layers),
    )
    return Network(model, tuple(weighted))


def cuttable() -> Network:
    """A network that spatial can cut."""
    return network([8, 12], 8, [10, 6], channels=4)


def networks() -> st.SearchStrategy[Network]:
    """Small random networks of one to four convolutions and one to three fully connected layers."""
    wide = st.integers(2, 12)
    return st.builds(
        network,
        st.lists(wide, min_size=1, max_size=4),
        st.integers(1, 5),
        st.lists(wide, min_size=1, max_size=3),
    )


def exact(value: float) -> Estimate:
    """A value without an interval."""
    return Estimate.exactly(value)


@dataclass
class Tables(PaperCosts):
    """PaperCosts from tables: FW, BW, WU of every layer by name, (alpha, beta) by level, operation.

    Ranks up to `node` are of one node, which has `links`.
    """

    model: ModelSpec
    forward: dict[str, float]
    backward: dict[str, float]
    updates: dict[str, float]
    wires: dict[tuple[str, str], tuple[float, float]]
    node: int = 4
    links: int = 1

    def each(self, direction: Direction) -> list[Cost]:
        """Seconds per sample of every layer."""
        of = self.forward if direction == "forward" else self.backward
        return [Cost(of.get(layer.name, 0.0), "measured") for layer in self.model.layers]

    def update(self) -> list[Cost]:
        """Seconds of the update of every layer."""
        return [Cost(self.updates.get(layer.name, 0.0), "measured") for layer in self.model.layers]

    def level(self, span: int) -> str:
        """Whether a node has so many ranks."""
        return "node" if span <= self.node else "rack"

    def link(self, span: int, operation: str, groups: int = 1) -> Link:
        """alpha and beta of that level."""
        alpha, beta = self.wires[self.level(span), operation]
        return Link(self.level(span), exact(alpha), exact(beta))

    def contention(self, flows: float, span: int) -> Phi:
        """Flows that leave a node over its links."""
        return Phi.exactly(1.0 if span <= self.node else max(1.0, flows / self.links))


def tables(net: Network, node: int = 4, links: int = 1) -> Tables:
    """A machine for a network: every number is different, so that none can stand for another."""
    names = [layer.name for layer in net.model.layers if not layer.shape.is_free]
    weighted = [layer.name for layer in net.weighted]
    operations = ("allreduce", "allgather", "p2p", "halo", "reduce_scatter", "all_to_all")
    wires = {
        (level, operation): (alpha * (1 + 0.1 * k), beta * (1 + 0.3 * k))
        for level, alpha, beta in (("node", 3e-6, 2e-10), ("rack", 1.7e-5, 9e-10))
        for k, operation in enumerate(operations)
    }
    return Tables(
        net.model,
        {name: 1e-5 * (1 + k * k) for k, name in enumerate(names)},
        {name: 2.1e-5 * (1 + k * k * k) for k, name in enumerate(names)},
        {name: 3e-5 * (1 + k**1.5) for k, name in enumerate(weighted)},
        wires,
        node,
        links,
    )


def measured_parts(
    layers: Sequence[tuple[Layer, float, float]],
    lists: dict[str, dict[str, float]],
    sent: Sequence[tuple[str, str, int, float]],
    batch: int,
    **changes: Any,
) -> Parameters:
    """Nodes of 2 ranks that were measured at just these parts, all with 2 ranks at work.

    layers: (part, forward, backward) at `batch` samples; lists: seconds by operation and key; sent:
    (operation, level, bytes, seconds) on 2 ranks. Estimates are +- 10%, and a line of the start-up
    INTERCEPT_S is behind every operation.
    """
    times = [layer_time(layer, batch, 2, *seconds) for layer, *seconds in layers]
    loops = [
        tensor_loop(name, 2, {key: estimate(t) for key, t in of.items()})
        for name, of in lists.items()
    ]
    fits: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for operation, level, nbytes, seconds in sent:
        fits.setdefault((operation, level), []).append((nbytes, seconds))
    collectives = [
        allreduce_fit(2, level, points=sorted([*points, (1 << 20, 1.0)])).model_copy(
            update={"operation": operation, "intercept_s": estimate(INTERCEPT_S)}
        )
        for (operation, level), points in fits.items()
    ]
    content = {"layers": times, "tensor_loops": loops, "collectives": collectives, "work": []}
    return machine(**(content | changes))
