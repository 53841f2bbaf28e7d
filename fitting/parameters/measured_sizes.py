"""Collectives as measured, size by size: the median time, the law's, and nccl-tests' bandwidths."""

from __future__ import annotations

from pydantic import Field

from calib.fitting.parameters.collectives import CollectiveFit, CollectiveLaw
from calib.foundation.collectives import algorithm_bandwidth, bus_bandwidth
from calib.foundation.quantities import Count, CountOrNone, KnownRanks, Ranks
from calib.foundation.records import Estimate, TimeEstimate


class MeasuredSize(CollectiveLaw):
    """One measured size of a collective: SI units, so a GB/s of nccl-tests is 1e9 B/s."""

    ranks: Ranks = Field(description="p: ranks of a group")
    nodes: KnownRanks = Field(description="that a group spans; 0 unknown")
    nbytes: Count = Field(description="size of the whole buffer, B")
    seconds: TimeEstimate = Field(description="median time of a call, s")
    n: Count = Field(description="repetitions")
    law_seconds: float = Field(
        description="by the pieces; where there are none, by the line of both ends, s"
    )
    estimate_s: float | None = Field(description="as NCCL itself expects it, s; null: unknown")
    channels: dict[str, CountOrNone] = Field(
        description="algorithm/protocol that NCCL took -> channels of a call; empty: unknown"
    )
    outlier: bool = Field(description="whether no law explains this size")
    algbw_bytes_per_s: Estimate | None = Field(
        description="nbytes / seconds, B/s; null where the time may be nothing"
    )
    busbw_bytes_per_s: Estimate | None = Field(
        description="algbw times nccl-tests' factor, B/s; null where it has none, or algbw is null"
    )


def measured_sizes(fit: CollectiveFit) -> list[MeasuredSize]:
    """The measured sizes of one law, the smallest first."""
    outliers = set(fit.outliers_nbytes)
    return [
        MeasuredSize(
            operation=fit.operation,
            library=fit.library,
            device=fit.device,
            level=fit.level,
            ranks=fit.ranks,
            nodes=fit.nodes,
            nbytes=point.nbytes,
            seconds=point.seconds,
            n=point.n,
            law_seconds=fit.described_seconds(point.nbytes),
            estimate_s=point.estimate_s,
            channels=point.channels,
            outlier=point.nbytes in outliers,
            algbw_bytes_per_s=algorithm_bandwidth(point.nbytes, point.seconds),
            busbw_bytes_per_s=bus_bandwidth(fit.operation, fit.ranks, point.nbytes, point.seconds),
        )
        for point in fit.points
    ]
