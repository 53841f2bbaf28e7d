"""What a direct law of collectives says at any size: between the measured sizes, below and beyond them.

Between two measured sizes it goes straight in log-log. Pieces, other curves and choices among them were
worse than that for some sweeps of the public logs (docs/fitting.md, "Between sizes").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

# a time that falls by less is noise, by more a change of protocol
FALL = 1.05
# share of the largest size's time from which its bytes say how fast the link is
MOSTLY_BYTES = 0.8


class SizeLaw(NamedTuple):
    """Times at rising sizes, and a line at each end.

    Below the first size it goes straight to `start_s` at no bytes. Beyond the last it grows by
    `slope_s_per_byte`, and by no less than `least_s_per_byte` m in all: where the bytes take most of the
    time, more bandwidth than was measured is no prediction.
    """

    sizes: Sequence[int]
    seconds: Sequence[float]
    start_s: float
    slope_s_per_byte: float
    least_s_per_byte: float

    @classmethod
    def through(
        cls, sizes: Sequence[int], seconds: Sequence[float], start_s: float, slope_s_per_byte: float
    ) -> SizeLaw:
        """The law through these times."""
        law = cls(sizes, seconds, min(start_s, seconds[0]), slope_s_per_byte, 0.0)
        per_byte = [t / m for m, t in zip(sizes, seconds, strict=True) if m > 0]
        least = min(per_byte) if law.shows_bytes and per_byte else 0.0
        return law._replace(least_s_per_byte=least)

    @property
    def shows_bytes(self) -> bool:
        """Whether bytes take most of the largest size's time, which then says how fast the link is."""
        return self.slope_s_per_byte * self.sizes[-1] >= MOSTLY_BYTES * self.seconds[-1]

    def at(self, nbytes: float) -> float:
        """Seconds at `nbytes`."""
        first, last = self.sizes[0], self.sizes[-1]
        if nbytes < first:
            return self.start_s + (self.seconds[0] - self.start_s) * nbytes / first
        if nbytes > last:
            line = self.seconds[-1] + self.slope_s_per_byte * (nbytes - last)
            return max(line, self.least_s_per_byte * nbytes)
        return interpolate(nbytes, self.sizes, self.seconds)


def interpolate(nbytes: float, sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Seconds at `nbytes` on the straight lines in log-log through rising sizes, inside their range."""
    above = next((k for k, size in enumerate(sizes) if size >= nbytes), len(sizes) - 1)
    if above == 0 or sizes[above] == nbytes:
        return seconds[above]
    share = math.log(nbytes / sizes[above - 1]) / math.log(sizes[above] / sizes[above - 1])
    start, end = seconds[above - 1], seconds[above]
    if min(start, end) <= 0:  # a law may be nothing at a size
        return (1 - share) * start + share * end
    return math.exp((1 - share) * math.log(start) + share * math.log(end))


def falls(lows: Sequence[float], highs: Sequence[float]) -> bool:
    """Whether some size took longer than a larger one, beyond the intervals of both and by FALL.

    Without that the law is monotone: a noisy sweep falls somewhere by chance.
    """
    least_after = math.inf
    for low, high in zip(reversed(lows), reversed(highs), strict=True):
        if low > FALL * least_after:
            return True
        least_after = min(least_after, high)
    return False


def risen(seconds: Sequence[float]) -> list[float]:
    """The nearest times that do not fall: neighbours that do share their mean.

    Pool adjacent violators (Ayer et al., Annals of Mathematical Statistics 26, 1955).
    """
    blocks: list[tuple[float, int]] = []  # mean, how many
    for value in seconds:
        mean, count = value, 1
        while blocks and blocks[-1][0] > mean:
            before, n = blocks.pop()
            mean, count = (before * n + mean * count) / (n + count), n + count
        blocks.append((mean, count))
    return [mean for mean, count in blocks for _ in range(count)]
