"""Ranks as threads of one process: SPMD code under test without an MPI.

Values travel as JSON, as MpiCommunicator sends them. A rank that is left alone fails after
TIMEOUT_S instead of hanging the tests.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from calib.microbench.device import CPU

TIMEOUT_S = 60.0


@dataclass
class _Group:
    """What the ranks share."""

    size: int
    barrier: threading.Barrier = field(init=False)
    slots: list[Any] = field(init=False)
    pipes: dict[tuple[int, int], queue.Queue[np.ndarray]] = field(init=False)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.size, timeout=TIMEOUT_S)
        self.slots = [None] * self.size
        pairs = [(a, b) for a in range(self.size) for b in range(self.size)]
        self.pipes = {pair: queue.Queue() for pair in pairs}


class ThreadCommunicator:
    """One rank of a group of threads: Control and Communicator in one, as MPI is."""

    library = "threads"
    device = CPU
    queues = False

    def __init__(self, group: _Group, rank: int) -> None:
        self._group, self.rank, self.size = group, rank, group.size

    def barrier(self) -> None:
        self._group.barrier.wait()

    quiet_barrier = barrier

    def _exchange(self, value: Any) -> list[Any]:
        self._group.slots[self.rank] = value
        self.barrier()
        everyone = list(self._group.slots)
        self.barrier()  # nobody writes again before all have read
        return everyone

    def buffer(self, items: int) -> np.ndarray:
        return np.empty(items, np.float32)

    def fill(self, buffer: np.ndarray, value: float) -> None:
        buffer.fill(value)

    def write(self, buffer: np.ndarray, values: np.ndarray) -> None:
        buffer[:] = values

    def read(self, buffer: np.ndarray) -> np.ndarray:
        return buffer.copy()

    def meet(self) -> None:
        pass

    def close(self) -> None:
        pass

    def allreduce(self, buffer: np.ndarray) -> None:
        buffer[:] = np.sum(self._exchange(buffer.copy()), axis=0)

    def allgather(self, mine: np.ndarray, gathered: np.ndarray) -> None:
        gathered[:] = np.concatenate(self._exchange(mine.copy()))

    def allgatherv(self, mine: np.ndarray, gathered: np.ndarray, counts: Sequence[int]) -> None:
        assert len(mine) == counts[self.rank]
        self.allgather(mine, gathered)

    def reduce_scatter(self, whole: np.ndarray, mine: np.ndarray) -> None:
        total = np.sum(self._exchange(whole.copy()), axis=0)
        mine[:] = total.reshape(self.size, -1)[self.rank]

    def all_to_all(self, outgoing: np.ndarray, incoming: np.ndarray) -> None:
        blocks = [each.reshape(self.size, -1) for each in self._exchange(outgoing.copy())]
        incoming[:] = np.concatenate([block[self.rank] for block in blocks])

    def broadcast(self, buffer: np.ndarray, root: int) -> None:
        buffer[:] = self._exchange(buffer.copy())[root]

    def reduce(self, buffer: np.ndarray, root: int) -> None:
        total = np.sum(self._exchange(buffer.copy()), axis=0)
        buffer[:] = total if self.rank == root else -1.0

    def send(self, buffer: np.ndarray, to: int) -> None:
        self._group.pipes[self.rank, to].put(buffer.copy())

    def receive(self, buffer: np.ndarray, source: int) -> None:
        buffer[:] = self._group.pipes[source, self.rank].get(timeout=TIMEOUT_S)

    def exchange(
        self, outgoing: Sequence[tuple[np.ndarray, int]], incoming: Sequence[tuple[np.ndarray, int]]
    ) -> None:
        for buffer, to in outgoing:
            self.send(buffer, to)
        for buffer, source in incoming:
            self.receive(buffer, source)

    def group(self, ranks: Sequence[int] | None) -> ThreadCommunicator | None:
        made = self._exchange(None if ranks is None else _Group(len(ranks)))
        if ranks is None:
            return None
        return type(self)(made[ranks[0]], list(ranks).index(self.rank))

    part = group

    def allgather_object(self, value: Any) -> list[Any]:
        return [json.loads(text) for text in self._exchange(json.dumps(value))]

    def broadcast_object(self, value: Any) -> Any:
        return json.loads(self._exchange(json.dumps(value) if self.rank == 0 else None)[0])

    def abort(self, status: int) -> None:
        raise AssertionError(f"aborted with {status}")


def run_ranks(
    size: int,
    program: Callable[[Any], Any],
    make: Callable[[_Group, int], Any] = ThreadCommunicator,
) -> list[Any]:
    """What `program(communicator)` returned, or the exception it raised, on every rank.

    A thread has a core affinity of its own, so a rank that pins itself does not pin the tests.
    """
    group = _Group(size)
    outcomes: list[Any] = [None] * size

    def rank(number: int) -> None:
        try:
            outcomes[number] = program(make(group, number))
        except BaseException as error:
            outcomes[number] = error

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def results(outcomes: list[Any]) -> list[Any]:
    """The outcomes; the first exception among them is raised."""
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes
