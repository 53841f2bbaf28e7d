"""The timer's resolution and overhead, and how many calls one timing must hold."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from time import perf_counter

from calib.foundation.statistics import median

# a timing holds at least so many overheads of the clock, and steps of it: 2%, and 1%, of it at most
OVERHEADS, STEPS = 50, 100
MAX_CALLS = 10_000


@dataclass(frozen=True)
class Timer:
    """Measured properties of time.perf_counter on this machine, in seconds."""

    resolution_s: float
    overhead_s: float

    @property
    def shortest_timing_s(self) -> float:
        """The shortest interval that this clock times well."""
        return max(STEPS * self.resolution_s, OVERHEADS * self.overhead_s)

    def calls_for(self, seconds_per_call: float) -> int:
        """Calls that one timing must hold for a call of that length."""
        if seconds_per_call <= 0:
            return MAX_CALLS
        return max(1, min(MAX_CALLS, math.ceil(self.shortest_timing_s / seconds_per_call)))

    def as_dict(self) -> dict[str, float]:
        """For the manifest."""
        return asdict(self)


def measure_timer(n: int = 2000) -> Timer:
    """Resolution: the smallest step seen; overhead: the median of two readings in a row."""
    steps = []
    for _ in range(n):
        start = perf_counter()
        steps.append(perf_counter() - start)
    positive = [step for step in steps if step > 0]
    return Timer(resolution_s=min(positive, default=1e-9), overhead_s=median(steps))
