"""Looks at the machine between what is timed: in a measurement and in a training."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from statistics import fmean
from time import perf_counter, time
from typing import Any

from calib.microbench.control import Control
from calib.microbench.device import CPU, Device
from calib.microbench.disturbance import disturbances
from calib.microbench.machine.host_looks import HostLooks
from calib.microbench.machine.waits import Waits
from calib.microbench.records.looks import Look
from calib.microbench.reference import message_s, references_of

# of the time, what looks may take, what the reference of arithmetic between them, and what messages: on
# a network that others fill one may take a second
SHARE, TICKS, MESSAGES = 0.008, 0.008, 0.004
LEAST_WINDOW_S = 0.2
FEWEST_MESSAGES = 3
LATEST_LOOKS = 300  # by which it is judged what is usual
MOST_GOES = 20  # of a reference in one look: its median needs no more
COUNTED = ("others", "stolen", "switches", "faults", "running", "mhz", "resent", "congested")


class Watch:
    """Takes looks on all ranks together; `looks` are those so far, the same on all of them.

    A look lets every rank run the references as long as SHARE of the time since the last look holds.
    Speed changes faster than that: `tick`, between any two pieces of work, runs the one that needs no
    memory on this rank alone, and the next look has the mean.
    Who has sent messages says so in `sent`: what the network carried meanwhile is then not of others.

    Parameters
    ----------
    control
        Connects the ranks.
    earlier
        Looks of earlier launches, on rank 0, by which it is judged what is usual.
    device
        What this rank computes on.
    """

    def __init__(
        self, control: Control, earlier: Sequence[Look] = (), device: Device = CPU
    ) -> None:
        self.looks: list[Look] = []
        self.spent_s = 0.0
        self.sent = False
        self._control, self._earlier, self._device = control, list(earlier), device
        self._ticks: list[float] = []
        self._ticked_s = 0.0
        uuid = device.identity and device.identity.uuid
        pids = control.allgather_object([os.getpid(), uuid])
        self._ours = [pid for pid, other in pids if uuid is not None and other == uuid]
        self._reference = references_of(device)
        self._waits = Waits()
        self._host = HostLooks(control)
        self._cost_s = self._tick_s = 0.0
        self._begin()
        self._messaged_s = self._message_s = 0.0
        start = perf_counter()
        self._references(1)
        self._cost_s = perf_counter() - start
        self._ticks.clear()

    def tick(self) -> None:
        """Run the reference of arithmetic once, on this rank, where TICKS of the time hold it."""
        start = perf_counter()
        if start - self._ticked_s > self._tick_s / TICKS:
            self._ticks.append(self._reference.arithmetic_s())
            self._ticked_s = perf_counter()
            self._tick_s = self._ticked_s - start
            self.spent_s += self._tick_s

    def due(self) -> bool:
        """Whether SHARE of the time since the last look holds one more, on this rank's clock."""
        passed = perf_counter() - self._started_s
        return passed > max(LEAST_WINDOW_S, self._cost_s / SHARE)

    def look(self) -> Look:
        """Look at the machine. Collective."""
        begun = perf_counter()
        window_s = begun - self._started_s
        goes = int(window_s * SHARE / max(self._cost_s, 1e-9))
        goes = self._control.broadcast_object(max(1, min(goes, MOST_GOES)))
        counted = self._host.look()
        mine: dict[str, Any] = {name: getattr(counted, name) for name in COUNTED}
        mine["foreign"] = None if self.sent else counted.network
        mine["gpu_processes"] = self._device.telemetry(self._ours).get("other_processes")
        mine |= {"waited": min(self._waited / window_s, 1.0), **self._references(goes)}
        before = perf_counter()
        mine["message_s"] = self._message()
        apart_s = perf_counter() - before
        worst = _worst(self._control.allgather_object(mine))
        look = Look(unix_s=time(), window_s=window_s, **worst)
        # rank 0 alone has seen the launches before
        seen = disturbances([*self._earlier, *self.looks, look][-LATEST_LOOKS:])
        told = look.model_copy(update={"disturbed": seen}).model_dump()
        self.looks.append(Look.model_validate(self._control.broadcast_object(told)))
        took = perf_counter() - begun
        self.spent_s += took
        self._cost_s = (took - apart_s) / goes
        self._begin()
        return self.looks[-1]

    def _begin(self) -> None:
        self._waits.close()
        self._waits = Waits()  # threads come and go
        self._so_far = self._waits.so_far()
        self._ticks, self.sent = [], False
        self._started_s = perf_counter()

    @property
    def _waited(self) -> float:
        return self._waits.since(self._so_far)[0]

    def _references(self, goes: int) -> dict[str, float | None]:
        """The mean of each reference over so many goes of all ranks at once. Collective."""
        arithmetic, memory, threads = self._ticks, list[float](), list[float]()
        for _ in range(goes):
            self._control.barrier()
            arithmetic.append(self._reference.arithmetic_s())
            memory.append(self._reference.memory_s())
            if (seconds := self._reference.threads_s()) is not None:
                threads.append(seconds)
        of = {"arithmetic_s": arithmetic, "memory_s": memory, "threads_s": threads}
        return {name: middle_mean(times) if times else None for name, times in of.items()}

    def _message(self) -> float | None:
        """The shortest of a few messages, where MESSAGES of the time hold them. Collective.

        A rank that waits for a core delays a message, too: the shortest shows the network.
        """
        start = perf_counter()
        passed_s = start - self._messaged_s
        if not self._control.broadcast_object(passed_s > self._message_s / MESSAGES):
            return None
        sent = [message_s(self._control) for _ in range(FEWEST_MESSAGES)]
        self._messaged_s = perf_counter()
        self._message_s = self._messaged_s - start
        return min(each for each in sent if each is not None) if sent[0] is not None else None


def middle_mean(values: Sequence[float]) -> float:
    """The mean of the values without a tenth at either end.

    A core has two speeds, with and without a neighbour on its other thread, and work takes the mean.
    """
    ordered, cut = sorted(values), len(values) // 10
    return fmean(ordered[cut : len(ordered) - cut])


def _worst(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The largest value of each, of the ranks that know it; of clocks the smallest."""
    names = dict.fromkeys(name for rank in found for name in rank)
    known = {
        name: [
            rank[name] for rank in found if rank.get(name) is not None and math.isfinite(rank[name])
        ]
        for name in names
    }
    return {
        name: (min if name == "mhz" else max)(values) for name, values in known.items() if values
    }
