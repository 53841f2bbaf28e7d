"""Our measurement loop against the same loop in plain mpi4py, on the same two ranks in turn."""

from __future__ import annotations

import json
import subprocess
import sys
from statistics import median
from time import perf_counter

from calib.microbench.machine.launchers import launch_line

REPETITIONS = 2000
ROUNDS = 15
TARGET_US = 2.0


def measurement_loop() -> list[str]:
    """Overhead per repetition of the timed loop, and of the loop with gathering and stopping."""
    line = [*launch_line("local", 2), sys.executable, "-m", "benchmarks.measurement_loop"]
    done = subprocess.run(line, check=True, capture_output=True, text=True)
    times = json.loads(done.stdout)
    plain = median(times["plain"])
    rows = [f"plain mpi4py: {1 / plain:,.0f} samples per second ({plain * 1e6:.2f} us each)"]
    for name, text in (("block", "our timed loop"), ("whole", "with gathering and stopping")):
        ours = median(times[name])
        rows.append(
            f"{text}: {plain / ours:.3f} of plain, {(ours - plain) * 1e6:+.2f} us per repetition "
            f"(target under {TARGET_US} us)"
        )
    return rows


def rank() -> None:
    """SPMD: seconds per repetition of the three loops, ROUNDS times in turn; rank 0 prints."""
    import numpy as np
    from mpi4py import MPI

    from calib.microbench.cases import CollectiveCase
    from calib.microbench.collectives.operations import Allreduce
    from calib.microbench.collectives.timing import Start, exercise_block
    from calib.microbench.communicators.mpi import MpiCommunicator
    from calib.microbench.machine.placement import place
    from calib.microbench.timing.repeat import repeat

    communicator = MpiCommunicator()
    place(communicator)
    comm = MPI.COMM_WORLD
    buffer = np.zeros(2, dtype=np.float32)
    case = CollectiveCase(
        operation="allreduce", nbytes=8, ranks=communicator.size, group_size=communicator.size
    )
    block = exercise_block("allreduce", Allreduce(case, communicator), Start(communicator))

    def plain(n: int) -> list[float]:
        times = []
        for _ in range(n):
            buffer.fill(1.0)
            comm.Barrier()
            start = perf_counter()
            comm.Allreduce(MPI.IN_PLACE, buffer)
            times.append(perf_counter() - start)
        return times

    results: dict[str, list[float]] = {"plain": [], "block": [], "whole": []}
    for _ in range(ROUNDS):
        for name, seconds in results.items():
            communicator.barrier()
            start = perf_counter()
            count = REPETITIONS
            if name == "plain":
                plain(REPETITIONS)
            elif name == "block":
                block(REPETITIONS)
            else:
                # no interval is narrow enough: it stops at its largest number of repetitions
                result = repeat(communicator, block, 1e9, 0.0)
                count = len(result.ranks["allreduce"])
            seconds.append((perf_counter() - start) / count)
    if communicator.rank == 0:
        print(json.dumps(results))


if __name__ == "__main__":
    rank()
