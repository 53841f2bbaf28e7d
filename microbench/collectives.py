"""Timing collectives: allreduce and point-to-point. A wrong result has no time."""

from __future__ import annotations

import math
from time import perf_counter

import numpy as np

from foundation.errors import MeasurementError
from microbench.cases import CollectiveCase
from microbench.communicators import Communicator
from microbench.repeat import Block, Repetitions, merge_ranks, repeat
from microbench.timer import Timer

ITEM_BYTES = 4
TRIALS = 5
LONG_CALL_S = 1e-3


def measure_collective(
    communicator: Communicator, case: CollectiveCase, timer: Timer, budget_s: float, target: float
) -> Repetitions:
    """All repetitions of one collective case, after its result was checked.

    Raises MeasurementError when a rank holds a wrong result.
    """
    buffer = np.empty(case.nbytes // ITEM_BYTES, dtype=np.float32)
    make = {"allreduce": allreduce_block, "p2p": p2p_block}[case.operation]
    check(communicator, case, buffer)
    # one call is what it costs when it is not the first
    once = make(communicator, case, buffer, 1)
    seconds = math.inf
    for n in (1, TRIALS):  # one call is enough to see that a call is long
        trial = merge_ranks(communicator.gather_objects(once(n)))
        seconds = min(seconds, *(max(row) for row in trial[case.operation]))
        if seconds > LONG_CALL_S:
            break
    calls = communicator.share(timer.calls_for(seconds))
    block = make(communicator, case, buffer, calls)
    return repeat(communicator, block, budget_s, target, calls)


def check(communicator: Communicator, case: CollectiveCase, buffer: np.ndarray) -> None:
    """Run the operation once and compare every item with the closed form."""
    rank, size = communicator.rank, communicator.size
    buffer.fill(rank + 1)
    if case.operation == "allreduce":
        communicator.allreduce(buffer)
        expected: float | None = size * (size + 1) / 2
    else:
        first, second = case.pair
        if rank == first:
            communicator.send(buffer, second)
        elif rank == second:
            communicator.receive(buffer, first)
        expected = first + 1 if rank in case.pair else None
    right = expected is None or bool(np.all(buffer == np.float32(expected)))
    wrong = [r for r, good in enumerate(communicator.gather_objects(right)) if not good]
    if wrong:
        raise MeasurementError(
            f"{case.label}: wrong result on rank {wrong[0]}; this communicator cannot be trusted, "
            "so it has no time"
        )


def allreduce_block(
    communicator: Communicator, case: CollectiveCase, buffer: np.ndarray, calls: int
) -> Block:
    """Every rank times its own call; the buffer is written before each, as packing does."""
    barrier, allreduce = communicator.barrier, communicator.allreduce
    fill, many = buffer.fill, range(calls)

    def block(n: int) -> dict[str, list[float]]:
        times: list[float] = []
        record = times.append
        if calls == 1:
            for _ in range(n):
                fill(1.0)
                barrier()
                start = perf_counter()
                allreduce(buffer)
                record(perf_counter() - start)
        else:
            for _ in range(n):
                # zeros: repeated sums of anything else overflow
                fill(0.0)
                barrier()
                start = perf_counter()
                for _ in many:
                    allreduce(buffer)
                record((perf_counter() - start) / calls)
        return {"allreduce": times}

    return block


def p2p_block(
    communicator: Communicator, case: CollectiveCase, buffer: np.ndarray, calls: int
) -> Block:
    """Half a round trip, timed by the rank that starts it: no clock of another host is needed."""
    first, second = case.pair
    rank, barrier = communicator.rank, communicator.barrier
    send, receive, many = communicator.send, communicator.receive, range(calls)

    def block(n: int) -> dict[str, list[float | None]]:
        times: list[float | None] = []
        for _ in range(n):
            buffer.fill(1.0)
            barrier()
            start = perf_counter()
            if rank == first:
                for _ in many:
                    send(buffer, second)
                    receive(buffer, second)
                times.append((perf_counter() - start) / (2 * calls))
            else:
                if rank == second:
                    for _ in many:
                        receive(buffer, first)
                        send(buffer, first)
                times.append(None)
        return {"p2p": times}

    return block
