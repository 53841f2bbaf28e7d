"""The collectives of all ranks, one beside the other: their own time, and who was waited for.

A kernel of NCCL's holds the wait for its peers. Where the ranks' clocks can be compared, a collective's
own time is from the last arrival to the last end, and what a rank lost before that it spent waiting for
the rank that came last. Clocks of one host are the same; those of several are set so that collectives
which need something of every rank end together, step by step. Where many collectives would have ended
before their last rank had come, the clocks cannot be compared, and a collective's own time is the least
over the ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib.foundation.statistics import median
from calib.foundation.words import counted
from calib.training.traces.collectives import TOGETHER, Collective, collectives_of
from calib.training.traces.intervals import Starts
from calib.training.traces.rank import US, RankTrace

# how far an end may lie before the last arrival: timestamps of GPUs are that exact
EXACT_US = 20.0
MOST_IMPOSSIBLE = 0.25  # of the collectives, before clocks are not compared


@dataclass(frozen=True, slots=True)
class Joined:
    """One collective at the ranks whose traces have it.

    `each` is what each trace has of it, in the order of `ranks`. `waited_s` is what each rank waited for
    the last, `last` that rank and `ahead_s` what it came after the one before it; all 0 and None where
    clocks cannot be compared. `own_s` is the time that the collective itself took.
    """

    each: tuple[Collective, ...]
    ranks: tuple[int, ...]
    own_s: float
    waited_s: tuple[float, ...]
    last: int | None
    ahead_s: float

    @property
    def one(self) -> Collective:
        """What it is: the same at all ranks."""
        return self.each[0]


@dataclass(frozen=True)
class JoinedRanks:
    """The traces of a run's ranks, and their collectives in the order in which they began.

    `comparable` says whether clocks could be compared; `waiting` are the times, on each trace's own
    clock, in which its rank was in a collective before the last rank was.
    """

    traces: tuple[RankTrace, ...]
    collectives: tuple[Joined, ...]
    comparable: bool
    waiting: tuple[Starts, ...]
    notes: tuple[str, ...]


def joined(traces: Sequence[RankTrace]) -> JoinedRanks:
    """The collectives of a run's ranks, whose traces are in the order of the ranks."""
    found: defaultdict[tuple[Any, ...], list[tuple[int, Collective]]] = defaultdict(list)
    for place, trace in enumerate(traces):
        for one in collectives_of(trace):
            found[one.key].append((place, one))
    groups = list(found.values())
    notes: list[str] = []
    comparable = False
    shifts = [dict.fromkeys(trace.steps, 0.0) for trace in traces]
    if len(traces) > 1 and groups:
        shifts, comparable, notes = _shifts(traces, groups)
    ranks = [trace.rank if trace.rank is not None else n for n, trace in enumerate(traces)]
    every, waits, unmet = [], [list[tuple[float, float]]() for _ in traces], 0
    for group in groups:
        met = comparable and len(group) > 1 and not _impossible(shifts, [dict(group)])
        unmet += comparable and len(group) > 1 and not met
        starts = np.array([one.start_us + shifts[at][one.step] for at, one in group])
        stops = np.array([one.stop_us + shifts[at][one.step] for at, one in group])
        if met:
            late = float(starts.max())
            for (at, one), start, stop in zip(group, starts, stops, strict=True):
                waits[at].append((one.start_us, one.start_us + min(late, stop) - start))
        every.append(_joined(group, starts, stops, ranks, met))
    if unmet:
        notes.append(f"{counted(unmet, 'collective')} did not meet those of the other ranks")
    order = sorted(range(len(every)), key=lambda n: every[n].one.start_us)
    return JoinedRanks(
        tuple(traces),
        tuple(every[n] for n in order),
        comparable,
        tuple(np.array(sorted(times)).reshape(-1, 2) for times in waits),
        tuple(notes),
    )


