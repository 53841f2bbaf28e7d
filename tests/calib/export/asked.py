"""What exporters are asked for, made by hand."""

from __future__ import annotations

from typing import Any

from tests.helpers.filled import collective

from calib.export.target import ExportRequest, Source
from calib.fitting.parameters.collectives import CollectiveFit, HockneyPiece
from calib.fitting.parameters.file import Parameters
from calib.foundation.records import Estimate

SIZES = (2**6, 2**24)


def exactly(value: float) -> Estimate:
    return Estimate.exactly(value)


def law(operation: str, p: int, a: float, b: float, level: str = "node") -> CollectiveFit:
    """t = a + b m from 64 B to 16 MiB."""
    piece = HockneyPiece(
        from_nbytes=SIZES[0],
        to_nbytes=SIZES[1],
        intercept_s=Estimate.exactly(a),
        slope_s_per_byte=exactly(b),
    )
    points = [
        collective().points[0].model_copy(update={"nbytes": m, "seconds": exactly(a + b * m)})
        for m in SIZES
    ]
    return collective(p, operation=operation, level=level, nodes=0, pieces=[piece], points=points)


def asking(parameters: Parameters, **changes: Any) -> ExportRequest:
    return ExportRequest(parameters, Source("p.json", "sha256:00"), **changes)


def line(operation: str, p: int, alpha: float, beta: float) -> tuple[float, float]:
    """(a, b) of formulas.md's ring."""
    times = 2 if operation == "allreduce" else 1
    return times * (p - 1) * alpha, times * (p - 1) / p * beta
