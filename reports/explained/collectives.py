"""Traced collectives beside what the calibrated machine takes for them, and in larger buckets."""

from __future__ import annotations

import math

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from calib.foundation.errors import InputError, MissingParameter
from calib.foundation.records import Estimate, Record
from calib.foundation.words import bytes_words
from calib.oracle.cost import Cost, counted
from calib.oracle.costs.asked import Collectives
from calib.reports.explained.changes import Change, gain_of
from calib.reports.explained.lines import ExplainedLine, line_of, plain
from calib.training.traces.faults import BUCKET_NBYTES
from calib.training.traces.run import TracedRun


class ExplainedCollective(Record):
    """Collectives that are alike; the line's seconds are of one."""

    operation: str
    nbytes: NonNegativeInt
    ranks: PositiveInt
    calls: NonNegativeFloat
    line: ExplainedLine


def collectives_beside(run: TracedRun, asked: Collectives) -> list[ExplainedCollective]:
    """Those whose own time the traces tell and that were calibrated; what differs most comes first."""
    found = []
    for one in run.collectives:
        if not one.nbytes or not one.size or one.size < 2 or one.with_waits:
            continue
        cost = _expected(run, asked, one.operation, one.nbytes, one.size)
        if cost is None:
            continue
        line = line_of(one.operation, one.own, plain(cost.record()))
        found.append(
            ExplainedCollective(
                operation=one.operation,
                nbytes=one.nbytes,
                ranks=one.size,
                calls=one.calls,
                line=line,
            )
        )
    return sorted(found, key=lambda one: -abs(one.line.difference.value) * one.calls)


def larger_buckets(run: TracedRun, asked: Collectives) -> list[Change]:
    """The gradients in PyTorch's own buckets, where the run sends smaller ones: less on the wire."""
    sums, p = run.configuration.buckets, run.configuration.ranks
    if sums is None or run.configuration.strategy != "data" or p < 2:
        return []
    count = max(math.ceil(sums.nbytes / BUCKET_NBYTES), 1)
    if sums.count <= 2 * count:
        return []
    sizes = [
        (one.nbytes, one.calls)
        for one in run.collectives
        if one.operation == sums.operation and one.nbytes and "float" in one.dtype
    ]
    costs = [(_expected(run, asked, sums.operation, n, p), calls) for n, calls in sizes]
    large = _expected(run, asked, sums.operation, math.ceil(sums.nbytes / count), p)
    known: list[tuple[Cost, float]] = [(cost, calls) for cost, calls in costs if cost is not None]
    if large is None or len(known) < len(costs):
        return []
    now, other = counted(known), large.times(count)
    if other.seconds >= now.seconds:
        return []
    what = f"buckets of {bytes_words(BUCKET_NBYTES)} (now {sums.count} messages): of the wire"
    predicted = Estimate(value=other.seconds, low=other.low, high=other.high)
    return [Change(what=what, gain=gain_of(now, other), predicted=predicted)]


def _expected(
    run: TracedRun, asked: Collectives, operation: str, nbytes: int, ranks: int
) -> Cost | None:
    """What the calibrated machine takes; None where it has nothing like it."""
    nodes = min(len(run.configuration.hosts) or 1, ranks)
    try:
        return asked.time(operation, nbytes, asked.shape(ranks, nodes)).cost
    except (InputError, MissingParameter):
        return None
