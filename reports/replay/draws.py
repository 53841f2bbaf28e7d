"""Draws of what is not known for sure, evenly spread; weighted medians and intervals of them.

References
----------
McKay, Beckman and Conover, Technometrics 21 (1979), 239-245 (Latin hypercubes).
"""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

import numpy as np

from calib.foundation.arrays import Floats
from calib.foundation.records import Z_95, Estimate

COUNT = 1 << 15
SEED = 25
ENDS = (0.5, 0.05, 0.95)  # median, and a 90% interval
LEAST = 1e-12
FURTHEST = math.log(30.0)  # an end of an interval may be 0


def _levels() -> Floats:
    return (np.arange(COUNT) + 0.5) / COUNT


@cache
def _normal() -> Floats:
    """The standard normal's quantiles at these levels."""
    return np.array([NormalDist().inv_cdf(level) for level in _levels().tolist()])


class LatinHypercube:
    """Draws of independent quantities [COUNT]: each as its distribution has it, in a random order."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(SEED)

    def uniform(self) -> Floats:
        """Between 0 and 1."""
        return self._random.permutation(_levels())

    def normal(self) -> Floats:
        """Of mean 0 and variance 1."""
        return self._random.permutation(_normal())

    def around(self, median: float, deviation: float) -> Floats:
        """Log-normal; `deviation` is of the logarithm."""
        return median * np.exp(deviation * self.normal())

    @staticmethod
    def skewed(of: Estimate, normal: Floats) -> Floats:
        """Log-normal below and above the value, as the ends of its 95% interval say."""
        value = max(of.value, LEAST)
        below, above = (
            min(abs(math.log(max(end, LEAST) / value)), FURTHEST) / Z_95
            for end in (of.low, of.high)
        )
        return of.value * np.exp(np.where(normal < 0, below, above) * normal)


def estimate(drawn: Floats, weights: Floats) -> Estimate:
    """The median and the 90% interval of draws [n] with weights [n]."""
    order = np.argsort(drawn)
    shares = np.cumsum(weights[order])
    shares = (shares - weights[order] / 2) / shares[-1]
    value, low, high = (float(x) for x in np.interp(ENDS, shares, drawn[order]))
    return Estimate(value=value, low=min(low, value), high=max(high, value))
