"""All communication of a chain of products, as the search counts it."""

from __future__ import annotations

from collections.abc import Sequence

from calib.search.sbp.states import Communication, ProductLayer, State, before, inside


def collectives_of(
    layers: Sequence[ProductLayer], strategy: Sequence[State], batch: int, delta: int = 4
) -> list[Communication]:
    """All of an iteration: forward in the layers' order, backward against it, gradients last."""
    found: list[Communication] = []
    for k, (layer, state) in enumerate(zip(layers, strategy, strict=True)):
        if k:
            found += before(layer, state, strategy[k - 1], batch, delta)
        found += inside(layer, state, batch, delta)
    forward = [c for c in found if c.phase == "forward"]
    backward = [c for c in found if c.phase == "backward"]
    return [*forward, *reversed(backward), *(c for c in found if c.phase == "gradient")]
