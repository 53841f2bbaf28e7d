"""All repetitions of one sparse exchange, after its result was compared with the serial one."""

from __future__ import annotations

import numpy as np

from calib.foundation.errors import MeasurementError
from calib.microbench.cases import SparseCase
from calib.microbench.communicator import Control
from calib.microbench.communicators.mpi import mpi_control
from calib.microbench.sparse.exchange import EXCHANGES, SparseExchange, expected
from calib.microbench.timing.clock import Clock
from calib.microbench.timing.repeat import Repetitions, repeat
from calib.microbench.timing.stretches import CallStretch, host_block

TOLERANCE = 1e-5  # of float32 sums of few terms, beside their largest item


def measure_sparse(
    control: Control,
    case: SparseCase,
    seed: int,
    budget_s: float,
    target: float,
    clock: Clock | None = None,
) -> Repetitions:
    """Repetitions of the exchange, in seconds; collective. `seed` draws rows and gradients.

    Raises MeasurementError, on all ranks, where any of them has a wrong row, InputError where ranks
    were not started by MPI.
    """
    exchange = EXCHANGES[case.method](case, seed, mpi_control(case.label, control).comm)
    try:
        check(control, exchange)
        block = host_block(control, case.label, [CallStretch({case.method: exchange.run})])
        return repeat(control, block, budget_s, target, clock=clock)
    finally:
        exchange.close()


def check(control: Control, exchange: SparseExchange) -> None:
    """One exchange; all rows that a rank keeps or got are compared with the serial sum."""
    exchange.run()
    rows, values = exchange.held()
    wanted = expected(exchange.case, exchange.seed, control.size, rows)
    error = float(np.abs(values - wanted).max() / max(1.0, float(np.abs(wanted).max())))
    worst = max(control.allgather_object(error))
    if not worst <= TOLERANCE:
        raise MeasurementError(
            f"{exchange.case.label}: rows differ from the serial sum by {worst:.3g}; this exchange "
            "cannot be trusted, so it has no time"
        )
