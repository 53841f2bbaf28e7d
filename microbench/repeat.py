"""Repeat a measurement until it is sure enough, or its time is spent; say which.

A block is a function that repeats something n times on this rank and returns, per operation, the n
seconds that this rank took. The ranks then compare notes: the time of a repetition is the maximum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from foundation.statistics import median_half_width
from microbench.communicators import Communicator

# None where a rank takes part without timing
Block = Callable[[int], Mapping[str, Sequence[float | None]]]

WARMUP_REPETITIONS = 3
MIN_REPETITIONS = 8
FEWEST_REPETITIONS = 6
MAX_REPETITIONS = 2000


@dataclass
class Repetitions:
    """All repetitions of one case: operation -> repetition -> seconds of each rank that timed it.

    The first `warmup` repetitions are kept and marked. `stopped_by` is "interval" or "budget".
    """

    ranks: dict[str, list[list[float]]] = field(default_factory=dict)
    warmup: int = 0
    stopped_by: str = ""
    half_width: float = math.inf
    elapsed_s: float = 0.0
    calls: int = 1

    def seconds(self, operation: str) -> list[float]:
        """Maximum over ranks of each repetition after the warm-up."""
        return [max(values) for values in self.ranks[operation][self.warmup :]]


def merge_ranks(
    per_rank: Sequence[Mapping[str, Sequence[float | None]]],
) -> dict[str, list[list[float]]]:
    """Transpose rank -> operation -> seconds into operation -> repetition -> seconds of ranks.

    A rank that takes part without timing (the answering side of a ping-pong) gives None.
    """
    merged: dict[str, list[list[float]]] = {}
    for operation in per_rank[0]:
        timed = [rank[operation] for rank in per_rank if rank[operation][0] is not None]
        merged[operation] = [list(row) for row in zip(*timed, strict=True)]
    return merged


def sure_enough(repetitions: Repetitions, target: float) -> bool:
    """Whether the 95% interval of every operation's median is within +-target. Sets half_width."""
    seconds = [repetitions.seconds(name) for name in repetitions.ranks]
    repetitions.half_width = max(map(median_half_width, seconds), default=math.inf)
    fewest = min(map(len, seconds), default=0)
    return fewest >= FEWEST_REPETITIONS and repetitions.half_width <= target


def repeat(
    communicator: Communicator, block: Block, budget_s: float, target: float, calls: int = 1
) -> Repetitions:
    """Run blocks of growing size until sure enough or `budget_s` seconds are spent.

    Whatever the budget, FEWEST_REPETITIONS are made after the warm-up: fewer give no interval. All
    ranks must call with the same arguments; rank 0 decides.
    """
    result = Repetitions(calls=calls)
    start = perf_counter()

    def extend(n: int) -> None:
        for name, rows in merge_ranks(communicator.gather_objects(block(n))).items():
            result.ranks.setdefault(name, []).extend(rows)

    extend(1)
    spent = communicator.share(perf_counter() - start)
    # of a case that is slow beside its budget no repetition is given away
    slow = spent * (WARMUP_REPETITIONS + MIN_REPETITIONS) > budget_s
    result.warmup = 1 if slow else WARMUP_REPETITIONS
    if not slow:
        extend(WARMUP_REPETITIONS - 1)
    n = FEWEST_REPETITIONS if slow else MIN_REPETITIONS
    while True:
        before = perf_counter()
        extend(n)
        now = perf_counter()
        per_repetition = max((now - before) / n, 1e-9)
        done = min(len(rows) for rows in result.ranks.values()) if result.ranks else 0
        left = budget_s - (now - start)
        verdict = ""
        if sure_enough(result, target):
            verdict = "interval"
        elif left <= 0 or done >= MAX_REPETITIONS:
            verdict = "budget"
        n = max(1, min(2 * n, int(left / per_repetition), MAX_REPETITIONS - done))
        verdict, n = communicator.share([verdict, n])
        if verdict:
            result.stopped_by = verdict
            result.elapsed_s = perf_counter() - start
            return result
