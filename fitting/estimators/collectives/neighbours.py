"""What the neighbours of a size say of it: times left out, and slow outliers."""

from __future__ import annotations

import numpy as np

from calib.foundation.arrays import Floats, Mask

# the largest step between neighbours that a change of protocol made in the public logs is 4.5 up (with
# sizes doubling) and 3.7 down; a spike has both, and is over these in both
SPIKE = 4.0
DROP = 2.0
MOST = 0.2  # share of the sizes; where more are disturbed, nothing says which are right
LEAST = 5  # sizes, to tell an outlier from a law


def between_neighbours(m: Floats, t: Floats) -> Floats:
    """Seconds of the inner sizes [n-2] of m [n], rising: straight in log-log from their neighbours."""
    between: Floats = np.exp(_between(np.log(m), np.log(t)))
    return between


def slow_outliers(m: Floats, t: Floats) -> Mask:
    """Which of the medians t [n] at rising sizes m [n] are slow outliers.

    Inside: over SPIKE times the straight line in log-log between its neighbours, and falling by DROP to
    the next. First: falling by SPIKE to the next. Last: SPIKE times more than growth in proportion to
    the bytes explains. One by one, the worst first, as a neighbour of an outlier looks like none. Where
    sizes that are left lie as far off, all are as noisy, and none is an outlier.
    """
    kept = np.ones(len(m), dtype=bool)
    m, t = np.log(m), np.log(t)
    most = int(MOST * len(m)) if len(m) >= LEAST else 0
    for _ in range(most):
        where = np.flatnonzero(kept)
        excess = _excess(m[where], t[where])
        worst = int(np.argmax(excess))
        if excess[worst] <= np.log(SPIKE):
            break
        kept[where[worst]] = False
    off = t[kept][1:-1] - _between(m[kept], t[kept])
    if len(off) and np.abs(off).max() > np.log(SPIKE):
        kept[:] = True
    return ~kept


def _between(m: Floats, t: Floats) -> Floats:
    """Straight from neighbour to neighbour [n-2]."""
    share = (m[1:-1] - m[:-2]) / (m[2:] - m[:-2])
    result: Floats = (1 - share) * t[:-2] + share * t[2:]
    return result


def _excess(m: Floats, t: Floats) -> Floats:
    """log of how many times too slow each is [n]; zero where it does not fall as a spike does."""
    result = np.zeros(len(t))
    falls = t[1:-1] - t[2:] > np.log(DROP)
    result[1:-1] = np.where(falls, t[1:-1] - _between(m, t), 0.0)
    result[0] = t[0] - t[1]
    result[-1] = t[-1] - t[-2] - (m[-1] - m[-2])
    return result
