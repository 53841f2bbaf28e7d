"""What each operation sends and what must arrive: one class each, flat float32 buffers.

Rank r's item i of an input is (r mod 61 + 1)(i mod 7 + 1): sums of thousands of ranks are exact in
float32, and a block of the wrong rank or a shifted one is another number.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from calib.foundation.arrays import Float32s
from calib.foundation.layers import ITEM_BYTES
from calib.microbench.cases import CollectiveCase
from calib.microbench.communicator import Communicator

RANK_VALUES, ITEM_VALUES = 61, 7

# in every output before the check; in no pattern
NOT_SENT = -1.0

NOTHING: Float32s = np.empty(0, np.float32)


def rank_value(rank: int) -> int:
    """The factor of a rank's inputs."""
    return rank % RANK_VALUES + 1


def pattern(rank: int, items: int, start: int = 0) -> Float32s:
    """Items `start` to `start + items` of a rank's input."""
    return _ramp(rank_value(rank), items, start)


def summed(size: int, items: int, start: int = 0) -> Float32s:
    """The sum of `pattern` over all ranks of a group."""
    return _ramp(sum(map(rank_value, range(size))), items, start)


def _ramp(factor: int, items: int, start: int) -> Float32s:
    """factor x (1 ... 7, 1 ... 7, ...), from place `start` on, without any larger array."""
    once = factor * (np.arange(start, start + ITEM_VALUES) % ITEM_VALUES + 1)
    return np.resize(once.astype(np.float32), items)


