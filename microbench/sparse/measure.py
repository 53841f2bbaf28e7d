"""All repetitions of one sparse exchange, after its result was compared with the serial one."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter

import numpy as np

from calib.foundation.errors import MeasurementError
from calib.microbench.communicators.mpi import MpiCommunicator
from calib.microbench.sparse.cases import SparseCase, SparseTime
from calib.microbench.sparse.exchange import SparseExchange, exchange_of, expected
from calib.microbench.timing.repeat import Timings, repeat
from calib.microbench.timing.watchdog import beat

OPERATION = "sparse"
TOLERANCE = 1e-5  # of float32 sums of few terms, beside their largest item


def measure(
    control: MpiCommunicator,
    case: SparseCase,
    budget_s: float,
    target: float,
    oversubscribed: bool = False,
) -> SparseTime:
    """Collective. Raises MeasurementError, on all ranks, where any of them has a wrong row."""
    exchange = exchange_of(case, control.comm)
    try:
        remote = exchange.remote_bytes()
        check(control, case, exchange)
        result = repeat(control, block_of(control, exchange.run), budget_s, target)
    finally:
        exchange.close()
    width = result.half_width
    return SparseTime(
        case=case,
        ranks=control.size,
        seconds=[max(row) for row in result.ranks[OPERATION]],
        warmup=result.warmup,
        stopped_by=result.stopped_by,
        half_width=width if math.isfinite(width) else None,
        remote_bytes=remote,
        oversubscribed=oversubscribed,
    )


def check(control: MpiCommunicator, case: SparseCase, exchange: SparseExchange) -> None:
    """One exchange; all rows that a rank keeps or got are compared with the serial sum."""
    exchange.run()
    rows, values = exchange.held()
    wanted = expected(case, control.size, rows)
    error = float(np.abs(values - wanted).max() / max(1.0, float(np.abs(wanted).max())))
    worst = max(control.allgather_object(error))
    if not worst <= TOLERANCE:
        raise MeasurementError(
            f"{case.label}: rows differ from the serial sum by {worst:.3g}; this exchange cannot be "
            "trusted, so it has no time"
        )


def block_of(control: MpiCommunicator, run: Callable[[], None]) -> Callable[[int], Timings]:
    """Repetitions that begin together at a barrier; each rank times its own."""

    def block(n: int) -> Timings:
        times: list[float | None] = []
        starts: list[float | None] = []
        for _ in range(n):
            control.barrier()
            begin = perf_counter()
            run()
            times.append(perf_counter() - begin)
            starts.append(begin)
            beat()
        return Timings({OPERATION: times}, starts)

    return block
