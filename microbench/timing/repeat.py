"""Repeat a measurement until it is precise enough or its time is spent.

A block is a function that repeats something n times on this rank and returns, per operation, the n
seconds that this rank took. The ranks then compare notes: the time of a repetition is the maximum.

The interval is checked only when the repetitions have doubled (8, 24, 56, 120, ...): checked often
enough, one is narrow by chance. It is the serial interval (foundation/statistics.py), because
repetitions are autocorrelated. Simulated, 3,000 cases each (tests/microbench/timing/test_repeat.py has
a shorter run): of the intervals at which a case stops, 95 to 99% hold the true median where the noise
is independent (normal, lognormal, bimodal), 92 to 95% where it is AR(1) with rho = 0.5. The interval
for independent values gives 93 to 99% and 79 to 94%, for an eighth fewer repetitions; with rho = 0.9
it gives 35 to 53%, the serial one 64 to 96%.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from calib.foundation.statistics import serial_half_width
from calib.microbench.control import Control
from calib.microbench.timing.clock import Clock
from calib.microbench.timing.watchdog import beat

SecondsByName = Mapping[str, Sequence[float | None]]  # None where a rank takes part without timing


@dataclass
class Timings:
    """What one rank timed in a block: per operation the seconds of every repetition.

    `starts` are this rank's readings of perf_counter when each repetition began; `host_seconds` the
    host's own time of calls that a GPU executes; `waited` like `seconds` what of them this rank waited
    for a core that something else had, NaN where the system does not count it.
    """

    seconds: SecondsByName
    starts: Sequence[float | None] = ()
    host_seconds: SecondsByName = field(default_factory=dict)
    waited: SecondsByName = field(default_factory=dict)


TimedBlock = Callable[[int], Timings]
RepeatedCalls = Callable[[int], SecondsByName | Timings]

WARMUP_REPETITIONS = 3
MIN_REPETITIONS = 8
FEWEST_REPETITIONS = 6
CLEAN = 0.01  # of its time, what a rank may wait in a repetition that counts as undisturbed
SETTLED_REPETITIONS = 20
MAX_REPETITIONS = 1000
BLOCK_S = 5.0  # the longest block planned: the watchdog hears of a rank between blocks


@dataclass
class Repetitions:
    """All repetitions of one case: operation -> repetition -> seconds of each rank that timed it.

    The first `warmup` repetitions are kept and marked. `stopped_by` is "interval" or "budget".
    `late` is, per repetition, how much later than the first rank the last one began; `host` and
    `waited` are like `ranks`, of operations where they are known; `first_s`, `estimate_s`, `memory`,
    `kernels`, `workspace` and `channels` are kept with the case's end (manifest.py).
    `resolution_s` is what the clock of a GPU cannot tell in a time; NaN where that is next to nothing.
    """

    ranks: dict[str, list[list[float]]] = field(default_factory=dict)
    late: list[float] = field(default_factory=list)
    host: dict[str, list[list[float]]] = field(default_factory=dict)
    waited: dict[str, list[list[float]]] = field(default_factory=dict)
    first_s: float | None = None
    estimate_s: float | None = None
    memory: dict[str, int] = field(default_factory=dict)
    kernels: dict[str, list[str]] = field(default_factory=dict)
    workspace: dict[str, int] = field(default_factory=dict)
    channels: dict[str, int] = field(default_factory=dict)
    warmup: int = 0
    stopped_by: str = ""
    half_width: float = math.inf
    elapsed_s: float = 0.0
    calls: int = 1
    resolution_s: float = math.nan

    @property
    def made(self) -> int:
        """Repetitions of the operation with the most, those to warm up among them."""
        return max(map(len, self.ranks.values()), default=0)

    def seconds(self, operation: str) -> list[float]:
        """Maximum over ranks of each repetition after the warm-up."""
        return [max(values) for values in self.ranks[operation][self.warmup :]]

    def undisturbed(self) -> int:
        """How many repetitions no rank waited in, of the operation with the fewest.

        All where the system does not count.
        """
        counts = []
        for name, rows in self.ranks.items():
            pairs = list(zip(rows, self.waited.get(name, []), strict=False))[self.warmup :]
            clean = sum(is_clean(max(seconds), max(waited)) for seconds, waited in pairs)
            counts.append(clean if pairs else max(len(rows) - self.warmup, 0))
        return min(counts, default=0)

    def waited_share(self) -> float | None:
        """Of the time of the repetitions after the warm-up, what the rank that waited most waited."""
        whole = waited = 0.0
        for name, rows in self.waited.items():
            whole += sum(self.seconds(name))
            waited += sum(max(row) for row in rows[self.warmup :])
        return waited / whole if whole > 0 and math.isfinite(waited) else None


def merge_ranks(per_rank: Sequence[SecondsByName]) -> dict[str, list[list[float]]]:
    """Transpose rank -> operation -> seconds into operation -> repetition -> seconds of ranks.

    A rank that takes part without timing (the answering side of a ping-pong) gives None, or does
    not name the operation. Raises ValueError when no rank timed an operation, or those that did
    differ in the number of repetitions.
    """
    merged: dict[str, list[list[float]]] = {}
    for operation in dict.fromkeys(name for rank in per_rank for name in rank):
        offered = [rank[operation] for rank in per_rank if operation in rank]
        timed = [seconds for seconds in offered if seconds[0] is not None]
        if not timed:
            raise ValueError(f"no rank timed {operation}")
        merged[operation] = [list(row) for row in zip(*timed, strict=True)]
    return merged


def is_clean(seconds: float, waited: float) -> bool:
    """Whether nothing had the core for long enough to matter; so where nobody counts (NaN)."""
    return not waited > CLEAN * seconds


def late_arrivals(starts: Sequence[Sequence[float | None]]) -> list[float]:
    """Per repetition, the latest less the earliest start, of [rank][repetition] on one clock."""
    timed = [rank for rank in starts if rank and rank[0] is not None]
    return [max(row) - min(row) for row in zip(*timed, strict=True)]


def sure_enough(repetitions: Repetitions, target: float) -> bool:
    """Whether the 95% interval of every operation's median is within +-target. Sets half_width."""
    seconds = [repetitions.seconds(name) for name in repetitions.ranks]
    repetitions.half_width = max(map(serial_half_width, seconds), default=math.inf)
    fewest = min(map(len, seconds), default=0)
    return fewest >= FEWEST_REPETITIONS and repetitions.half_width <= target


