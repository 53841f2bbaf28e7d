"""Which other processes use the CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic

import psutil

# of the time: a pass over thousands of processes takes a tenth of a second
SHARE = 0.02
# the system's word on when a process started, which moves with its clock
SAME_S = 5.0


@dataclass
class Process:
    """One that was seen."""

    pid: int
    name: str
    started_s: float
    before_s: float
    """CPU seconds when it was first seen."""
    latest_s: float
    """The same when it was last seen."""

    @property
    def used_s(self) -> float:
        """CPU seconds meanwhile."""
        return self.latest_s - self.before_s


class Processes:
    """CPU seconds of all other processes since this was made.

    What starts and ends between two passes is not seen.
    """

    def __init__(self) -> None:
        self._running = {process.pid: process for process in _now()}
        self._ended: list[Process] = []
        self._next_s = monotonic()

    def look(self, last: bool = False) -> None:
        """Pass over all processes, unless the last pass took SHARE of the time since; `last` always."""
        start = monotonic()
        if not last and start < self._next_s:
            return
        for now in _now():
            known = self._running.get(now.pid)
            if known is not None and _same(known, now):
                known.name, known.latest_s = now.name, now.latest_s
                continue
            if known is not None:
                self._ended.append(known)
            now.before_s = 0.0  # it has started since
            self._running[now.pid] = now
        self._next_s = start + (monotonic() - start) / SHARE

    def used(self) -> list[Process]:
        """Those that used any, most first."""
        every = [*self._ended, *self._running.values()]
        most = sorted(every, key=lambda process: (-process.used_s, process.pid))
        return [process for process in most if process.used_s > 0.0]


def _same(known: Process, now: Process) -> bool:
    """Whether it is the same process, and not another with its pid."""
    return abs(now.started_s - known.started_s) < SAME_S and now.latest_s >= known.latest_s


def _now() -> Iterator[Process]:
    """All processes but this one."""
    for process in psutil.process_iter(["pid", "create_time", "name", "cpu_times"]):
        of = process.info
        if of["pid"] != os.getpid() and of["cpu_times"] is not None:
            seconds = of["cpu_times"].user + of["cpu_times"].system
            yield Process(of["pid"], of["name"] or "?", of["create_time"] or 0.0, seconds, seconds)
