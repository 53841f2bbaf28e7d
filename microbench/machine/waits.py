"""How long this process waited for a core that something else had.

Linux counts it for every thread, in nanoseconds (schedstat: the time it could have run and did not).
What it takes from a repetition is known exactly, where a time alone says only that it was long. What a
hypervisor takes is not in it (see host.py), nor a neighbour on the socket (see reference.py).
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import NamedTuple

# threads that ran for less so far have no work of ours: they wait for it
AT_WORK_S = 0.01


class Waited(NamedTuple):
    """Seconds so far: on the wall, that this thread waited, that each other one did."""

    wall: float
    own: float
    others: tuple[float, ...]


class Waits:
    """The waiting of the thread that makes it, and of its pool: those that are at work for it then.

    Where torch computes in one thread there is no pool. Another thread then sends, beside the work of
    this one: what it waits for their common core is not lost.

    Reading costs 2 microseconds a thread; a system that does not count gives NaN.
    """

    def __init__(self) -> None:
        self._own: list[int] = []  # its file, where the system has one
        self._others: list[int] = []
        with suppress(OSError):
            own = [str(threading.get_native_id())]
            for thread in os.listdir("/proc/self/task") if threads_here() > 1 else own:
                # a thread that ends meanwhile has no file any more
                with suppress(OSError):
                    self._open(int(thread))

    def _open(self, thread: int) -> None:
        file = os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY)
        ran, _ = _counters(file)
        if thread == threading.get_native_id():
            self._own.append(file)
        elif ran >= AT_WORK_S:
            self._others.append(file)
        else:
            os.close(file)

    def so_far(self) -> Waited:
        """What `since` is to be asked with later."""
        own = _counters(self._own[0])[1] if self._own else math.nan
        return Waited(perf_counter(), own, tuple(_counters(file)[1] for file in self._others))

    def since(self, before: Waited) -> tuple[float, Waited]:
        """Seconds that were lost by waiting since (NaN: nobody counts), and now.

        What this thread waited, and what the one of the others did that waited most: a pool of threads
        is as late as its last one. In training on two threads either second is one that is lost
        (docs/results/2026-11-27-disturbed.md).
        """
        now = self.so_far()
        # a thread that has ended is back at 0
        others = max((y - x for x, y in zip(before.others, now.others, strict=True)), default=0.0)
        return min(now.own - before.own + max(others, 0.0), now.wall - before.wall), now

    def close(self) -> None:
        """Close the files."""
        for files in (self._own, self._others):
            while files:
                os.close(files.pop())


def threads_here() -> int:
    """How many threads torch computes in; one where it is not loaded."""
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch is not None else 1


def _counters(file: int) -> tuple[float, float]:
    """Seconds that a thread ran and waited; of one that has ended, as if it had done neither."""
    try:
        ran, waited = os.pread(file, 64, 0).split()[:2]
    except (OSError, ValueError):
        return 0.0, 0.0
    return int(ran) / 1e9, int(waited) / 1e9


@contextmanager
def waits_here() -> Iterator[Waits]:
    """The waits of the threads that are at work now."""
    waits = Waits()
    try:
        yield waits
    finally:
        waits.close()
