"""What an execution trace sends: it has no times, or those of one run; a calibrated machine has."""

from __future__ import annotations

from collections import defaultdict

from pydantic import NonNegativeInt, PositiveInt

from calib.foundation.errors import InputError, MissingParameter
from calib.foundation.records import Estimate, Record
from calib.oracle.costs.asked import Collectives
from calib.training.importers.execution_traces.record import ExecutionTrace


class SentCollective(Record):
    """Collectives of a trace that are alike; `traced` is the mean time of one, s, where it has any."""

    operation: str
    nbytes: NonNegativeInt | None
    ranks: NonNegativeInt
    calls: PositiveInt
    traced: float | None
    calibrated: Estimate | None


class SentTrace(Record):
    """An execution trace in numbers: `compute_s` is None where it has no times."""

    schema_name: str
    nodes: PositiveInt
    computing: NonNegativeInt
    compute_s: float | None
    collectives: list[SentCollective]


def sent_by(trace: ExecutionTrace, asked: Collectives | None, world: int = 0) -> SentTrace:
    """The collectives of a trace, those that send most first; `world`: ranks of the default group."""
    alike: defaultdict[tuple[str, int | None, int], list[float | None]] = defaultdict(list)
    for node in trace.nodes:
        of = node.communication
        if of is not None:
            ranks = len(of.ranks) or (0 if of.group else world)
            alike[of.operation, of.buffer_bytes, ranks].append(node.duration_s)
    computing = [node for node in trace.nodes if node.kind == "compute"]
    seconds = [node.duration_s for node in computing if node.duration_s is not None]
    found = [
        SentCollective(
            operation=operation,
            nbytes=nbytes,
            ranks=ranks,
            calls=len(times),
            traced=sum(known) / len(known)
            if (known := [t for t in times if t is not None])
            else None,
            calibrated=_calibrated(asked, operation, nbytes, ranks),
        )
        for (operation, nbytes, ranks), times in alike.items()
    ]
    return SentTrace(
        schema_name=trace.schema,
        nodes=len(trace.nodes),
        computing=len(computing),
        compute_s=sum(seconds) if seconds else None,
        collectives=sorted(found, key=lambda one: -(one.nbytes or 0) * one.calls),
    )


def _calibrated(
    asked: Collectives | None, operation: str, nbytes: int | None, ranks: int
) -> Estimate | None:
    if asked is None or not nbytes or ranks < 2:
        return None
    try:
        return asked.time(operation, nbytes, asked.shape(ranks)).seconds
    except (InputError, MissingParameter):
        return None
