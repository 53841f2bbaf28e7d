"""What ranks under mpiexec check: exchanges against the serial sum, and a timed case."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from calib.foundation.errors import MeasurementError
from calib.microbench.cases import SparseCase
from calib.microbench.communicators.mpi import MpiCommunicator
from calib.microbench.sparse import EXCHANGES, Summed, check, expected, measure_sparse

SEED = 5


def main(result: str) -> None:
    """Errors after three exchanges of every case, a wrong exchange, a timed one; rank 0 writes."""
    control = MpiCommunicator()
    errors = {}
    for rows, width, share in ((7, 3, 1.0), (40, 5, 0.3), (40, 5, 0.03), (1000, 8, 0.5)):
        common = {"ranks": control.size, "rows": rows, "width": width, "share": share}
        servers = [{"method": "server", "partitions": p} for p in (1, 3, 7, 64) if p <= rows]
        for fields in (*servers, {"method": "allgatherv"}, {"method": "allreduce"}):
            case = SparseCase.model_validate(common | fields)
            exchange = EXCHANGES[case.method](case, SEED, control.comm)
            check(control, exchange)
            for _ in range(2):
                exchange.run()
            # three exchanges of the same gradients: three times the step
            kept, values = exchange.held()
            start = kept[:, None] % 97 * np.ones(width)
            once = expected(case, SEED, control.size, kept)
            error = float(np.abs(values - (start + 3 * (once - start))).max())
            errors[case.label] = max(control.allgather_object(error))
            exchange.close()
    wrong = Summed(case, SEED, control.comm)
    wrong.seed += control.rank == control.size - 1
    refused = ""
    try:
        check(control, wrong)
    except MeasurementError as error:
        refused = str(error)
    case = SparseCase(
        ranks=control.size, rows=50, width=4, share=0.2, method="server", partitions=4
    )
    timed = measure_sparse(control, case, SEED, 0.05, 0.5)
    everyone = control.allgather_object(refused)
    if control.rank == 0:
        content = {"errors": errors, "refused": everyone, "ranks": timed.ranks}
        Path(result).write_text(json.dumps(content))


if __name__ == "__main__":
    main(sys.argv[1])
