"""Simulate a schedule exactly, event by event.

A device works through its program in order, each piece as soon as it can: a forward when the output of
the stage before has come, a backward when the gradient of the next stage has (in the last stage: after
its forward), on the device that has the forward's activations. With a flush, updates wait for all
backwards. Messages between two devices take the link of their stages and direction one after the other.
`held` devices wait until theirs is sent; where devices `meet`, both are busy with it, from when the
receiver is free for it. A schedule that cannot go on is refused.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from calib.foundation.errors import InputError
from calib.search.timelines.schedules import DeviceWork, PipelineSchedule, WorkKind

# what has to be there before a device can do its next work
NEEDS: dict[WorkKind, str] = {
    "forward": "forward",
    "backward": "backward",
    "recompute": "forward done",
    "update": "update",
}
LOOK_AT_CLOCK = 256  # events between two looks


@dataclass(frozen=True)
class StageTimes:
    """Seconds of one micro-batch by stage: forward, backward, update (with its exchange).

    `send_forward[i]`: its output to stage i + 1; `send_backward[i]`: its gradient to stage i - 1 (the
    last and the first are not used); empty where sending is free. `meet[i]`: whether the devices of
    stages i and i + 1 are both busy with a message; empty where none are.
    """

    forward: Sequence[float]
    backward: Sequence[float]
    update: Sequence[float] = ()
    send_forward: Sequence[float] = ()
    send_backward: Sequence[float] = ()
    held: bool = False
    meet: Sequence[bool] = ()

    def of(self, work: DeviceWork) -> float:
        """Seconds of one piece of work; a recompute is a forward."""
        if work.kind == "update":
            return self.update[work.stage] if self.update else 0.0
        return (self.backward if work.kind == "backward" else self.forward)[work.stage]

    def sending(self, kind: str, stage: int) -> float:
        """Seconds of the message after a forward or a backward."""
        of = self.send_forward if kind == "forward" else self.send_backward
        return of[stage] if of else 0.0


class DoneWork(NamedTuple):
    """A piece of work, when and where; a message has the kind send and the device of its sender."""

    device: int
    kind: str
    stage: int
    microbatch: int
    start_s: float
    stop_s: float


@dataclass(frozen=True)
class Simulated:
    """How a schedule went.

    `busy_s`: computing, by device. `by_stage`: the most forwards whose backward a device has yet to do,
    which is how many activations (and, asynchronously, versions of the weights) it holds.
    """

    makespan_s: float
    done: tuple[DoneWork, ...]
    busy_s: tuple[float, ...]
    by_stage: tuple[int, ...]

    @property
    def idle_share(self) -> float:
        """Idle share of all devices' time; GPipe's bubble where stages are equal."""
        whole = self.makespan_s * len(self.busy_s)
        return 1.0 - sum(self.busy_s) / whole if whole else 0.0

    def steady_s(self, replicas: int = 1) -> float:
        """Seconds from one mini-batch to the next, without the first and the last quarter.

        Where mini-batches come out `replicas` at a time, so many of them are one step.
        """
        ends: dict[int, float] = defaultdict(float)
        for of in self.done:
            if of.kind in ("backward", "update"):
                ends[of.microbatch] = max(ends[of.microbatch], of.stop_s)
        times = sorted(ends.values())
        first, last = len(times) // 4, len(times) - 1 - len(times) // 4
        steps = max(1, (last - first) // replicas) * replicas
        if first + steps >= len(times):
            return self.makespan_s / max(1, len(times))
        return (times[first + steps] - times[first]) / steps


def simulate(
    schedule: PipelineSchedule, times: StageTimes, look: Callable[[], None] = lambda: None
) -> Simulated:
    """Run a schedule; `look` is called on the way, and may raise.

    Raises InputError where it cannot go on, or does not do everything once.
    """
    return _Run(schedule, times).result(look)


class _Run:
    """Devices with a program each, what has arrived, and a heap of what ends next."""

    def __init__(self, schedule: PipelineSchedule, times: StageTimes) -> None:
        self.schedule, self.times = schedule, times
        self.programs = schedule.programs
        self.home = _homes(schedule)
        self.at = [0] * len(self.programs)
        self.busy = [False] * len(self.programs)
        self.arrived: set[tuple[str, int, int]] = {
            ("forward", 0, j) for j in range(schedule.microbatches)
        }
        self.waiting: dict[tuple[str, int, int], int] = {}
        # messages that wait for their receiver: by what it needs, the sender and what it computed
        self.offered: dict[tuple[str, int, int], tuple[int, DeviceWork]] = {}
        self.backwards = {
            (w.stage, w.microbatch) for of in self.programs for w in of if w.kind == "backward"
        }
        self.link_free: dict[tuple[int, int, int], float] = defaultdict(float)
        self.heap: list[tuple[float, int, str, int, tuple[str, int, int]]] = []
        self.count = 0
        self.done: list[DoneWork] = []

    def result(self, look: Callable[[], None]) -> Simulated:
        """All events in order."""
        for device in range(len(self.programs)):
            self._begin(device, 0.0)
        events = 0
        while self.heap:
            if events % LOOK_AT_CLOCK == 0:
                look()
            events += 1
            now, _, what, device, key = heapq.heappop(self.heap)
            if what == "arrives":
                self.arrived.add(key)
                waiting = self.waiting.pop(key, None)
                if waiting is not None:
                    self._begin(waiting, now)
            elif what == "met":
                self.arrived.add(key)
                sender, _ = self.offered.pop(key)
                self._free(sender, now)
                self.busy[device] = False
                self._begin(device, now)
            elif what == "computed":
                self._computed(device, now)
            else:
                self._free(device, now)
        stuck = [d for d, program in enumerate(self.programs) if self.at[d] < len(program)]
        if stuck:
            work = self.programs[stuck[0]][self.at[stuck[0]]]
            raise InputError(
                f"the schedule cannot go on: device {stuck[0]} waits for the {work.kind} of "
                f"micro-batch {work.microbatch} at stage {work.stage}"
            )
        return self._summed()

    def _push(self, when: float, what: str, device: int, key: tuple[str, int, int]) -> None:
        self.count += 1
        heapq.heappush(self.heap, (when, self.count, what, device, key))

    def _begin(self, device: int, now: float) -> None:
        """Begin the device's next work if that can be done now."""
        program = self.programs[device]
        if self.busy[device] or self.at[device] == len(program):
            return
        work = program[self.at[device]]
        key = (NEEDS[work.kind], work.stage, work.microbatch)
        if key not in self.arrived:
            self.waiting[key] = device
            if key in self.offered:
                self._meet(key, now)
            return
        self.busy[device] = True
        stop = now + self.times.of(work)
        self.done.append(DoneWork(device, *work, now, stop))
        self._push(stop, "computed", device, key)

    def _computed(self, device: int, now: float) -> None:
        """Send a device's output on, or mark it as there."""
        work = self.programs[device][self.at[device]]
        kind, stage, batch = work
        free: float | None = now
        if kind in ("forward", "backward"):
            self.arrived.add((f"{kind} done", stage, batch))
            to = stage + 1 if kind == "forward" else stage - 1
            if kind == "forward" and to == self.schedule.stages:
                self.arrived.add(("backward", stage, batch))  # the loss is here: its gradient too
            elif 0 <= to < self.schedule.stages:
                free = self._send(device, work, to, now)
            if kind == "backward":
                self._done_backward(stage, batch, now)
        if free is not None and free > now:
            self._push(free, "free", device, (kind, stage, batch))
        elif free is not None:
            self._free(device, now)

    def _done_backward(self, stage: int, batch: int, now: float) -> None:
        """Allow its update; with a flush, all updates after the last backward."""
        if self.schedule.asynchronous:
            self.arrived.add(("update", stage, batch))
            return
        self.backwards.discard((stage, batch))
        if not self.backwards:
            last = self.schedule.microbatches - 1
            for of in range(self.schedule.stages):
                self._push(now, "arrives", self.home[of, last], ("update", of, last))

    def _meet(self, key: tuple[str, int, int], now: float) -> None:
        """Send the offered message to the device that waits for it; both are busy with it."""
        receiver, (sender, work) = self.waiting.pop(key), self.offered[key]
        stop = now + self.times.sending(work.kind, work.stage)
        self.busy[receiver] = True
        self.done.append(DoneWork(sender, "send", work.stage, work.microbatch, now, stop))
        self._push(stop, "met", receiver, key)

    def _send(self, device: int, work: DeviceWork, to: int, now: float) -> float | None:
        """Send it; returns when the device is free again, None where that is not known yet."""
        kind, stage, batch = work
        receiver, seconds = self.home[to, batch], self.times.sending(kind, stage)
        key = (str(kind), to, batch)
        if receiver == device or not seconds:
            self._push(now, "arrives", receiver, key)
            return now
        if self.times.meet and self.times.meet[min(stage, to)]:
            self.offered[key] = device, work
            if key in self.waiting:
                self._meet(key, now)
            return None
        link = (device, receiver, stage)
        start = max(now, self.link_free[link])
        stop = start + seconds
        self.link_free[link] = stop
        self.done.append(DoneWork(device, "send", stage, batch, start, stop))
        self._push(stop, "arrives", receiver, key)
        return stop if self.times.held else now

    def _free(self, device: int, now: float) -> None:
        self.busy[device] = False
        self.at[device] += 1
        self._begin(device, now)

    def _summed(self) -> Simulated:
        busy = [0.0] * len(self.programs)
        for of in self.done:
            if of.kind != "send":
                busy[of.device] += of.stop_s - of.start_s
        makespan = max((of.stop_s for of in self.done), default=0.0)
        return Simulated(
            makespan,
            tuple(self.done),
            tuple(busy),
            tuple(
                max(most_in_flight(program, stage) for program in self.programs)
                for stage in range(self.schedule.stages)
            ),
        )


