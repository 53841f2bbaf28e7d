"""PipeDream's partitioner: stages with replicas, level by level of the network (Narayanan et al., 2019).

A[i, j, m]: the slowest stage of the best pipeline of states i..j on m machines of a level is

    min( (T + 4 (m-1) w / (m b) / below) / m,
         min over k, m' of max(A[i, k, m-m'], (T' + 4 (m'-1) w' / (m' b)) / m',
                               2 a_k / (m' b), 2 a_j / (m' b)) )

with T, w of i..j, T', w' of k+1..j, bandwidth b, and `below` machines in the level below, whose A with
all its machines is this level's T. Activations (a) count where a compression ratio is given, as in the
authors' optimizer_graph_hierarchical.py. The order of comparison is theirs too: one stage first, then
by k, then by m', and a later one wins only where it is faster. (Their k come out of a set of Python
objects, by address: among equally fast pipelines chance decides. Here k rises.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calib.foundation.arrays import Floats
from calib.foundation.errors import InputError
from calib.oracle.layout.stages import balanced
from calib.search.pipelines.antichains import States
from calib.search.request import Look, never

MOST_TEMPORARY = 4_000_000  # items of an array that is made at once
MOST_MACHINES = 256  # of a level


class Split(NamedTuple):
    """States [start, end) on `replicas` machines of the level; `compute_s` on one device."""

    start: int
    end: int
    replicas: int
    compute_s: float


@dataclass(frozen=True)
class PartitionLevel:
    """Machines of a level and the seconds that they exchange, for pieces of N states.

    `one`(m): summing the gradients of [i, j] over m machines as a single stage, (N + 1, N); `sync`(m):
    the same within a pipeline; `send`(m): what crosses behind each state of a stage on m machines, (N,),
    None where that is not counted.
    """

    machines: int
    one: Callable[[int], Floats]
    sync: Callable[[int], Floats]
    send: Callable[[int], Floats] | None = None


def in_row(machines: int) -> PartitionLevel:
    """Machines one after the other, which exchange no gradients."""
    return PartitionLevel(machines, _free, _free)


def _free(m: int) -> Floats:
    return np.zeros(())


@dataclass(frozen=True)
class Partition:
    """Splits of each level, the outermost first; those of the innermost are the stages."""

    levels: tuple[tuple[Split, ...], ...]
    single_stage_s: float
    per_stage_s: float
    evaluated: int


# bytes that a stage [i, j] holds which has so many more mini-batches in flight behind it: (N + 1, N)
BytesHeld = Callable[[int], Floats]


def between(sums: Floats) -> Floats:
    """(N + 1, N): sums over states i to j, where `sums` is over all up to j."""
    before = np.concatenate(([0.0], sums))
    found: Floats = sums[None, :] - before[:, None]
    return found


def bandwidth_levels(
    states: States,
    machines: Sequence[int],
    bandwidths: Sequence[float],
    compression: float | None = None,
) -> list[PartitionLevel]:
    """The levels of the paper, innermost first: bandwidths in B/s. Raises InputError."""
    if len(machines) != len(bandwidths) or not machines:
        raise InputError(f"{len(machines)} levels of machines and {len(bandwidths)} bandwidths")
    parameters = between(states.parameter_bytes)
    levels, below = [], 1
    for count, bandwidth in zip(machines, bandwidths, strict=True):
        if not 1 <= count <= MOST_MACHINES:
            raise InputError(f"{count} machines of a level: give 1 to {MOST_MACHINES}")
        if not 0 < bandwidth < math.inf:
            raise InputError(f"a bandwidth of {bandwidth:g} B/s is not above 0")
        levels.append(_level(states, parameters, count, bandwidth, below, compression))
        below = count
    return levels


def _level(
    states: States,
    parameters: Floats,
    count: int,
    bandwidth: float,
    below: int,
    compression: float | None,
) -> PartitionLevel:
    def sync(m: int) -> Floats:
        return (4 * (m - 1) / (bandwidth * m)) * parameters

    def one(m: int) -> Floats:
        return sync(m) / below

    def send(m: int) -> Floats:
        found: Floats = (2.0 / (bandwidth * m)) * states.output_bytes / (compression or 1.0)
        return found

    return PartitionLevel(count, one, sync, send if compression else None)


def solve(
    compute_s: Floats,
    before: NDArray[np.bool_],
    levels: Sequence[PartitionLevel],
    straight: bool = False,
    held: BytesHeld | None = None,
    memory_bytes: float = 0.0,
    look: Look = never,
) -> Partition | None:
    """The fastest partition of N states (`compute_s` up to each, (N,)); None where none fits.

    `straight`: no replicas. With `memory_bytes`, `held` says what a stage holds. Raises BudgetOver.
    """
    times = between(compute_s)
    solved: list[_Solved] = []
    for number, level in enumerate(levels):
        final, limited = number == len(levels) - 1, held if memory_bytes else None
        solved.append(_Solved(times, before, level, straight, limited, memory_bytes, final, look))
        # a state after the last one begins nothing
        times = np.vstack([solved[-1].best[-1], np.full((1, len(compute_s)), np.inf)])
    last = len(compute_s) - 1
    whole = float(solved[-1].best[-1][0, last])
    if not whole < math.inf:
        return None
    pieces = [(0, last + 1)]
    shown = []
    for of in reversed(solved):
        splits = [split for piece in pieces for split in of.splits(*piece)]
        pieces = [(start, end) for start, end, _ in splits]
        shown.append(tuple(_split(compute_s, a, b, n) for a, b, n in splits))
    return Partition(tuple(shown), float(compute_s[-1]), whole, sum(of.evaluated for of in solved))


def _split(compute_s: Floats, start: int, end: int, replicas: int) -> Split:
    seconds = float(compute_s[end - 1] - (compute_s[start - 1] if start else 0.0))
    return Split(start, end, replicas, seconds)


def replicated(compute_s: Floats, levels: Sequence[PartitionLevel]) -> Partition:
    """One stage on all machines of all levels: data parallelism."""
    end = len(compute_s)
    seconds = float(compute_s[-1])
    for level in levels:
        seconds = (seconds + float(level.one(level.machines)[0, -1])) / level.machines
    splits = tuple((_split(compute_s, 0, end, level.machines),) for level in reversed(levels))
    return Partition(splits, float(compute_s[-1]), seconds, 1)


def chain_of(before: NDArray[np.bool_]) -> list[int]:
    """States up to the last, each behind the one before it."""
    chain = [len(before) - 1]
    for state in range(len(before) - 2, -1, -1):
        if before[chain[-1], state]:
            chain.append(state)
    return chain[::-1]


def in_a_row(sums: Floats, chain: Sequence[int], count: int) -> Partition:
    """`count` stages of one machine, cut at states of a chain so that the largest is smallest.

    `sums` up to each state are of what is balanced, such as seconds; `count` is at most the chain's
    length.
    """
    parts = tuple(np.diff(sums[chain], prepend=0.0).tolist())
    ends = [chain[place - 1] + 1 for place in (*balanced(parts, count), len(chain))]
    splits = tuple(_split(sums, a, b, 1) for a, b in pairwise((0, *ends)))
    return Partition((splits,), float(sums[-1]), max(of.compute_s for of in splits), 1)


class _Solved:
    """One level: best[m] is A of m + 1 machines by [i, j], infinite where there is no pipeline."""

    def __init__(
        self,
        times: Floats,
        before: NDArray[np.bool_],
        level: PartitionLevel,
        straight: bool,
        held: BytesHeld | None,
        memory_bytes: float,
        final: bool,
        look: Look,
    ) -> None:
        self.level, self._look = level, look
        n, count = level.machines, times.shape[1]
        self._held, self._memory = held, memory_bytes
        self.replicas = 1 if straight else n
        rows = 1 if final else count
        behind = np.tri(count, dtype=bool).T  # [i, j]: i <= j
        self.alone: list[Floats] = []
        for m in range(1, n + 1):
            look()
            if m > self.replicas:
                self.alone.append(np.full((rows, count), np.inf))
                continue
            value = (times + level.one(m)) / m
            value = self._within(value, n - m, m)[:rows]
            self.alone.append(np.where(behind[:rows], value, np.inf))
        # [k, j]: the last stage, of the states after k up to j
        allowed = before.T
        self.last = [
            np.where(allowed, self._last(times, m), np.inf) for m in range(1, self.replicas + 1)
        ]
        self._skipped = np.zeros((rows, count), dtype=bool)  # [i, k]: no part of a piece from i
        # a cut inside is behind state i - 1; the authors' program also takes one beside it, where the
        # difference of two sums is no set of layers
        self._skipped[1:] = ~before.T[: rows - 1]
        self._skipped |= ~behind[:rows]
        self.best: list[Floats] = []
        self._open: list[Floats] = []  # the same, infinite where k is no part of the piece
        self.evaluated = 0
        for m in range(n):
            self._solve(m)

    def _last(self, times: Floats, m: int) -> Floats:
        self._look()
        level = self.level
        found: Floats = ((times + level.sync(m)) / m)[1:]
        if level.send is None:
            return found
        send = level.send(m)
        out = send.copy()
        out[-1] = 0.0
        found = np.maximum(found, send[:, None])
        return np.maximum(found, out[None, :])

    def _within(self, value: Floats, left: int, m: int) -> Floats:
        """Infinite where a stage on m machines, with `left` behind it, does not fit."""
        if self._held is None:
            return value
        return np.where(self._held(math.ceil(left / m)) > self._memory, np.inf, value)

    def _lasts(self, m: int, replicas: int) -> Floats:
        """The last stage on `replicas` of the first m + 1 machines."""
        found = self.last[replicas - 1]
        if self._held is None:
            return found
        left = self.level.machines - (m + 1)
        return np.where(self._held(math.ceil(left / replicas))[1:] > self._memory, np.inf, found)

    def _solve(self, m: int) -> None:
        best = self.alone[m].copy()
        if m:
            rows, count = best.shape
            step = max(1, MOST_TEMPORARY // (count * count))
            for replicas in range(1, min(m, self.replicas) + 1):
                last, first = self._lasts(m, replicas), self._open[m - replicas]
                for at in range(0, rows, step):
                    self._look()
                    piece = np.maximum(first[at : at + step, :, None], last[None, :, :])
                    np.minimum(best[at : at + step], piece.min(axis=1), out=best[at : at + step])
                self.evaluated += rows * count * count // 2
        self.best.append(best)
        self._open.append(np.where(self._skipped, np.inf, best))

    def splits(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """(start, end, replicas) of the stages of states [start, end), in order."""
        found: list[tuple[int, int, int]] = []
        j, m = end - 1, self.level.machines - 1
        while True:
            k, left, replicas = self._chosen(start, j, m)
            found.append((start if k < 0 else k + 1, j + 1, replicas))
            if k < 0:
                return found[::-1]
            j, m = k, left

    def _chosen(self, i: int, j: int, m: int) -> tuple[int, int, int]:
        """(last state of what is before the last stage, or -1; its machines - 1; replicas)."""
        if not m or j == i or self.alone[m][i, j] <= self.best[m][i, j]:
            return -1, 0, m + 1
        candidates = np.stack(
            [
                np.maximum(self._open[m - r][i], self._lasts(m, r)[:, j])
                for r in range(1, min(m, self.replicas) + 1)
            ],
            axis=1,
        )
        k, r = np.unravel_index(int(candidates.argmin()), candidates.shape)
        return int(k), m - int(r) - 1, int(r) + 1
