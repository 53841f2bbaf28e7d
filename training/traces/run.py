"""TracedRun: what a run was and where its time went, from the traces of its ranks.

Times are means over steps, so that the parts of a step add up to it; their 95% intervals are Student's,
with the number of steps that autocorrelation leaves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from calib.foundation.collectives import bus_bandwidth
from calib.foundation.errors import FileError
from calib.foundation.records import Estimate, Record
from calib.foundation.words import counted
from calib.training.traces.configuration import RunConfiguration, configuration_of
from calib.training.traces.faults import Fault, faults_of, half_width
from calib.training.traces.joined import Joined, JoinedRanks, joined
from calib.training.traces.operators import TracedOperator, operators_of
from calib.training.traces.rank import RankTrace, read_rank
from calib.training.traces.split import PARTS, Split, splits_of


class PartTime(Record):
    """A part of the step: the mean over ranks and steps."""

    name: str
    seconds: Estimate = Field(description="s of a step")


class RankTime(Record):
    """The mean step of one rank, s."""

    rank: NonNegativeInt
    own: Estimate = Field(description="s that it neither communicates nor loads data")
    parts: dict[str, float] = Field(description="s of each part of its step")
    last: NonNegativeInt = Field(description="collectives for which the others waited for it")
    waited_for: NonNegativeFloat = Field(description="s of a step by which it came last")


class OperatorTime(Record):
    """An operator at its shapes in one phase, mean over ranks; `seconds` of all calls in a step."""

    phase: str
    name: str
    shapes: list[Any]
    dtype: str
    calls: NonNegativeFloat
    seconds: Estimate


class CollectiveTime(Record):
    """Collectives that are alike, mean over those of all steps.

    `own` is the time of one, `waited` what a rank waited in it before the last rank came; where clocks
    cannot be compared or one rank is traced, `with_waits` says that `own` may hold it.
    """

    operation: str
    nbytes: NonNegativeInt | None
    elements: NonNegativeInt | None
    dtype: str
    size: PositiveInt | None = Field(description="ranks of its group")
    calls: NonNegativeFloat = Field(description="in a step of a rank that has them")
    own: Estimate = Field(description="s of one")
    bus_bandwidth: Estimate | None = Field(description="B/s")
    waited: NonNegativeFloat | None = Field(description="s of one, mean over ranks")
    with_waits: bool


class TracedRun(Record):
    """A run as its traces show it."""

    files: list[str]
    configuration: RunConfiguration
    step: Estimate = Field(description="s, mean over ranks and steps")
    parts: list[PartTime]
    phases: list[PartTime] = Field(
        description="forward, backward, update, and what is between them; they add up to the step with "
        "wire, waiting and input"
    )
    talking: Estimate = Field(description="s of all communication in a step")
    hidden: Estimate = Field(description="s of it that run beside computation")
    ranks: list[RankTime]
    operators: list[OperatorTime]
    collectives: list[CollectiveTime]
    faults: list[Fault]
    notes: list[str]


def read_ranks(paths: Sequence[Path]) -> list[RankTrace]:
    """The traces of a run's ranks, in their order. Raises FileError."""
    return in_order([read_rank(path) for path in paths])


def in_order(traces: Sequence[RankTrace], p: int | None = None) -> list[RankTrace]:
    """The traces in the order of their ranks. Raises FileError where they are not of one run."""
    first = traces[0]
    for trace in traces:
        if trace.ranks != first.ranks:
            raise FileError(
                f"{trace.path} is of {trace.ranks} ranks, {first.path} of {first.ranks}"
            )
        if p is not None and trace.ranks not in (None, p):
            raise FileError(f"{trace.path} is of {trace.ranks} ranks, not of {p}")
        if len(traces) > 1 and trace.rank is None:
            raise FileError(
                f"{trace.path} does not say its rank (distributedInfo): give it by itself"
            )
    by_rank: dict[int | None, RankTrace] = {}
    for trace in traces:
        if trace.rank in by_rank:
            both = f"{by_rank[trace.rank].path} and {trace.path}"
            raise FileError(f"two of the traces are of the same rank: {both}")
        by_rank[trace.rank] = trace
    return sorted(traces, key=lambda trace: trace.rank or 0)