class Exercise(ABC):
    """One operation of one case on one rank of a group.

    `call` is what is timed. `timed` says whether this rank times it, and `halves` by what a timing
    is divided: a ping-pong is two messages; `in_graph` is the calls of a CUDA graph. Subclasses give
    `inputs` (buffer and its values for the check) and `outputs` (buffer and what must arrive; empty
    where nothing does).
    """

    timed = True
    halves = 1
    in_graph = 1

    def __init__(self, case: CollectiveCase, communicator: Communicator) -> None:
        self.case = case
        self.comm = communicator
        # the size is what was asked for: a communicator of other ranks gives a wrong result
        self.rank, self.size = communicator.rank, case.group_size
        self.items = max(1, case.nbytes // ITEM_BYTES)
        self.share = -(-self.items // self.size)  # items of one rank, where each has its part
        self.inputs: list[tuple[Any, Float32s]] = []
        self.outputs: list[tuple[Any, Float32s]] = []
        self.parts: list[Communicator] = []
        self.call: Callable[[], None]
        self.build()
        self._alone = self.call

    @abstractmethod
    def build(self) -> None:
        """Make buffers, `inputs`, `outputs` and `call`."""

    def check(self) -> tuple[bool, float]:
        """Run once and compare every item with the closed form; also the seconds of the call.

        The values are then freed: they are as large as the buffers.
        """
        for buffer, _ in self.outputs:
            self.comm.fill(buffer, NOT_SENT)  # memory that was free may hold what is expected
        for buffer, values in self.inputs:
            self.comm.write(buffer, values)
        self.comm.device.synchronize()
        start = perf_counter()
        self.call()
        self.comm.device.synchronize()
        seconds = perf_counter() - start
        right = all(
            np.array_equal(self.comm.read(buffer), expected) for buffer, expected in self.outputs
        )
        self.inputs = [(buffer, NOTHING) for buffer, _ in self.inputs]
        self.outputs = []
        return right, seconds

    def capture(self, number: int) -> None:
        """Let `call` be a replay of a CUDA graph of so many calls, from now on."""
        self.call, self.in_graph = self.comm.device.captured(self._alone, number), number

    def close(self) -> None:
        """Free the communicators that were made for this operation alone."""
        for part in self.parts:
            part.close()

    def reset(self) -> None:
        """Write the inputs, as the layer before does. Zeros: repeated sums must not overflow."""
        for buffer, _ in self.inputs:
            self.comm.fill(buffer, 0.0)

    def _input(self, values: Float32s) -> Any:
        buffer = self.comm.buffer(len(values))
        self.inputs.append((buffer, values))
        return buffer

    def _output(self, expected: Float32s) -> Any:
        buffer = self.comm.buffer(len(expected))
        self.outputs.append((buffer, expected))
        return buffer


class Allreduce(Exercise):
    """The sum of everyone's vector, in place."""

    def build(self) -> None:
        """One buffer."""
        buffer = self._input(pattern(self.rank, self.items))
        self.outputs.append((buffer, summed(self.size, self.items)))
        allreduce = self.comm.allreduce
        self.call = lambda: allreduce(buffer)


class Broadcast(Exercise):
    """The vector of rank 0 on every rank."""

    def build(self) -> None:
        """One buffer."""
        buffer = self._input(pattern(self.rank, self.items))
        self.outputs.append((buffer, pattern(0, self.items)))
        broadcast = self.comm.broadcast
        self.call = lambda: broadcast(buffer, 0)


class Allgather(Exercise):
    """Everyone's equal part, gathered on every rank; m is the gathered result."""

    def build(self) -> None:
        """This rank's part and the result."""
        mine = self._input(pattern(self.rank, self.share))
        self.items = self.share * self.size
        gathered = self._output(np.concatenate([pattern(r, self.share) for r in range(self.size)]))
        allgather = self.comm.allgather
        self.call = lambda: allgather(mine, gathered)


class Allgatherv(Exercise):
    """Parts of unequal length: rank r gives about (r + 1) / (1 + 2 + ... + p) of m."""

    def build(self) -> None:
        """This rank's part and the result."""
        total = self.size * (self.size + 1) // 2
        ends = [self.items * (r + 1) * (r + 2) // 2 // total for r in range(self.size)]
        counts = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
        mine = self._input(pattern(self.rank, counts[self.rank]))
        gathered = self._output(np.concatenate([pattern(r, n) for r, n in enumerate(counts)]))
        allgatherv = self.comm.allgatherv
        self.call = lambda: allgatherv(mine, gathered, counts)


class ReduceScatter(Exercise):
    """This rank's block of the sum; m is the unreduced input."""

    def build(self) -> None:
        """The whole input and this rank's block."""
        self.items = self.share * self.size
        whole = self._input(pattern(self.rank, self.items))
        mine = self._output(summed(self.size, self.share, self.rank * self.share))
        reduce_scatter = self.comm.reduce_scatter
        self.call = lambda: reduce_scatter(whole, mine)


class AllToAll(Exercise):
    """A block for every rank, one's own included; m is one rank's send buffer."""

    def build(self) -> None:
        """Outgoing and incoming blocks."""
        self.items = self.share * self.size
        outgoing = self._input(pattern(self.rank, self.items))
        begin = self.rank * self.share
        blocks = [pattern(r, self.share, begin) for r in range(self.size)]
        incoming = self._output(np.concatenate(blocks))
        all_to_all = self.comm.all_to_all
        self.call = lambda: all_to_all(outgoing, incoming)


class PingPong(Exercise):
    """A message there and back, timed by the rank that starts it, halved: no other clock needed."""

    halves = 2

    def build(self) -> None:
        """One buffer that goes to and fro."""
        self.timed = self.rank == 0
        buffer = self._input(pattern(self.rank, self.items))
        self.outputs.append((buffer, pattern(0, self.items)))
        send, receive = self.comm.send, self.comm.receive
        if self.rank == 0:

            def call() -> None:
                send(buffer, 1)
                receive(buffer, 1)
        else:

            def call() -> None:
                receive(buffer, 0)
                send(buffer, 0)

        self.call = call

    def check(self) -> tuple[bool, float]:
        """As the others, but the first rank lets go of what it sent before it gets it back."""
        if self.rank:
            return super().check()
        (buffer, values), expected = self.inputs[0], self.outputs[0][1]
        self.comm.write(buffer, values)
        start = perf_counter()
        self.comm.send(buffer, 1)
        self.comm.device.synchronize()
        self.comm.fill(buffer, NOT_SENT)
        self.comm.receive(buffer, 1)
        self.comm.device.synchronize()
        seconds = perf_counter() - start
        right = bool(np.array_equal(self.comm.read(buffer), expected))
        self.inputs, self.outputs = [(buffer, NOTHING)], []
        return right, seconds


class BothWays(Exercise):
    """Two ranks send each other a message at once; m is one of them."""

    def build(self) -> None:
        """One buffer out, one in."""
        other = 1 - self.rank
        outgoing = [(self._input(pattern(self.rank, self.items)), other)]
        incoming = [(self._output(pattern(other, self.items)), other)]
        exchange = self.comm.exchange
        self.call = lambda: exchange(outgoing, incoming)


class HaloExercise(Exercise):
    """Every rank swaps a message of m bytes with each neighbour of a 1-D to 3-D grid, all at once.

    Ranks at an edge have fewer neighbours: the grid does not wrap around, as an image does not.
    """

    def build(self) -> None:
        """A buffer out and one in for each neighbour."""
        near = neighbours(self.rank, self.case.grid)
        outgoing = [(self._input(pattern(self.rank, self.items)), other) for other in near]
        incoming = [(self._output(pattern(other, self.items)), other) for other in near]
        exchange = self.comm.exchange
        self.call = lambda: exchange(outgoing, incoming)


class HierarchicalAllreduce(Exercise):
    """Reduce to a leader of every `inner` ranks, allreduce of the leaders, broadcast back.

    The gradient exchange of data+spatial (ParaDL section 3.6; formulas.md).
    """

    def build(self) -> None:
        """One buffer, a communicator inside each group of `inner` and one of the leaders."""
        inner = self.case.inner
        first = self.rank - self.rank % inner
        inside = self.comm.group(list(range(first, first + inner)))
        assert inside is not None
        leading = list(range(0, self.size, inner)) if self.rank == first else None
        leaders = self.comm.group(leading)
        self.parts = [inside] if leaders is None else [inside, leaders]
        buffer = self._input(pattern(self.rank, self.items))
        self.outputs.append((buffer, summed(self.size, self.items)))

        def call() -> None:
            inside.reduce(buffer, 0)
            if leaders is not None:
                leaders.allreduce(buffer)
            inside.broadcast(buffer, 0)

        self.call = call


def neighbours(rank: int, grid: tuple[int, ...]) -> list[int]:
    """The ranks beside `rank` in a grid (p,), (rows, columns) or with planes, the last along first.

    Lower ranks from the farthest on, then higher ones: the order in which a grid is written down.
    """
    before: list[int] = []
    after: list[int] = []
    stride = math.prod(grid)
    for size in grid:
        stride //= size
        place = rank // stride % size
        before += [rank - stride] if place else []
        after += [rank + stride] if place + 1 < size else []
    return before + after[::-1]


EXERCISES: dict[str, type[Exercise]] = {
    "p2p": PingPong,
    "p2p_both": BothWays,
    "allreduce": Allreduce,
    "allgather": Allgather,
    "allgatherv": Allgatherv,
    "reduce_scatter": ReduceScatter,
    "all_to_all": AllToAll,
    "broadcast": Broadcast,
    "halo": HaloExercise,
    "hierarchical_allreduce": HierarchicalAllreduce,
}