@dataclass
class RepetitionSchedule:
    """How many repetitions come next, and when to look at the interval. Pure: it reads no clock.

    `first` repetitions after the `warmup` are made whatever they cost; then the interval is checked
    whenever they have about doubled, and when the time is spent.
    """

    warmup: int
    first: int
    look: int = field(init=False)

    def __post_init__(self) -> None:
        self.look = self.first

    def block(self, timed: int, left_s: float, repetition_s: float) -> int:
        """Repetitions of the next block, after `timed`, one of which takes `repetition_s`."""
        wanted = min(self.look, MAX_REPETITIONS - self.warmup) - timed
        limit = BLOCK_S if timed < self.first else min(BLOCK_S, left_s)
        return max(1, min(wanted, int(limit / max(repetition_s, 1e-9))))

    def verdict(self, result: Repetitions, timed: int, target: float, left_s: float) -> str:
        """ "interval" or "budget" when it is time to stop, else nothing."""
        if timed < self.first:
            return ""
        spent = left_s <= 0 or timed >= MAX_REPETITIONS - self.warmup
        if timed < self.look and not spent:
            return ""
        self.look = 2 * self.look + self.first
        if sure_enough(result, target):
            return "interval"
        return "budget" if spent else ""


def repeat(
    communicator: Control,
    block: RepeatedCalls,
    budget_s: float,
    target: float,
    calls: int = 1,
    clock: Clock | None = None,
    settle_s: float = 0.0,
) -> Repetitions:
    """Time blocks of growing size until the median is precise enough or the budget is spent.

    Collective: all ranks pass the same arguments, and all go by rank 0's clock. The budget is exceeded
    by one repetition at most, or by as much as a block overruns the estimate from the one before it.

    Parameters
    ----------
    communicator
        Connects the ranks.
    block
        Times so many repetitions.
    budget_s
        Seconds. FEWEST_REPETITIONS are made after the warm-up all the same: fewer give no interval.
    target
        Half width of the median's 95% interval, as a share of the median.
    calls
        Calls in one timing.
    clock
        Shared with the other ranks: the starts that a block reports become late arrivals.
    settle_s
        Seconds that short repetitions take to settle, whatever the budget: at most SETTLED_REPETITIONS
        are warm-up for so long, and as many are timed at least.
    """
    result = Repetitions(calls=calls)
    start = perf_counter()

    def extend(n: int) -> float:
        before = perf_counter()
        timings = block(n)
        _append(communicator, result, timings, clock)
        beat()
        return (perf_counter() - before) / n

    repetition_s = communicator.broadcast_object(extend(1))
    # a case that is slow for its budget has one warm-up repetition and a smaller first look
    slow = repetition_s * (WARMUP_REPETITIONS + MIN_REPETITIONS) > budget_s
    result.warmup = 1 if slow else WARMUP_REPETITIONS
    first, made = FEWEST_REPETITIONS if slow else MIN_REPETITIONS, 1
    if repetition_s < settle_s:
        repetition_s, made = communicator.broadcast_object(extend(1)), 2
        settled = min(SETTLED_REPETITIONS, math.ceil(settle_s / max(repetition_s, 1e-9)))
        result.warmup, first = max(result.warmup, made, settled), max(first, settled)
    schedule = RepetitionSchedule(result.warmup, first)
    if result.warmup > made:
        extend(result.warmup - made)
    timed, n = 0, schedule.block(0, budget_s, repetition_s)
    while True:
        repetition_s = extend(n)
        timed += n
        now = perf_counter()
        # rank 0's clock decides, so that all ranks come to the same verdict
        left_s, repetition_s = communicator.broadcast_object(
            [budget_s - (now - start), repetition_s]
        )
        result.stopped_by = schedule.verdict(result, timed, target, left_s)
        if result.stopped_by:
            result.elapsed_s = now - start
            return result
        n = schedule.block(timed, left_s, repetition_s)


def _append(
    communicator: Control,
    result: Repetitions,
    timings: SecondsByName | Timings,
    clock: Clock | None,
) -> None:
    """Add what all ranks timed in a block."""
    if not isinstance(timings, Timings):
        timings = Timings(timings)
    starts: Sequence[float | None] = ()
    if clock is not None and timings.starts:
        starts = [None if t is None else clock.to_common(t) for t in timings.starts]
    by_name = timings.seconds, timings.host_seconds, timings.waited
    everyone = communicator.allgather_object([*map(dict, by_name), list(starts)])
    for place, kept in enumerate((result.ranks, result.host, result.waited)):
        for name, rows in merge_ranks([rank[place] for rank in everyone]).items():
            kept.setdefault(name, []).extend(rows)
    result.late.extend(late_arrivals([rank[-1] for rank in everyone]))