def traced_run(traces: Sequence[RankTrace]) -> TracedRun:
    """What the traces of a run's ranks, in their order, say. Raises FileError without a common step."""
    steps = sorted(set.intersection(*(set(trace.steps) for trace in traces)))
    late = any(trace.late for trace in traces)
    most = max(len(trace.steps) for trace in traces) - len(steps)
    if late and len(steps) > 1:
        steps = steps[1:]
    if not steps:
        raise FileError("the traces of the ranks have no step in common")
    notes = list(dict.fromkeys(note for trace in traces for note in trace.notes))
    if most:
        are = "is" if most == 1 else "are"
        notes.append(
            f"{counted(most, 'step')} of a trace {are} not in those of all ranks and {are} left out"
        )
    ranks = traces[0].ranks or len(traces)
    if len(traces) < ranks:
        notes.append(f"traces of {len(traces)} of {ranks} ranks")
    together = joined(traces)
    at = [np.searchsorted(trace.steps, steps) for trace in traces]
    splits = [_at(split, mine) for split, mine in zip(splits_of(together), at, strict=True)]
    operators = [operators_of(trace) for trace in traces]
    configuration = configuration_of(together, operators[0], ranks)
    mean = {name: np.mean([s.parts[name] for s in splits], axis=0) for name in PARTS}
    talking = np.mean([split.talking for split in splits], axis=0)
    hidden = np.mean([split.hidden for split in splits], axis=0)
    times = [
        _rank_time(trace, split, together, set(steps))
        for trace, split in zip(traces, splits, strict=True)
    ]
    if ranks > 1 and not together.comparable:
        notes.append(
            "waiting for other ranks is in the wire's time: their traces, or clocks, are missing"
        )
    if not any(op.shapes for op in operators[0]):
        notes.append(
            "the traces have no shapes (record_shapes=True): batch and layers are not known"
        )
    return TracedRun(
        files=[str(trace.path) for trace in traces],
        configuration=configuration,
        step=mean_of(np.mean([split.whole for split in splits], axis=0)),
        parts=[PartTime(name=name, seconds=mean_of(mean[name])) for name in PARTS],
        phases=[
            PartTime(name=name, seconds=mean_of(np.mean([s.phases[name] for s in splits], axis=0)))
            for name in splits[0].phases
        ],
        talking=mean_of(talking),
        hidden=mean_of(hidden),
        ranks=times,
        operators=_operator_times(operators, at),
        collectives=_collective_times(together, set(steps)),
        faults=faults_of(configuration, splits, [time.rank for time in times]),
        notes=[*notes, *together.notes],
    )


def _at(split: Split, mine: NDArray[np.intp]) -> Split:
    """Some steps of a split."""
    parts, phases = (
        {name: seconds[mine] for name, seconds in of.items()} for of in (split.parts, split.phases)
    )
    return Split(split.whole[mine], parts, phases, split.talking[mine], split.hidden[mine])


def mean_of(values: NDArray[np.float64]) -> Estimate:
    """The mean of times with its 95% interval; of one value the value alone, without an interval."""
    mean = float(values.mean())
    if len(values) < 2:
        return Estimate.exactly(mean)
    half = half_width(values)
    return Estimate.around(mean, max(mean - half, 0.0), mean + half)


def _rank_time(trace: RankTrace, split: Split, ranks: JoinedRanks, steps: set[int]) -> RankTime:
    rank = trace.rank or 0
    mine = [x for x in ranks.collectives if x.last == rank and x.one.step in steps]
    return RankTime(
        rank=rank,
        own=mean_of(split.own),
        parts={name: float(seconds.mean()) for name, seconds in split.parts.items()},
        last=len(mine),
        waited_for=sum(x.ahead_s for x in mine) / len(steps),
    )


def _operator_times(
    every: Sequence[Sequence[TracedOperator]], at: Sequence[NDArray[np.intp]]
) -> list[OperatorTime]:
    """Operators of all ranks, the mean of the ranks in each step; the longest first."""
    seconds: defaultdict[tuple[str, str, str, str], list[NDArray[np.float64]]] = defaultdict(list)
    calls: defaultdict[tuple[str, str, str, str], float] = defaultdict(float)
    shapes: dict[tuple[str, str, str, str], list[Any]] = {}
    for operators, mine in zip(every, at, strict=True):
        for op in operators:
            key = op.phase, op.name, repr(op.shapes), op.dtype
            seconds[key].append(op.seconds[mine])
            calls[key] += float(op.calls[mine].mean()) / len(every)
            shapes[key] = list(op.shapes)
    found = [
        OperatorTime(
            phase=key[0],
            name=key[1],
            shapes=shapes[key],
            dtype=key[3],
            calls=calls[key],
            seconds=mean_of(np.sum(times, axis=0) / len(every)),
        )
        for key, times in seconds.items()
        if calls[key] > 0
    ]
    return sorted(found, key=lambda op: -op.seconds.value)


def _collective_times(ranks: JoinedRanks, steps: set[int]) -> list[CollectiveTime]:
    """Those of the steps, the ones that are alike together, in the order in which they first began."""
    alike: defaultdict[tuple[Any, ...], list[Joined]] = defaultdict(list)
    for one in ranks.collectives:
        if one.one.step in steps:
            of = one.one
            alike[of.operation, of.nbytes, of.elements, of.dtype, of.size].append(one)
    found = []
    for (operation, nbytes, elements, dtype, size), mine in alike.items():
        known = [x for x in mine if x.last is not None]
        of_traces = [x for x in mine if x.ranks[0] == mine[0].ranks[0]]
        ranks_of = {rank for x in mine for rank in x.ranks}
        own = mean_of(np.array([x.own_s for x in known or of_traces]))
        bus = bus_bandwidth(operation, size, nbytes, own) if size and nbytes else None
        waits = [wait for x in known for wait in x.waited_s]
        found.append(
            CollectiveTime(
                operation=operation,
                nbytes=nbytes,
                elements=elements,
                dtype=dtype,
                size=size,
                calls=sum(len(x.ranks) for x in mine) / len(ranks_of) / len(steps),
                own=own,
                bus_bandwidth=bus,
                waited=sum(waits) / len(waits) if waits else None,
                with_waits=not known,
            )
        )
    return found
