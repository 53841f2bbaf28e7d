"""The two ends of a sweep, as a reader means alpha and beta.

The time of the smallest sizes without their bytes, and the slope at the largest ones. One line through
all sizes is neither: with relative errors it says 1.1 ns/B of a link on which 64 MiB take 27.8.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calib.fitting.estimators.base import interval
from calib.fitting.estimators.collectives.pieces import lines
from calib.foundation.arrays import Floats
from calib.foundation.records import Estimate

REACH = 4.0  # an end has the sizes within this factor, but two at least
NARROW = 2.0  # what half the reach says is in the interval: it shows a bend inside the end
ROUNDED = 1.01  # a tool's rounding of sizes
# of the largest size's time, that its bytes take at least. Public logs, cut off where the time had not
# grown within REACH: it was 1.2%, and with 3% sizes 4 to 1000 times as large were predicted best
LEAST_SHARE = 0.03


def end_estimates(
    m: Floats, t: Floats, sets: Sequence[Floats], launches: Floats
) -> tuple[Estimate, Estimate]:
    """(seconds at no bytes, s/B at the largest sizes) through medians t [n] of rising sizes m [n].

    95% intervals from drawn times [b, n] of each of `sets` and from launches by themselves [l, n].
    """
    both = zip(
        *(ends(m, t, times) for times in (t[None], launches, *sets)),
        ends(m, t, t[None], NARROW),
        strict=True,
    )
    found = []
    for (value,), own, *draws, (narrow,) in both:
        lows, highs = zip(*(interval(value, of, own.tolist()) for of in draws), strict=True)
        found.append(Estimate.around(float(value), min(*lows, narrow), max(*highs, narrow)))
    return found[0], found[1]


def ends(m: Floats, t: Floats, times: Floats, reach: float = REACH) -> tuple[Floats, Floats]:
    """(intercepts [b] of lines through the smallest sizes, slopes [b] of lines through the largest).

    By least squares relative to t [n], through b sets of times [b, n]. Neither is negative.
    """
    few = max(2, int((m <= reach * ROUNDED * m[0]).sum()))
    many = max(2, int((m >= m[-1] / (reach * ROUNDED)).sum()))
    weight = 1.0 / t**2
    intercepts, _ = lines(m[:few], times[:, :few], weight[:few], True)
    _, slopes = lines(m[-many:], times[:, -many:], weight[-many:], False)
    return intercepts, np.maximum(slopes, LEAST_SHARE * times[:, -1] / m[-1])
