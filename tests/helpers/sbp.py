"""All communication of a chain of products, as the search counts it."""

from __future__ import annotations

from collections.abc import Sequence

from calib.search.sbp.states import Communication, ProductLayer, State, before, inside

# items that one device sends, as a share of m (formulas.md, "Collectives"), by p
SENT = {"reduce_scatter": 1.0, "allgather": 1.0, "all_to_all": 1.0, "allreduce": 2.0}


def sent_bytes(of: Communication) -> float:
    """What one device sends."""
    p = of.group.size
    return SENT[of.operation] * of.nbytes * (p - 1) / p


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
