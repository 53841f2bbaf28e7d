"""What ranks under mpiexec check: exchanges against the serial sum, and the bytes that they tell."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from calib.microbench.communicators.mpi import MpiCommunicator
from calib.microbench.sparse.cases import SparseCase
from calib.microbench.sparse.exchange import exchange_of, expected, touched
from calib.microbench.sparse.measure import check, measure


def main(result: str) -> None:
    """Errors after one and after three exchanges of every case; rank 0 writes them."""
    control = MpiCommunicator()
    found = []
    for rows, width, share in ((7, 3, 1.0), (40, 5, 0.3), (40, 5, 0.03), (1000, 8, 0.5)):
        parts = [1, 3, 7] if rows < 1000 else [1, 64]
        cases = [
            SparseCase(rows=rows, width=width, share=share, method="server", partitions=p)
            for p in parts
        ]
        cases += [
            SparseCase(rows=rows, width=width, share=share, method=method)
            for method in ("allgatherv", "allreduce")
        ]
        for case in cases:
            exchange = exchange_of(case, control.comm)
            check(control, case, exchange)
            for _ in range(2):
                exchange.run()
            # three exchanges of the same gradients: three times the step
            kept, values = exchange.held()
            start = kept[:, None] % 97 * np.ones(width)
            once = expected(case, control.size, kept)
            error = float(np.abs(values - (start + 3 * (once - start))).max())
            found.append(
                {
                    "case": case.model_dump(),
                    "error": max(control.allgather_object(error)),
                    "bytes": control.allgather_object(exchange.remote_bytes()),
                }
            )
            exchange.close()
    timed = measure(
        control, SparseCase(rows=50, width=4, share=0.2, method="server", partitions=4), 0.05, 0.5
    )
    owned = owner_rows(control)
    if control.rank == 0:
        Path(result).write_text(
            json.dumps({"found": found, "time": timed.model_dump(), "owned": owned})
        )


def owner_rows(control: MpiCommunicator) -> list[int]:
    """Of the case of 1000 rows in one part: the rows that each rank touches."""
    case = SparseCase(rows=1000, width=8, share=0.5, method="server")
    return control.allgather_object(len(touched(case, control.rank)[0]))


if __name__ == "__main__":
    main(sys.argv[1])
