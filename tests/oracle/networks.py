"""Collective records made by hand: every law is alpha and beta that a test chooses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.oracle.handmade import INTERPOLATION_FACTOR, LINE_FACTOR, estimate, machine

from calib.fitting.parameters.collectives import CollectiveFit, CollectivePoint
from calib.fitting.parameters.contention import ContentionFit, ContentionPoint
from calib.fitting.parameters.memory import Overlap
from calib.fitting.parameters.structural import ScaledLayout, StructuralBand, StructuralFit
from calib.oracle.costs.collectives import CollectiveCosts

SIZES = (4096, 65536, 1048576)


def line(
    operation: str,
    ranks: int = 2,
    level: str = "node",
    alpha_s: float = 1e-6,
    beta_s_per_byte: float = 1e-9,
    shape: tuple[float, float] = (1.0, 1.0),
    **more: Any,
) -> CollectiveFit:
    """Points on the line steps alpha + volume m beta; `shape` is (steps, volume)."""
    steps, volume = shape
    start, slope = steps * alpha_s, volume * beta_s_per_byte
    points = [CollectivePoint(nbytes=m, seconds=estimate(start + slope * m), n=9) for m in SIZES]
    content: dict[str, Any] = {
        "operation": operation,
        "library": "mpi",
        "level": level,
        "ranks": ranks,
        "intercept_s": estimate(start),
        "slope_s_per_byte": estimate(slope),
        "mean_relative_error": 0.1,
        "line_error_factor": LINE_FACTOR,
        "interpolation_error_factor": INTERPOLATION_FACTOR,
        "points": points,
    }
    return CollectiveFit(**(content | more))


def straight(
    ranks: int = 2,
    level: str = "node",
    alpha_s: float = 1e-6,
    beta_s_per_byte: float = 1e-9,
    **more: Any,
) -> CollectiveFit:
    """A ring allreduce measured at so many sizes that what lies between them is on its line, too."""
    steps, volume = 2.0 * (ranks - 1), 2.0 * (ranks - 1) / ranks
    sizes = sorted({round(2 ** (k / 8)) for k in range(16, 241)})
    start, slope = steps * alpha_s, volume * beta_s_per_byte
    points = [CollectivePoint(nbytes=m, seconds=estimate(start + slope * m), n=9) for m in sizes]
    return line(
        "allreduce", ranks, level, alpha_s, beta_s_per_byte, (steps, volume), points=points, **more
    )


def structural(ranks: Sequence[int] = (2, 4, 8), **more: Any) -> StructuralFit:
    """Rings, scaled from the direct laws of these p in a node (or on `nodes` x `ranks_per_node`)."""
    nodes = more.pop("nodes", [1] * len(ranks))
    each = more.pop("ranks_per_node", [p // n for p, n in zip(ranks, nodes, strict=True)])
    layouts = [
        ScaledLayout(ranks=p, nodes=n, ranks_per_node=r)
        for p, n, r in zip(ranks, nodes, each, strict=True)
    ]
    content: dict[str, Any] = {
        "operation": "allreduce",
        "library": "mpi",
        "level": "node",
        "layouts": layouts,
        "links_exponent": estimate(0.5, 1.0),
        "bands": [StructuralBand(nbytes=m, weights={"ring": 1.0}) for m in (1e3, 1e6)],
        "deviation": 0.05,
        "doubling_deviation": 0.1,
        "held_out_error": 0.05,
    }
    return StructuralFit(**(content | more))


def contention(
    phi: dict[int, float], level: str = "system", ranks: int = 2, stride: int = 1, **more: Any
) -> ContentionFit:
    """phi of so many groups at once, as steps, with 5%."""
    points = [
        ContentionPoint(groups=k, contention=estimate(value, 0.05), intercept_s=1e-6, n=9)
        for k, value in phi.items()
    ]
    content: dict[str, Any] = {
        "operation": "allreduce",
        "library": "mpi",
        "device": "cpu",
        "level": level,
        "ranks": ranks,
        "stride": stride,
        "nodes": 1,
        "baseline": "same layout",
        "law": "steps",
        "runner_up": "",
        "score_gap": 0.0,
        "intercept_s": estimate(1e-6),
        "slope_s_per_byte": estimate(1e-9),
        "min_nbytes": 1e3,
        "max_nbytes": 1e6,
        "mean_relative_error": 0.05,
        "residual_quantiles": [0.0] * 5,
        "points": points,
    }
    return ContentionFit(**(content | more))


def overlap(ranks: int, eta: float, library: str = "mpi", margin: float = 0.1) -> Overlap:
    """eta +- `margin` of it."""
    return Overlap(
        library=library,
        device="cpu",
        ranks=ranks,
        eta=estimate(eta, margin),
        error=0.05,
        held_out_error=None,
        error_factor=1.1,
        models=["hand x 4"],
        n=9,
    )


def network(*fits: CollectiveFit, **changes: Any) -> CollectiveCosts:
    """A machine with these collectives and nothing else of them."""
    return CollectiveCosts(machine(collectives=list(fits), **changes))
