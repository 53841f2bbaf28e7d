"""What exporters are asked for, made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.helpers.filled import collective, filled, loop

from calib.export.target import ExportRequest, Source
from calib.fitting.parameters.collectives import CollectiveFit, HockneyPiece
from calib.fitting.parameters.file import Parameters, TensorLoop
from calib.foundation.errors import InputError, MissingParameter
from calib.foundation.records import Estimate

SIZES = (2**6, 2**24)
# the sections that are about neither the network, layers nor copies
NO_MORE: dict[str, Any] = {
    name: [] for name in ("peaks", "work", "composition", "memory", "overlap", "partitions")
}


def exactly(value: float) -> Estimate:
    return Estimate.exactly(value)


def law(operation: str, p: int, a: float, b: float, level: str = "node") -> CollectiveFit:
    """t = a + b m from 64 B to 16 MiB, measured at each power of two."""
    piece = HockneyPiece(
        from_nbytes=SIZES[0],
        to_nbytes=SIZES[1],
        intercept_s=Estimate.exactly(a),
        slope_s_per_byte=exactly(b),
    )
    points = [
        collective().points[0].model_copy(update={"nbytes": m, "seconds": exactly(a + b * m)})
        for m in (1 << k for k in range(6, 25))
    ]
    line = {"intercept_s": exactly(a), "slope_s_per_byte": exactly(b), "pieces": [piece]}
    return collective(p, operation=operation, level=level, nodes=0, points=points, **line)


def of(*fits: CollectiveFit, **changes: Any) -> Parameters:
    """Nodes of 4 ranks, these collectives, and no other times of the network, of layers or copies."""
    none = {name: [] for name in ("structural", "contention", "layers", "tensor_loops")}
    return filled(**(none | {"collectives": list(fits), "ranks_per_node": 4} | changes))


def copying(s_per_byte: float, active_ranks: int = 4, **changes: Any) -> TensorLoop:
    """Packing at one rate, without any start-up time."""
    rate = {"call_s": 0.0, "s_per_tensor": 0.0, "s_per_byte": s_per_byte}
    return loop(**({"operation": "pack", "active_ranks": active_ranks} | rate | changes))


def refusal(export: Callable[[ExportRequest], object], parameters: Parameters, **asked: Any) -> str:
    """The one line of an export that is refused."""
    with pytest.raises((MissingParameter, InputError)) as caught:
        export(asking(parameters, **asked))
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def asking(parameters: Parameters, **changes: Any) -> ExportRequest:
    return ExportRequest(parameters, Source("p.json", "sha256:00"), **changes)


def line(operation: str, p: int, alpha: float, beta: float) -> tuple[float, float]:
    """(a, b) of formulas.md's ring."""
    times = 2 if operation == "allreduce" else 1
    return times * (p - 1) * alpha, times * (p - 1) / p * beta