def most_in_flight(program: Sequence[DeviceWork], stage: int) -> int:
    """The most forwards of a stage whose backward a device has yet to do; only its order matters."""
    own = [work.kind for work in program if work.stage == stage]
    return max(accumulate((kind == "forward") - (kind == "backward") for kind in own), default=0)


def _homes(schedule: PipelineSchedule) -> dict[tuple[int, int], int]:
    """The device of each (stage, micro-batch). Raises InputError."""
    home: dict[tuple[int, int], int] = {}
    seen: set[DeviceWork] = set()
    for device, program in enumerate(schedule.programs):
        for work in program:
            where = (work.stage, work.microbatch)
            if home.setdefault(where, device) != device:
                raise InputError(
                    f"micro-batch {work.microbatch} is at stage {work.stage} on two devices"
                )
            if work in seen:
                raise InputError(f"the {work.kind} of {where} is there twice")
            seen.add(work)
    for stage in range(schedule.stages):
        for j in range(schedule.microbatches):
            for kind in ("forward", "backward"):
                if (kind, stage, j) not in seen:
                    raise InputError(f"no {kind} of micro-batch {j} at stage {stage}")
    return home


def lower_bound(schedule: PipelineSchedule, times: StageTimes) -> float:
    """Seconds that no order beats: the busiest device, and one micro-batch's way there and back."""
    busiest = max(sum(times.of(work) for work in program) for program in schedule.programs)
    stages = range(schedule.stages)
    return max(busiest, sum(times.forward[s] + times.backward[s] for s in stages))
