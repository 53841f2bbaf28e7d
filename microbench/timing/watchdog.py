"""Notices a rank that makes no progress: `beat` is its heartbeat, a thread watches it.

A rank that waits for a dead or hanging one waits inside its library for ever. So every rank has a
thread that counts the time since the last beat, says where the rank stands when that is too long,
and ends it, which ends the launch. The driver hears who spoke and who did not (calib/driver/ranks.py).
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from types import FrameType
from typing import Any

HANG_SECONDS = 25.0
HANG_VARIABLE = "CALIB_HANG_SECONDS"
# before its first beat a rank loads libraries, perhaps from a slow file system
START_FACTOR = 10.0
ALIVE_SECONDS = 5.0
# all ranks notice at about the same time; the first must not end the others before they speak
LAST_WORDS_SECONDS = 1.5
STUCK_STATUS = 3
OURS = ("microbench", "training", "calib")

ProgressReport = Callable[[dict[str, Any]], None]


class RankProgress:
    """How often this rank has said that it goes on, when last, and whether it may be silent."""

    def __init__(self) -> None:
        self.count = 0
        self.last = monotonic()
        self.idle = False


PROGRESS = RankProgress()


def beat() -> None:
    """Say that this rank goes on."""
    PROGRESS.count += 1
    PROGRESS.last = monotonic()


@contextmanager
def idle() -> Iterator[None]:
    """This rank only waits for others: its silence is not a hang, theirs would be.

    For ranks without any part in a block; for those with one, waiting at its end counts.
    """
    beat()
    PROGRESS.idle = True
    try:
        yield
    finally:
        PROGRESS.idle = False
        beat()


def hang_seconds() -> float:
    """Seconds without progress after which a rank is stuck: of the driver, or HANG_SECONDS."""
    return float(os.environ.get(HANG_VARIABLE, HANG_SECONDS))


def end_process(status: int) -> None:
    """End this rank at once: its main thread may be anywhere, so nothing is tidied up."""
    os._exit(status)


class Watchdog:
    """The thread. Events: {"event": "alive"} of rank 0, and of every rank "idle" and "stuck".

    `stuck` holds `rank`, `silent_s` and `where`, the function that its main thread is in.
    """

    def __init__(
        self,
        rank: int,
        report: ProgressReport,
        limit_s: float,
        end: Callable[[int], None] = end_process,
    ) -> None:
        self._rank, self._report, self._limit_s, self._end = rank, report, limit_s, end
        self._watched = threading.get_ident()
        self._begun_at = PROGRESS.count
        self._said_idle_at = -1
        self._next_alive = monotonic() if rank == 0 else float("inf")
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch the thread that made this object."""
        PROGRESS.last = monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Watch no more."""
        self._stopped.set()
        self._thread.join()

    def _due(self) -> float:
        """When the silence becomes too long; an idle rank speaks once and goes on waiting."""
        if PROGRESS.idle and self._said_idle_at == PROGRESS.count:
            return monotonic() + self._limit_s
        first = PROGRESS.count == self._begun_at
        return PROGRESS.last + self._limit_s * (START_FACTOR if first else 1.0)

    def _run(self) -> None:
        while True:
            # it sleeps as long as it may: a thread that wakes disturbs what is being timed
            before = monotonic()
            pause = max(0.0, min(self._due(), self._next_alive, before + self._limit_s) - before)
            if self._stopped.wait(pause):
                return
            now = monotonic()
            if now - before > pause + max(self._limit_s / 2, 1.0):
                PROGRESS.last = now  # this process was itself stopped: its silence says nothing
                continue
            if now >= self._next_alive:
                self._next_alive = now + ALIVE_SECONDS
                self._report({"event": "alive"})
            if now >= self._due():
                if not PROGRESS.idle:
                    self._give_up(now - PROGRESS.last)
                    return
                self._said_idle_at = PROGRESS.count
                self._report({"event": "idle", "rank": self._rank})

    def _give_up(self, silent_s: float) -> None:
        frame = sys._current_frames().get(self._watched)
        traceback.print_stack(frame)  # into the log of the ranks
        self._report(
            {"event": "stuck", "rank": self._rank, "silent_s": silent_s, "where": place_of(frame)}
        )
        sleep(LAST_WORDS_SECONDS)
        self._end(STUCK_STATUS)


def place_of(frame: FrameType | None) -> str:
    """The innermost function of this program that a thread is in, else the innermost of all."""
    inner = frame
    while frame is not None and _package(frame) not in OURS:
        frame = frame.f_back
    frame = frame or inner
    if frame is None:
        return "unknown"
    return f"{frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


@contextmanager
def watching(rank: int, report: ProgressReport, limit_s: float | None = None) -> Iterator[None]:
    """Watch this rank while it is in the block; `limit_s` is by default hang_seconds().

    Ranks that are threads (tests) are not watched: to end one is to end all, and the tests.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    watchdog = Watchdog(rank, report, hang_seconds() if limit_s is None else limit_s)
    watchdog.start()
    try:
        yield
    finally:
        watchdog.stop()
