"""The contention records of parameters.json: phi by groups at once (phi multiplies beta)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from calib.fitting.parameters.collectives import CollectiveLaw
from calib.foundation.names import DeviceKind
from calib.foundation.quantities import (
    MAX_RANKS,
    MAX_RATIO,
    Count,
    Factor,
    Nbytes,
    Ranks,
    Ratio,
    Residuals,
    Seconds,
)
from calib.foundation.records import Estimate, RatioEstimate, Record, TimeEstimate, TimePerByte


class ContentionPoint(Record):
    """phi with `groups` at once."""

    groups: Ranks = Field(description="k: groups at once")
    contention: RatioEstimate = Field(description="phi: factor on the time per byte")
    intercept_s: Seconds = Field(description="s")
    analytical: Factor | None = Field(
        default=None, description="what the cluster's links would make of it; null: unknown"
    )
    n: Count = Field(description="repetitions")


class ContentionFit(CollectiveLaw):
    """One operation of one library, device, level, ranks per group and layout under contention.

    t = intercept_s + slope_s_per_byte phi(k) m for k groups at once, m from min_nbytes on. Where the
    baseline is a group of other ranks, intercept, slope and bytes are those of one step of the
    operation (formulas.md).
    """

    device: DeviceKind  # always written
    ranks: int = Field(ge=2, le=MAX_RANKS, description="p: ranks of a group")
    stride: Ranks = Field(description="how far apart the ranks of a group are")
    nodes: Ranks = Field(description="nodes that a group spans")
    baseline: Literal["same layout", "packed", "other ranks"] = Field(
        description="what one group alone was: the same layout, packed ranks, or a group of other "
        "ranks"
    )
    law: str = Field(
        description="of phi: none (1), steps (a value per measured k) or saturation (max(1, k / "
        "capacity))"
    )
    runner_up: str = Field(description="the next best law")
    score_gap: Ratio = Field(description="by how much the runner-up's criterion is larger")
    capacity: RatioEstimate | None = Field(
        default=None, description="flows that fit the link, or null"
    )
    intercept_s: TimeEstimate = Field(description="s")
    slope_s_per_byte: TimePerByte = Field(description="of one group alone, s/B")
    min_nbytes: Nbytes = Field(description="smallest size that was fitted, B")
    max_nbytes: Nbytes = Field(description="largest size that was fitted, B")
    mean_relative_error: Ratio = Field(description="at what was measured")
    residual_quantiles: Residuals
    points: list[ContentionPoint] = Field(
        min_length=2, description="phi by groups at once, in their order"
    )

    @model_validator(mode="after")
    def _rising(self) -> ContentionFit:
        counts = [point.groups for point in self.points]
        if counts[0] != 1 or counts != sorted(set(counts)):
            raise ValueError("points are not in the order of their groups, from 1 on")
        if self.capacity is not None and self.capacity.low < 1 / MAX_RATIO:
            raise ValueError("a link of no capacity carries nothing")
        return self

    def contention(self, groups: float) -> Estimate:
        """phi with its interval for k >= 1 groups at once.

        Between measured k a straight line (steps) or the law (saturation). Beyond the last, K, the
        steps go on as between the last two, and phi(K) and phi(K) k / K (a link that was full with
        K) are in the interval.
        """
        points, last = self.points, self.points[-1]
        above = next((i for i, p in enumerate(points) if p.groups >= groups), len(points) - 1)
        right, left = points[max(above, 1)], points[max(above, 1) - 1]
        share = (groups - left.groups) / (right.groups - left.groups)

        def line(a: float, b: float) -> float:
            return a + (b - a) * share

        value = line(left.contention.value, right.contention.value)
        low = line(left.contention.low, right.contention.low)
        high = line(left.contention.high, right.contention.high)
        if self.capacity is not None:
            value = max(1.0, groups / self.capacity.value)
            low, high = max(1.0, groups / self.capacity.high), max(1.0, groups / self.capacity.low)
        if groups > last.groups:
            low = min(low, last.contention.low)
            high = max(high, last.contention.high * groups / last.groups)
        return Estimate.around(value, low, high)
