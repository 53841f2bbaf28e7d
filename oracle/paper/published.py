"""The `paper` form on numbers that others published: one time per model, an alpha and a beta per use.

A publication states what a model takes on one GPU, not what its layers take. The time is shared out
over the convolutions and fully connected layers by their operations, a third of them forward, as the
backward computes two gradients (of the first layer one). Other layers then take nothing, so that what
the strategies do not split is missing from their compute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from calib.foundation.layers import Direction
from calib.oracle.cost import NOTHING, Cost
from calib.oracle.costs.contention import Phi
from calib.oracle.costs.link import Link
from calib.oracle.layout.shards import WEIGHTED
from calib.oracle.layout.workload import Select, Workload
from calib.oracle.model.spec import ModelSpec
from calib.oracle.paper.form import sum_of

NOTE = "the published time of one GPU is shared out over weighted layers by their operations"


class PublishedCosts:
    """PaperCosts of one model: `seconds` per sample on one GPU, and the links that were used.

    `links` gives the Link of (span, operation). phi is flows over `links_per_node`; 0: the published
    beta holds it already.
    """

    def __init__(
        self,
        model: ModelSpec,
        seconds: float,
        links: Callable[[int, str], Link],
        links_per_node: int = 0,
    ) -> None:
        self._links, self._links_per_node = links, links_per_node
        weights = {
            d: [_operations(model, i, d) for i in range(len(model.layers))]
            for d in ("forward", "backward")
        }
        whole = sum(map(sum, weights.values()))
        self._each: dict[str, list[Cost]] = {
            direction: [Cost(seconds * w / whole, "extrapolated", (), (NOTE,)) for w in row]
            for direction, row in weights.items()
        }

    def each(self, direction: Direction) -> Sequence[Cost]:
        """Seconds per sample of every layer."""
        return self._each[direction]

    def total(self, work: Workload, select: Select, direction: Direction) -> Cost:
        """Their sum over the layers that are split, whole, or all."""
        return sum_of(self._each[direction], work, select)

    def update(self) -> Sequence[Cost]:
        """Nothing: the update is in the published time."""
        return [NOTHING] * len(self._each["forward"])

    def update_total(self) -> Cost:
        """Nothing."""
        return NOTHING

    def link(self, span: int, operation: str, groups: int = 1) -> Link:
        """The alpha and beta that were used."""
        return self._links(span, operation)

    def contention(self, flows: float, span: int) -> Phi:
        """flows / links of a node, or 1 where the published beta holds it."""
        return Phi.exactly(max(1.0, flows / (self._links_per_node or flows)))


def _operations(model: ModelSpec, index: int, direction: Direction) -> float:
    """Operations of one layer that count: multiply-adds of weighted layers."""
    layer = model.layers[index]
    if layer.shape.kind not in WEIGHTED:
        return 0.0
    passes = 1 if direction == "forward" else 1 + layer.needs_input_grad
    return passes * layer.shape.forward_flops(1)
