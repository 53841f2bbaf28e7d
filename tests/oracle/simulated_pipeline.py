"""A pipeline as events: ranks with a program each, messages, and a clock. Nothing of the oracle's."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

CARRIED = 2
# ("F" or "B", micro-batch)
Slot = tuple[str, int]


def program(schedule: str, stage: int, p: int, segments: int) -> list[Slot]:
    """What a rank does, in order. 1F1B: as many forwards first as there are stages behind it."""
    ahead = segments if schedule == "gpipe" else min(segments, p - 1 - stage)
    slots = [("F", j) for j in range(ahead)]
    for j in range(ahead, segments):
        slots += [("F", j), ("B", j - ahead)]
    return slots + [("B", j) for j in range(segments - ahead, segments)]


@dataclass
class Times:
    """Seconds of a micro-batch at every stage: compute, and the message that holds the sender.

    Under GPipe it holds both its ends: a stage begins a slot by receiving, from when its neighbour
    begins to send, then computes and sends. But for borders that are `apart`: there it takes a link for
    itself, one message after the other each way.
    """

    forward: Sequence[float]
    backward: Sequence[float]
    send_forward: Sequence[float]  # last one unused
    send_backward: Sequence[float]  # first one unused
    apart: Sequence[bool] = ()  # of each border; none: none is


def makespan(schedule: str, times: Times, segments: int) -> float:
    """Seconds until the last rank has done the last thing."""
    p, both_ends = len(times.forward), schedule == "gpipe"
    apart = [both_ends and of for of in times.apart] or [False] * p
    free: dict[tuple[str, int], float] = {}  # when a link has carried what it had
    programs = [program(schedule, stage, p, segments) for stage in range(p)]
    at, busy = [0] * p, [False] * p
    arrived = {("F", 0, j) for j in range(segments)}
    events: list[tuple[float, int, int, str, int, int]] = []
    now, number = 0.0, itertools.count()

    def begin(stage: int) -> None:
        if busy[stage] or at[stage] == len(programs[stage]):
            return
        what, j = programs[stage][at[stage]]
        if (what, stage, j) not in arrived:
            return
        busy[stage] = True
        compute = (times.forward if what == "F" else times.backward)[stage]
        if both_ends and what == "F" and stage > 0 and not apart[stage - 1]:
            compute += times.send_forward[stage - 1]
        elif both_ends and what == "B" and stage < p - 1 and not apart[stage]:
            compute += times.send_backward[stage + 1]
        heapq.heappush(events, (now + compute, next(number), stage, what, j, 0))

    for stage in range(p):
        begin(stage)
    while events:
        now, _, stage, what, j, sent = heapq.heappop(events)
        to = stage + 1 if what == "F" else stage - 1
        if sent == CARRIED:
            arrived.add((what, to, j))
            begin(to)
            continue
        border = min(stage, to)
        if 0 <= to < p and apart[border]:
            send = (times.send_forward if what == "F" else times.send_backward)[stage]
            link = what, border
            free[link] = max(now, free.get(link, 0.0)) + send
            heapq.heappush(events, (free[link], next(number), stage, what, j, CARRIED))
            sent = 1
        if not sent and 0 <= to < p:  # computed: the message goes out, the stage is busy with it
            send = (times.send_forward if what == "F" else times.send_backward)[stage]
            heapq.heappush(events, (now + send, next(number), stage, what, j, 1))
            if both_ends:
                arrived.add((what, to, j))
                begin(to)
            continue
        if what == "F" and to == p:
            arrived.add(("B", stage, j))  # the loss is here: its gradient too
        elif 0 <= to < p and not apart[border]:
            arrived.add((what, to, j))
        busy[stage] = False
        at[stage] += 1
        for one in range(p):
            begin(one)
    assert at == [len(slots) for slots in programs], "the schedule cannot go on"
    return now
