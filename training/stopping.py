"""When a run has enough iterations, and how many it runs between checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from calib.foundation.errors import InputError
from calib.foundation.statistics import median, serial_half_width

# iterations, and seconds, between two gatherings of the times: the most that a kill loses
BLOCK = 10
BLOCK_SECONDS = 2.0

Reason = Literal["", "iterations", "precision"]


@dataclass(frozen=True)
class Stopping:
    """Stops after `iterations`, or as soon as the median is known to `precision` (0.01 is +-1%).

    The interval is that of the median of a series that may be autocorrelated: never narrower than
    calib.foundation.statistics.median_interval, and none under 6 iterations.
    """

    iterations: int = 100
    precision: float | None = None

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise InputError("iterations must be at least 1")
        if self.precision is not None and not 0.0 < self.precision < 1.0:
            raise InputError("the precision must be over 0% and under 100% of the median")

    def reason(self, seconds: Sequence[float]) -> Reason:
        """Why to stop after iterations of these seconds, or ""."""
        if self.precision is not None and serial_half_width(seconds) <= self.precision:
            return "precision"
        return "iterations" if len(seconds) >= self.iterations else ""

    def block(self, seconds: Sequence[float]) -> int:
        """How many iterations to run before the ranks look again."""
        left = self.iterations - len(seconds)
        return max(1, min(BLOCK, left, int(BLOCK_SECONDS / max(median(seconds), 1e-9))))
