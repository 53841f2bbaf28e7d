"""One pipeline: its stages, schedule, simulated time and memory."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from calib.foundation.arrays import Floats
from calib.foundation.errors import InputError
from calib.search.pipelines.antichains import States
from calib.search.pipelines.memory import Holding, held_by, smallest, stage_bytes
from calib.search.pipelines.partition import (
    Partition,
    PartitionLevel,
    chain_of,
    in_a_row,
    in_row,
    replicated,
    solve,
)
from calib.search.pipelines.work import PricedStates
from calib.search.request import BudgetOver, Look, never
from calib.search.timelines import schedules
from calib.search.timelines.schedules import PipelineSchedule
from calib.search.timelines.simulation import Simulated, StageTimes, simulate

WAVES = 8  # mini-batches in flight times this are simulated of a pipeline that never ends
MOST_SIMULATED = 2000


@dataclass(frozen=True)
class PipelineOptions:
    """Which pipelines are looked for; `chunks` of each device are interleaved stages."""

    schedule: str
    straight: bool
    chunks: int
    recompute: bool
    optimizer: str
    memory_bytes: int
    per_node: int

    def holding(self, microbatches: int) -> Holding:
        """What the schedule keeps with so many micro-batches."""
        return Holding(self.schedule, microbatches, self.recompute, self.optimizer)

    def fits(self, nbytes: int) -> bool:
        """Whether a device has so many bytes."""
        return not self.memory_bytes or nbytes <= self.memory_bytes


@dataclass(frozen=True)
class PipelineCandidate:
    """A pipeline. `replicas` by innermost stage, over all levels; bytes by stage, and of the fullest.

    Not `searched`: the budget ended before its stages were chosen.
    """

    pieces: PricedStates
    partition: Partition
    microbatches: int
    replicas: tuple[int, ...]
    times: StageTimes
    schedule: PipelineSchedule
    simulated: Simulated
    stage_bytes: tuple[int, ...]
    device_bytes: int
    holding: Holding
    searched: bool = True

    @property
    def seconds(self) -> float:
        """Seconds of a mini-batch: the slowest stage's without a flush, else until all is done."""
        if self.schedule.asynchronous:
            return self.partition.per_stage_s
        return self.simulated.makespan_s


def candidate(
    pieces: PricedStates, asked: PipelineOptions, microbatches: int, look: Look = never
) -> PipelineCandidate:
    """The best stages for this many micro-batches.

    Raises NoRoom where none fit the memory, InputError where none can be, BudgetOver.
    """
    levels, compute, states = _levels(pieces, asked), _compute(pieces, asked), pieces.states
    held = held_by(pieces, asked.holding(microbatches))

    def solved(memory_bytes: float) -> Partition | None:
        # chunks of a device are looked at together, below
        within = memory_bytes if asked.chunks == 1 else 0.0
        return solve(compute, states.before, levels, asked.straight, held, within, look=look)

    found = solved(float(asked.memory_bytes))
    if found is None:
        if solved(0.0) is None:
            raise _too_few(states, levels)
        raise NoRoom(asked.memory_bytes, *smallest(solved, float(asked.memory_bytes)))
    result = _candidate(pieces, asked, microbatches, found, levels, look)
    if not asked.fits(result.device_bytes):
        raise NoRoom(asked.memory_bytes, result.device_bytes, True)
    return result


def unsearched(
    pieces: PricedStates, asked: PipelineOptions, microbatches: int
) -> PipelineCandidate:
    """A pipeline without a search: one replicated stage, or stages balanced by compute.

    Raises BudgetOver where it does not fit, InputError where there are too few places to cut.
    """
    levels, compute, states = _levels(pieces, asked), _compute(pieces, asked), pieces.states
    if asked.straight:
        count, chain = math.prod(level.machines for level in levels), chain_of(states.before)
        if len(chain) < count:
            raise _too_few(states, levels)
        found = in_a_row(compute, chain, count)
        levels = [in_row(count)]
    else:
        found = replicated(compute, levels)
    result = _candidate(pieces, asked, microbatches, found, levels, never)
    if not asked.fits(result.device_bytes):
        raise BudgetOver(
            f"the budget ended before a pipeline was found that fits {asked.memory_bytes} bytes per "
            "device: give a longer budget"
        )
    return replace(result, searched=False)


def _levels(pieces: PricedStates, asked: PipelineOptions) -> Sequence[PartitionLevel]:
    """The levels of machines; with a flush all in one row, which exchange no gradients.

    What that row sends is in the simulation.
    """
    if asked.schedule == "pipedream":
        return pieces.levels
    return [in_row(math.prod(level.machines for level in pieces.levels) * asked.chunks)]


def _compute(pieces: PricedStates, asked: PipelineOptions) -> Floats:
    """Seconds of compute up to each state, with the forward again where it is recomputed."""
    states = pieces.states
    return states.compute_s + (states.forward_s if asked.recompute else 0.0)


def _too_few(states: States, levels: Sequence[PartitionLevel]) -> InputError:
    count = math.prod(level.machines for level in levels)
    return InputError(f"{len(states.compute_s)} places to cut are too few for {count} stages")


