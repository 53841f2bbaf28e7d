"""How long this process waited for a core that something else had.

Linux counts it for every thread, in nanoseconds (schedstat: the time it could have run and did not).
What it takes from a repetition is known exactly, where a time alone says only that it was long. What a
hypervisor takes is not in it (see host.py), nor a neighbour on the socket (see reference.py).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# threads that ran for less so far have no work of ours: they wait for it
AT_WORK_S = 0.01
Waited = list[float]  # seconds of each thread so far


class Waits:
    """The waiting of the threads that were at work when it was made.

    Reading costs 2 microseconds a thread; a system that does not count gives NaN.
    """

    def __init__(self) -> None:
        self._files: list[int] = []
        with suppress(OSError):
            for thread in os.listdir("/proc/self/task"):
                # a thread that ends meanwhile has no file any more
                with suppress(OSError):
                    self._open(thread)

    def _open(self, thread: str) -> None:
        file = os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY)
        ran, _ = _counters(file)
        if ran >= AT_WORK_S or int(thread) == os.getpid():
            self._files.append(file)
        else:
            os.close(file)

    def so_far(self) -> Waited:
        """What `since` is to be asked with later."""
        return [_counters(file)[1] for file in self._files]

    def since(self, before: Waited) -> tuple[float, Waited]:
        """Seconds that the thread that waited most has waited since (NaN: nobody counts), and now.

        Of threads that work side by side the one that waits most holds up the others.
        """
        now = self.so_far()
        return max((y - x for x, y in zip(before, now, strict=True)), default=math.nan), now

    def close(self) -> None:
        """Close the files."""
        while self._files:
            os.close(self._files.pop())


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
