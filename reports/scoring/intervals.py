"""Predicted intervals against what was measured: coverage, width, and the interval score.

Coverage alone rewards wide intervals, width alone narrow ones. The interval score is a proper scoring
rule: on average nobody does better than by the quantiles that they believe in.

References
----------
T. Gneiting and A. E. Raftery, Strictly Proper Scoring Rules, Prediction, and Estimation, Journal of the
American Statistical Association 102 (2007), equation 43.
N. I. Bosse et al., Scoring epidemiological forecasts on transformed scales, PLOS Computational
Biology 19 (2023): of logarithms the score is as proper, because the quantiles of a logarithm are the
logarithms of the quantiles. Divided by the measured time it would not be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Annotated

from pydantic import Field

from calib.foundation.records import Estimate, Record
from calib.foundation.statistics import binomial_at_most
from calib.reports.scoring.accuracy import Accuracy

WIDE, NARROW = 0.95, 0.90  # what the intervals say
# A night is judged every day: at 5%, one of twenty good ones would be wrong by chance alone. And works
# of one model share the errors of its layers: misses come together more often than the binomial has it.
CHANCE = 0.01
LEAST_WORKS = 5  # fewer say little: two misses of three would do, and they may have one cause
Share = Annotated[float, Field(ge=0, le=1)]


class IntervalSummary(Record):
    """Intervals of 95 and of 90% against measured medians: means over points."""

    coverage: Share = Field(description="share of measured medians inside the 95% interval")
    coverage_90: Share = Field(description="the same of the 90% interval")
    half_width: float = Field(
        ge=0, description="half-width of the 95% interval over the predicted time"
    )
    half_width_90: float = Field(ge=0, description="the same of the 90% interval")
    score: float | None = Field(
        description="interval score of the 95% interval, of natural logarithms of times; 0 is best; "
        "null: an interval reaches down to 0"
    )
    score_90: float | None = Field(description="the same of the 90% interval")
    works: int = Field(
        ge=1, description="different works: of each the newest run, as others share its prediction"
    )
    works_held: int = Field(ge=0, description="those whose median lies inside the 95% interval")

    @property
    def too_few(self) -> bool:
        """Whether so few intervals hold what was measured that chance does not explain it.

        The number of works held is binomial where intervals are right and errors independent. False
        where so few or fewer have a probability of CHANCE or more, or there are under LEAST_WORKS.
        """
        by_chance = binomial_at_most(self.works_held, self.works, WIDE)
        return self.works >= LEAST_WORKS and by_chance < CHANCE


def interval_score(low: float, high: float, value: float, confidence: float = WIDE) -> float:
    """The interval score of (`low`, `high`), s, where `value`, s, was measured; smaller is better.

    Of natural logarithms: the width, and 2 / (1 - confidence) times how far the value lies outside. An
    interval of +-10% that holds the value has 0.2. Infinite for an interval that reaches down to 0.
    """
    if low <= 0 or value <= 0:
        return math.inf
    bottom, top, at = math.log(low), math.log(high), math.log(value)
    outside = max(bottom - at, at - top, 0.0)
    return top - bottom + 2.0 / (1.0 - confidence) * outside


def interval_summary(points: Sequence[Accuracy], at_speed: bool = False) -> IntervalSummary | None:
    """The means over these points; None where there is none.

    `at_speed`: with the measured times at the calibration's speed, where these are known.
    """
    if not points:
        return None
    pairs = [of.compared(at_speed) for of in points]
    wide = [(of.predicted.interval(WIDE), of) for of in pairs]
    narrow = [(of.predicted.interval(NARROW), of) for of in pairs]
    newest = {of.work: of for of in sorted(points, key=lambda of: of.started)}
    return IntervalSummary(
        coverage=fmean(of.covered for of in pairs),
        coverage_90=fmean(low <= of.measured.value <= high for (low, high), of in narrow),
        half_width=fmean(_half_width(*ends, of.predicted) for ends, of in wide),
        half_width_90=fmean(_half_width(*ends, of.predicted) for ends, of in narrow),
        score=_mean(interval_score(*ends, of.measured.value, WIDE) for ends, of in wide),
        score_90=_mean(interval_score(*ends, of.measured.value, NARROW) for ends, of in narrow),
        works=len(newest),
        works_held=sum(of.compared(at_speed).covered for of in newest.values()),
    )


def _half_width(low: float, high: float, predicted: Estimate) -> float:
    return (high - low) / (2.0 * predicted.value) if predicted.value > 0 else 0.0


def _mean(scores: Iterable[float]) -> float | None:
    mean = fmean(scores)
    return mean if math.isfinite(mean) else None