def _joined(
    group: Sequence[tuple[int, Collective]],
    starts: NDArray[np.float64],
    stops: NDArray[np.float64],
    ranks: Sequence[int],
    met: bool,
) -> Joined:
    of = tuple(ranks[at] for at, _ in group)
    each = tuple(one for _, one in group)
    least = float(np.min(stops - starts))
    if not met:
        return Joined(each, of, least * US, (0.0,) * len(group), None, 0.0)
    late = np.sort(starts)
    waited = np.minimum(late[-1], stops) - starts
    own = max(float(stops.max() - late[-1]), 0.0)
    last = of[int(np.argmax(starts))]
    return Joined(
        each, of, own * US, tuple((waited * US).tolist()), last, float(late[-1] - late[-2]) * US
    )


Shifts = list[dict[int, float]]


def _shifts(
    traces: Sequence[RankTrace], groups: Sequence[Sequence[tuple[int, Collective]]]
) -> tuple[Shifts, bool, list[str]]:
    """What to add to the times of each trace and step, whether that makes sense, and notes."""
    synchronous = [
        dict(group) for group in groups if group[0][1].operation in TOGETHER and len(group) > 1
    ]
    apart = [_apart_us(trace, traces[0]) for trace in traces]
    hosts = {trace.host for trace in traces}
    shifts = [dict.fromkeys(trace.steps, by) for trace, by in zip(traces, apart, strict=True)]
    notes: list[str] = []
    # older traces name no host; if the clocks are one, they agree
    agree = _impossible(shifts, synchronous) <= MOST_IMPOSSIBLE
    one_host = len(hosts) == 1 and (None not in hosts or agree)
    if not one_host:
        shifts = _aligned(shifts, synchronous)
        notes.append("clocks of several hosts are set by the ends of collectives")
    wrong = _impossible(shifts, synchronous)
    if not synchronous or wrong > MOST_IMPOSSIBLE:
        why = (
            "no collective needs all of them"
            if not synchronous
            else f"{100 * wrong:.0f}% of the collectives would end before their last rank comes"
        )
        notes.append(
            f"the clocks of the ranks cannot be compared ({why}): a collective's own time is the least "
            "over its ranks, and who was waited for is not known"
        )
        return shifts, False, notes
    return shifts, True, notes


def _apart_us(trace: RankTrace, first: RankTrace) -> float:
    """What to add to times of a trace to have those of the first, if their clocks are one."""
    return (trace.base_ns - first.base_ns) / 1000 + (trace.base_us - first.base_us)


def _aligned(shifts: Shifts, synchronous: Sequence[dict[int, Collective]]) -> Shifts:
    """The shifts of each trace's steps at which collectives end when they end at the first trace.

    One that has no collective with the first is set by those that are set already; one that has none
    with these, too, keeps its own.
    """
    found = [dict(of_trace) for of_trace in shifts]
    known, left = {0}, set(range(1, len(shifts)))
    while left:
        by_step: dict[int, defaultdict[int, list[float]]] = {at: defaultdict(list) for at in left}
        for group in synchronous:
            ends = [group[at].stop_us + found[at][group[at].step] for at in known & group.keys()]
            for at in left & group.keys() if ends else ():
                by_step[at][group[at].step].append(median(ends) - group[at].stop_us)
        now = {at for at in left if by_step[at]}
        for at in now:
            usual = median([shift for of_step in by_step[at].values() for shift in of_step])
            told = {step: median(of_step) for step, of_step in by_step[at].items()}
            found[at] = {step: told.get(step, usual) for step in shifts[at]}
        if not now:
            break
        known, left = known | now, left - now
    return found


def _impossible(shifts: Shifts, synchronous: Sequence[dict[int, Collective]]) -> float:
    """The share of collectives that end at one rank before they begin at another."""
    wrong = [
        min(one.stop_us + shifts[at][one.step] for at, one in group.items())
        < max(one.start_us + shifts[at][one.step] for at, one in group.items()) - EXACT_US
        for group in synchronous
    ]
    return sum(wrong) / len(wrong) if wrong else 0.0
