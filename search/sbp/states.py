"""States of a layer Y = X W over a mesh, and the collectives of a strategy (formulas.md, "AutoDDL").

X (S0:p1, B:p2, S1:p3), W (B:p1, S1:p2, S0:p3), Y (S0:p1, S1:p2, P:p3): p2 = p3 = 1 is data parallelism.
Every degree is (nodes, devices per node); it is inside a node iff nodes = 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from calib.foundation.errors import InputError
from calib.search.links import Collective, LinkGroup
from calib.search.request import Devices

ProductPhase = Literal["forward", "backward", "gradient"]
ONE = LinkGroup(1, 1)


class State(NamedTuple):
    """Degrees of one layer: p1 rows of X, p2 columns of W, p3 rows of W (the sum's terms)."""

    split: LinkGroup
    broadcast: LinkGroup
    partial: LinkGroup

    @property
    def degrees(self) -> tuple[int, int, int]:
        """(p1, p2, p3)."""
        return self.split.size, self.broadcast.size, self.partial.size

    @property
    def columns(self) -> int:
        """p2 p3: parts of the columns between layers."""
        return self.broadcast.size * self.partial.size

    def __str__(self) -> str:
        """Rows S0, columns B (of X) and terms P (of Y); nodes x devices where nodes are crossed."""
        words = [
            f"{name}:{group.size}"
            + (f" ({group.nodes}x{group.per_node})" if group.nodes > 1 else "")
            for name, group in zip(("S0", "B", "P"), self, strict=True)
            if group.size > 1
        ]
        return " ".join(words) or "one device"


class ProductLayer(NamedTuple):
    """A layer as a product, for B samples: M = B rows, X [M, K], W [K, N], Y [M, N].

    `inputs` and `outputs` are items of X and Y of one sample, `weights` of W. Columns are cut by
    `channels` of X and `filters` of Y, and `heads` (0: none) with them. `reads_data`: X comes from
    outside (indices, images), and moves nothing.
    """

    name: str
    kind: str
    inputs: int
    outputs: int
    weights: int
    channels: int
    filters: int
    heads: int = 0
    reads_data: bool = False


class Communication(NamedTuple):
    """One collective of an iteration: m = `nbytes` (formulas.md) in every group."""

    operation: Collective
    nbytes: float
    group: LinkGroup
    phase: ProductPhase
    layer: str
    what: str


def states_of(devices: Devices, mesh: tuple[int, ...] = ()) -> list[State]:
    """All states on these devices: three factors of the nodes and three of the devices of a node.

    `mesh`: only degrees that are products of these sizes, each used once. Raises InputError for a mesh
    that is not of all devices.
    """
    if mesh and math.prod(mesh) != devices.p:
        words = " x ".join(map(str, mesh))
        raise InputError(
            f"a mesh of {words} = {math.prod(mesh)} does not divide {devices.p} devices into parts"
        )
    found = [
        State(LinkGroup(n1, d1), LinkGroup(n2, d2), LinkGroup(n3, d3))
        for n1, n2, n3 in _three(devices.nodes)
        for d1, d2, d3 in _three(devices.per_node)
    ]
    if not mesh:
        return found
    wanted = set(_shared_out(mesh))
    return [state for state in found if state.degrees in wanted]


def _three(n: int) -> Iterator[tuple[int, int, int]]:
    for a in range(1, n + 1):
        if n % a == 0:
            for b in range(1, n // a + 1):
                if (n // a) % b == 0:
                    yield a, b, n // a // b


def _shared_out(mesh: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Degrees that give every dimension of the mesh to one of p1, p2, p3."""
    if not mesh:
        yield 1, 1, 1
        return
    for p1, p2, p3 in _shared_out(mesh[1:]):
        yield p1 * mesh[0], p2, p3
        yield p1, p2 * mesh[0], p3
        yield p1, p2, p3 * mesh[0]


def possible(layer: ProductLayer, state: State, batch: int, last: bool = False) -> bool:
    """Whether all parts are equal: samples over p1, columns of X and Y over p2 p3, heads too.

    Behind the `last` layer columns are not cut again: they need to be equal over p2 alone.
    """
    p1, p2, _ = state.degrees
    columns = state.columns
    return not (
        batch % p1
        or (not layer.reads_data and layer.channels % columns)
        or layer.filters % (p2 if last else columns)
        or (layer.heads and layer.heads % columns)
        or (layer.reads_data and layer.channels % state.partial.size)
    )


def inside(layer: ProductLayer, state: State, batch: int, delta: int) -> list[Communication]:
    """The layer's own collectives: the sum of its terms, and of its gradients over p1.

    Y's terms are reduce-scattered over p3 (M N delta / (p1 p2)), dY gathered there in the backward; dW
    is summed over p1 (K N delta / (p2 p3)).
    """
    p1, p2, p3 = state.degrees
    terms = batch * layer.outputs * delta / (p1 * p2)
    gradients = layer.weights * delta / (p2 * p3)
    found = [
        Communication("reduce_scatter", terms, state.partial, "forward", layer.name, "Y"),
        Communication("allgather", terms, state.partial, "backward", layer.name, "dY"),
        Communication("allreduce", gradients, state.split, "gradient", layer.name, "dW"),
    ]
    return [one for one in found if one.group.size > 1 and one.nbytes]


def before(
    layer: ProductLayer, state: State, earlier: State, batch: int, delta: int
) -> list[Communication]:
    """What brings X from (S0:p1, S1:p2 p3) of the layer before to this layer's state, and dX back.

    An all-to-all of the local block, in groups as small as can be, where rows are cut in other ways; an
    allgather over p2 (M K delta / (p1 p3)), whose mirror is a reduce-scatter. Nothing moves that is read
    from outside.
    """
    if layer.reads_data:
        return []
    p1, p2, p3 = state.degrees
    block = batch * layer.inputs * delta / (p1 * p2 * p3)
    whole = batch * layer.inputs * delta / (p1 * p3)
    group = LinkGroup(
        _members(earlier.split.nodes, state.split.nodes, [of.nodes for of in state]),
        _members(earlier.split.per_node, state.split.per_node, [of.per_node for of in state]),
    )
    found = [
        Communication("all_to_all", block, group, "forward", layer.name, "X"),
        Communication("all_to_all", block, group, "backward", layer.name, "dX"),
        Communication("allgather", whole, state.broadcast, "forward", layer.name, "X"),
        Communication("reduce_scatter", whole, state.broadcast, "backward", layer.name, "dX"),
    ]
    return [one for one in found if one.group.size > 1]


def _members(one: int, other: int, sizes: list[int]) -> int:
    """Members of an all-to-all along one level: all `sizes`, where neither p1 divides the other."""
    large, small = max(one, other), min(one, other)
    return math.prod(sizes) if large % small else large // small