class NoRoom(InputError):
    """No pipeline fits; `least` bytes per device would do.

    Not `exact`: the budget ended while the smallest was looked for, perhaps (0) before any was found.
    """

    def __init__(self, memory_bytes: int, least: int, exact: bool) -> None:
        words = "the budget ended before any memory was found that would do"
        if exact:
            words = f"the smallest memory that would do is {least} bytes"
        elif least:
            words = f"the budget ended while the smallest was looked for: {least} bytes would do"
        super().__init__(f"no pipeline fits {memory_bytes} bytes per device; {words}")
        self.least = least or sys.maxsize


def _candidate(
    pieces: PricedStates,
    asked: PipelineOptions,
    microbatches: int,
    found: Partition,
    levels: Sequence[PartitionLevel],
    look: Look,
) -> PipelineCandidate:
    holding = asked.holding(microbatches)
    stages, replicas = found.levels[-1], _replicas(found)
    schedule = scheduled(asked, replicas, microbatches)
    times = _times(pieces, asked, found, replicas, levels)
    simulated = simulate(schedule, times, look)
    nbytes = tuple(
        stage_bytes(pieces, holding, of.start, of.end, flying)
        for of, flying in zip(stages, simulated.by_stage, strict=True)
    )
    devices = len(schedule.programs)
    # the peaks of a device's chunks need not coincide: it holds at most their sum
    fullest = max(sum(nbytes[device::devices]) for device in range(devices))
    return PipelineCandidate(
        pieces, found, microbatches, replicas, times, schedule, simulated, nbytes, fullest, holding
    )


def scheduled(
    asked: PipelineOptions, replicas: Sequence[int], microbatches: int
) -> PipelineSchedule:
    """The schedule of stages with so many replicas."""
    count = len(replicas)
    if asked.schedule == "pipedream":
        admitted = schedules.in_flight(replicas)[0] * replicas[0]
        rounds = min(MOST_SIMULATED, WAVES * max(admitted, math.lcm(*replicas) if count < 9 else 1))
        return schedules.pipedream(replicas, rounds, asked.recompute)
    if asked.schedule == "interleaved":
        devices = count // asked.chunks
        return schedules.interleaved(devices, microbatches, asked.chunks, asked.recompute)
    if asked.schedule == "gpipe":
        return schedules.gpipe(count, microbatches, asked.recompute)
    return schedules.one_forward_one_backward(count, microbatches, asked.recompute)


def _replicas(found: Partition) -> tuple[int, ...]:
    """Devices of each innermost stage: its replicas times those of the pieces around it."""
    return tuple(
        math.prod(
            of.replicas
            for level in found.levels
            for of in level
            if of.start <= stage.start and stage.end <= of.end
        )
        for stage in found.levels[-1]
    )


def _times(
    pieces: PricedStates,
    asked: PipelineOptions,
    found: Partition,
    replicas: Sequence[int],
    levels: Sequence[PartitionLevel],
) -> StageTimes:
    """Seconds of a micro-batch, of the messages over each border, and of updates."""
    stages, states = found.levels[-1], pieces.states
    forward, backward, update = [], [], []
    sent, back, meet = [], [0.0], list[bool]()
    counted = asked.schedule != "pipedream" or pieces.sends  # as the partitioner has it
    ends = accumulate(replicas)  # devices up to and with each stage
    for number, (of, end) in enumerate(zip(stages, ends, strict=True), 1):
        start, last = of.start, of.end - 1
        first = float(states.forward_s[last] - (states.forward_s[start - 1] if start else 0.0))
        whole = float(states.compute_s[last] - (states.compute_s[start - 1] if start else 0.0))
        forward.append(max(0.0, first))
        backward.append(max(0.0, whole - first - pieces.spared(start, last)))
        update.append(pieces.update(start, last) + _exchange(found, levels, start, of.end))
        between_nodes = end % asked.per_node == 0
        meet.append(asked.schedule == "gpipe" and not between_nodes)
        sends = counted and number < len(stages)
        sent.append(pieces.sent("forward", last, between_nodes) if sends else 0.0)
        back.append(pieces.sent("backward", last, between_nodes) if sends else 0.0)
    return StageTimes(
        forward, backward, update, sent, back[:-1], held=asked.schedule == "1f1b", meet=meet[:-1]
    )


def _exchange(found: Partition, levels: Sequence[PartitionLevel], start: int, end: int) -> float:
    """Seconds that a device takes to sum the gradients of one of its mini-batches, at all levels."""
    seconds, inside = 0.0, 1
    splits = found.levels[::-1]
    for number, level in enumerate(levels):
        of = next(s for s in splits[number] if s.start <= start and end <= s.end)
        around = splits[number + 1] if number + 1 < len(splits) else ()
        begins = of.start == 0 or any(s.start == of.start for s in around)
        if of.replicas > 1:  # the first of a piece is priced as a stage by itself
            law = level.one if begins else level.sync
            seconds += inside * float(law(of.replicas)[of.start, of.end - 1])
        inside *= of.replicas
    return seconds
