"""What the ranks of tests/microbench/test_mpi.py run: python mpi_program.py CHECK -> JSON of all ranks.

Every check returns a JSON value on each rank; rank 0 prints the list of them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from foundation.errors import MeasurementError
from microbench.cases import CollectiveCase
from microbench.collectives import measure_collective
from microbench.communicators.mpi import MpiCommunicator
from microbench.placement import launched, place
from microbench.repeat import Repetitions
from microbench.timer import measure_timer


def communicator(comm: MpiCommunicator) -> dict[str, Any]:
    """Every method of the communicator once, with values that tell ranks and items apart."""
    sums = {}
    for dtype in ("float32", "float64", "int64"):
        buffer = (10.0 ** np.arange(3) * (comm.rank + 1)).astype(dtype)
        comm.allreduce(buffer)
        sums[dtype] = buffer.tolist()
    large = np.full(100_000, comm.rank + 1, np.float32)
    comm.allreduce(large)
    ring = np.full(3, comm.rank, np.float64)
    received = np.full(3, -1.0)
    to, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.rank == 0:
        comm.send(ring, to)
        comm.receive(received, source)
    else:
        comm.receive(received, source)
        comm.send(ring, to)
    comm.barrier()
    # of another length on every rank, and none at all on the last
    value = None if comm.rank == comm.size - 1 else {"größer": "x" * comm.rank * 1000}
    return {
        "library": comm.library, "rank": comm.rank, "size": comm.size, "launched": launched(),
        "sums": sums, "large": [float(large.min()), float(large.max())],
        "received": received.tolist(), "gathered": comm.gather_objects(value),
        "shared": comm.share([comm.rank, "ü", None, 0.1]), "nothing": comm.share(None),
    }  # fmt: skip


def _measure(comm: MpiCommunicator, operation: str, nbytes: int) -> Repetitions:
    case = CollectiveCase.model_validate(
        {"ranks": comm.size, "operation": operation, "nbytes": nbytes}
    )
    return measure_collective(comm, case, measure_timer(200), budget_s=0.0, target=0.5)


def collectives(comm: MpiCommunicator) -> dict[str, Any]:
    """Rows of a small and a large message of both operations."""
    found = {}
    for operation in ("allreduce", "p2p"):
        for nbytes in (8, 1 << 20):
            result = _measure(comm, operation, nbytes)
            found[f"{operation} {nbytes}"] = {
                "rows": result.ranks[operation], "seconds": result.seconds(operation),
                "warmup": result.warmup, "calls": result.calls, "stopped_by": result.stopped_by,
            }  # fmt: skip
    return found


class _Wrong(MpiCommunicator):
    """Adds one on rank 1."""

    def allreduce(self, buffer: np.ndarray) -> None:
        super().allreduce(buffer)
        if self.rank == 1:
            buffer += 1


def wrong(_: MpiCommunicator) -> str:
    """The error of an allreduce that is wrong; a time if there was none."""
    try:
        return f"timed: {_measure(_Wrong(), 'allreduce', 64).ranks}"
    except MeasurementError as error:
        return f"MeasurementError: {error}"


def placement(comm: MpiCommunicator) -> dict[str, Any]:
    """Where the ranks are."""
    found = place(comm)
    return {
        "cores": found.cores, "oversubscribed": found.oversubscribed, "level": found.level,
        "ranks_per_node": found.ranks_per_node,
    }  # fmt: skip


def abort(comm: MpiCommunicator) -> None:
    """Rank 1 ends all; rank 0 would wait for ever."""
    if comm.rank == 1:
        comm.abort(7)
    comm.barrier()


if __name__ == "__main__":
    world = MpiCommunicator()
    everyone = world.gather_objects(globals()[sys.argv[1]](world))
    if world.rank == 0:
        print("result " + json.dumps(everyone), flush=True)
