"""The `paper` form on published numbers: one time per model, and alpha and beta per use.

Publications state the time of a model on one GPU, not of its layers. It is shared out over the
convolutions and fully connected layers by their FLOPs; a third of them are forward, as the backward
computes two gradients (one for the first layer). Other layers take nothing, so the compute that the
strategies do not split is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from calib.foundation.layers import Direction
from calib.oracle.cost import NOTHING, Cost
from calib.oracle.costs.contention import Phi
from calib.oracle.costs.link import Link
from calib.oracle.layout.shards import WEIGHTED
from calib.oracle.model.spec import ModelSpec
from calib.oracle.paper.form import PaperCosts

NOTE = "the published time of one GPU is shared out over weighted layers by their operations"


class PublishedCosts(PaperCosts):
    """PaperCosts of one model: `seconds` per sample on one GPU, and the links that were used.

    `links` returns the Link of (span, operation), whose beta already includes phi.
    """

    def __init__(self, model: ModelSpec, seconds: float, links: Callable[[int, str], Link]) -> None:
        self._links = links
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

    def update(self) -> Sequence[Cost]:
        """Nothing, as the published time includes the update."""
        return [NOTHING] * len(self._each["forward"])

    def link(self, span: int, operation: str, groups: int = 1) -> Link:
        """The alpha and beta of the publication."""
        return self._links(span, operation)

    def contention(self, flows: float, span: int) -> Phi:
        """1: the published beta includes it."""
        return Phi.exactly(1.0)


def _operations(model: ModelSpec, index: int, direction: Direction) -> float:
    """The FLOPs of one layer that count: those of weighted layers."""
    layer = model.layers[index]
    if layer.shape.kind not in WEIGHTED:
        return 0.0
    passes = 1 if direction == "forward" else 1 + layer.needs_input_grad
    return passes * layer.shape.forward_flops(1)
