"""Which of many times of equal work are too long: by the level that the good ones share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calib.foundation.arrays import Floats

# times of one level are no further apart than this from their neighbours in order
LEVEL_GAP = 1.08
# of the times, what the level of the good ones holds at least: of three nodes with a bad one a third of
# the pairs are good, of four with two bad ones a sixth
LEAST_SHARE = 1 / 6
# and where it is so small, how far below the others it lies: else a few lucky times would be the good
FEW, APART = 1 / 3, 1.25
SIGMAS = 5.0
LEAST_SIGMA = 0.01  # where few times tell no spread


@dataclass(frozen=True)
class Level:
    """What good times share: `log` seconds, and their spread `sigma` in logs."""

    log: float
    sigma: float

    def limit(self, least: float) -> float:
        """Log seconds above which a time is slow, if it is so many times the good ones' at `least`."""
        return self.log + max(math.log(least), SIGMAS * self.sigma)


def good_level(logs: Sequence[float], noise: float = 0.0, few: float = FEW) -> Level:
    """The level of the good ones among log seconds of equal work.

    Times fall into levels where neighbours are further apart than LEVEL_GAP, or 4 times their `noise`
    (the standard deviation of one, in logs). Good is the fastest level that enough of them share, `few`:
    more than half may be slow, as all pairs of a slow node are, but nothing makes a link faster than it
    is. Its spread is 1.4826 MAD. Raises ValueError without a time.
    """
    ordered = np.sort(np.asarray(logs, dtype=float))
    gaps = np.diff(ordered)
    ends = np.flatnonzero(gaps > max(math.log(LEVEL_GAP), 4.0 * noise))
    parts = np.split(ordered, ends + 1)
    chosen = max(parts, key=len)
    for part, above in zip(parts, [*parts[1:], None], strict=True):
        share = len(part) / len(ordered)
        apart = math.inf if above is None else float(above[0] - part[-1])
        if share >= few or (few == FEW and share >= LEAST_SHARE and apart > math.log(APART)):
            chosen = part
            break
    return _level(chosen, noise)


def _level(part: Floats, noise: float) -> Level:
    middle = float(np.median(part))
    spread = 1.4826 * float(np.median(np.abs(part - middle)))
    return Level(middle, max(spread, noise, LEAST_SIGMA))


def visits_noise(times: Sequence[Sequence[float]]) -> float:
    """How far a time is off, in logs: the pooled standard deviation of visits, of the median of each.

    0 where nothing was timed twice.
    """
    logs = [np.log([each for each in visits if each > 0]) for visits in times]
    several = [row for row in logs if len(row) > 1]
    if not several:
        return 0.0
    squares = sum(float(np.var(row, ddof=1)) * (len(row) - 1) for row in several)
    variance = squares / sum(len(row) - 1 for row in several)
    return math.sqrt(variance / (sum(map(len, several)) / len(several)))
