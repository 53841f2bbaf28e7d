"""Causes of the difference between our equations and the authors' projections.

A cause changes our equations to what the authors seem to have computed; `with_cause` is the
communication that comes out, to be held against theirs. They were found by solving the bars of the
figure for the sum of |y|, the number of layers and the beta that they hold, so they are readings of a
figure and not statements of the authors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from calib.foundation.layers import ITEM_BYTES, LayerShape
from calib.oracle.layout.shards import WEIGHTED
from calib.oracle.model.spec import ModelSpec
from calib.reports.replay.published_tables import PublishedPoint

# (alpha, beta) inside a node and between nodes, of the code as published and of figure 2's f and c rows
CODE = ((9e-6, 2e-11), (4.031e-5, 8e-11))
FIGURE = ((2e-5, 2e-11), (2e-5, 8e-11))
# phi 8 on the full W
DF_BETA = 6.4e-10


@dataclass(frozen=True)
class ReplayCause:
    """A cause, and seconds of communication per iteration under it; None where it has no number."""

    what: str
    with_cause: float | None = None


# communication of the same point with another alpha and beta of point-to-point messages
WithP2P = Callable[[float, float], float]


def cause_of(
    point: PublishedPoint, model: ModelSpec, batch: int, ranks_per_node: int, with_p2p: WithP2P
) -> ReplayCause | None:
    """The known cause of a point's difference; None where none is known or needed."""
    if point.strategy in ("f", "c"):
        return _shared_layers(point, model, batch, ranks_per_node)
    if point.strategy == "df":
        return _data_filter(point, model, batch, ranks_per_node)
    if point.strategy == "ds":
        return _data_spatial(point, with_p2p)
    if point.strategy == "p":
        return ReplayCause(
            "S and the batch of the one-GPU time are not published; with balanced stages and S = 11 "
            "(p = 2) or 18 (p = 4) their ratios to p = 1 come out"
        )
    return None


def _every_layer(
    outputs: Iterable[int],
    p: int,
    samples: float,
    links: tuple[tuple[float, float], ...],
    inside: bool,
) -> float:
    """sum 3 (p-1) (alpha + B |y| delta beta / p), also of the first and the last layer."""
    alpha, beta = links[0] if inside else links[1]
    return sum(3 * (p - 1) * (alpha + samples * y * ITEM_BYTES * beta / p) for y in outputs)


def _outputs(model: ModelSpec) -> list[int]:
    weighted = [layer for layer in model.layers if layer.shape.kind in WEIGHTED]
    return [layer.shape.output_items for layer in weighted]


def _outputs_v1(model: ModelSpec) -> list[int]:
    """Of a ResNet without stem and shortcuts, with the stride in the first 1x1 convolution (v1).

    Ours has it in the 3x3 one (v1.5), so that the convolution before that is larger.
    """
    weighted = [layer for layer in model.layers if layer.shape.kind in WEIGHTED]
    block = [layer for layer in weighted[1:] if "shortcut" not in layer.name]
    found = []
    for layer, following in zip(block, [*block[1:], block[-1]], strict=True):
        stride = _stride(following.shape) if layer.name.endswith("conv1") else 1
        found.append(_items(layer.shape, stride))
    return found


def _stride(shape: LayerShape) -> int:
    value = shape.attributes.get("stride", (1,))
    return value[0] if isinstance(value, tuple) else 1


def _items(shape: LayerShape, stride: int) -> int:
    """Items of the output, were it taken every `stride` rows and columns."""
    channels, *sizes = shape.output_shape
    for size in sizes:
        channels *= -(-size // stride)
    return channels


def _shared_layers(
    point: PublishedPoint, model: ModelSpec, batch: int, ranks_per_node: int
) -> ReplayCause:
    inside = point.p <= ranks_per_node
    all_at_y = "the allreduce of dL/dx is priced at |y|, of all layers"
    if not point.model.startswith("resnet"):
        what = f"{all_at_y}; alpha of the published code"
        return ReplayCause(what, _every_layer(_outputs(model), point.p, batch, CODE, inside))
    v1 = f"{all_at_y} of a ResNet v1 without stem and shortcuts"
    if point.model == "resnet152":
        what = f"{v1}; b = {batch // 2}, not {batch} as the label says"
        seconds = _every_layer(_outputs_v1(model), point.p, batch / 2, FIGURE, inside)
        return ReplayCause(what, seconds)
    return ReplayCause(
        f"{v1}; alpha of the published code",
        _every_layer(_outputs_v1(model), point.p, batch, CODE, inside),
    )


def _data_filter(
    point: PublishedPoint, model: ModelSpec, batch: int, ranks_per_node: int
) -> ReplayCause:
    if not point.model.startswith("resnet"):
        return ReplayCause("not found: the contention was edited by hand between the authors' runs")
    groups = max(1, point.p // ranks_per_node)
    inner = _every_layer(_outputs_v1(model), ranks_per_node, batch / groups, CODE, True)
    nbytes = ITEM_BYTES * model.parameter_items
    outer = 2 * (groups - 1) * (CODE[1][0] + nbytes * DF_BETA / groups)
    return ReplayCause(
        "groups exchange the full W, not W / p2, at phi 8; ResNet v1 inside", inner + outer
    )


def _data_spatial(point: PublishedPoint, with_p2p: WithP2P) -> ReplayCause | None:
    if point.model.startswith("resnet"):
        alpha, beta = CODE[0]
        what = (
            f"halos at NCCL's alpha and beta inside a node ({alpha:g} s, {beta:g} s/B), not MPI's"
        )
        return ReplayCause(what, with_p2p(alpha, beta))
    if point.model == "cosmoflow":
        return ReplayCause("not found: another end of the split, or another batch per node")
    return None
