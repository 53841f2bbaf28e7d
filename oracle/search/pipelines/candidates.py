"""One pipeline: its stages, its schedule, how that goes, and what it holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from foundation.errors import InputError
from oracle.search.pipelines.memory import Holding, held_by, smallest, stage_bytes
from oracle.search.pipelines.partition import Level, Partition, solve
from oracle.search.pipelines.work import Pieces
from oracle.timelines import schedules
from oracle.timelines.schedules import Schedule
from oracle.timelines.simulation import Simulated, StageTimes, simulate

Floats = NDArray[np.float64]
WAVES = 8  # mini-batches in flight times this are simulated of a pipeline that never ends
MOST_SIMULATED = 2000


@dataclass(frozen=True)
class Asked:
    """What pipelines are looked for: `devices` in a node, `chunks` of each (interleaved), memory."""

    schedule: str
    straight: bool
    chunks: int
    recompute: bool
    optimizer: str
    memory_bytes: int
    per_node: int


@dataclass(frozen=True)
class Candidate:
    """A pipeline. `replicas` by innermost stage, over all levels; bytes by stage and on the fullest."""

    pieces: Pieces
    partition: Partition
    microbatches: int
    replicas: tuple[int, ...]
    times: StageTimes
    schedule: Schedule
    simulated: Simulated
    stage_bytes: tuple[int, ...]
    device_bytes: int
    holding: Holding

    @property
    def seconds(self) -> float:
        """Of a mini-batch: of the slowest stage without a flush, else until all is done."""
        if self.schedule.asynchronous:
            return self.partition.per_stage_s
        return self.simulated.makespan_s


def candidate(pieces: Pieces, asked: Asked, microbatches: int) -> Candidate:
    """The best stages for this many micro-batches. Raises InputError where none fit the memory."""
    flush = asked.schedule != "pipedream"
    holding = Holding(asked.schedule, microbatches, asked.recompute, asked.optimizer)
    levels: Sequence[Level] = pieces.levels
    if flush:
        levels = [_whole(levels, asked.chunks)]
    states, held = pieces.states, held_by(pieces, holding)
    # the forward again is compute: of the whole, so of each part
    compute = states.compute_s + (states.forward_s if asked.recompute else 0.0)

    def solved(memory_bytes: float) -> Partition | None:
        # chunks of a device are looked at together, below
        within = memory_bytes if asked.chunks == 1 else 0.0
        return solve(compute, states.before, levels, asked.straight or flush, held, within)

    found = solved(float(asked.memory_bytes))
    if found is None:
        if solved(0.0) is None:
            count = math.prod(level.machines for level in levels)
            raise InputError(
                f"{len(states.compute_s)} places to cut are too few for {count} stages"
            )
        _no_room(asked.memory_bytes, smallest(solved, float(asked.memory_bytes)))
    result = _candidate(pieces, asked, microbatches, found, levels, holding)
    if asked.memory_bytes and result.device_bytes > asked.memory_bytes:
        _no_room(asked.memory_bytes, result.device_bytes)
    return result


class NoRoom(InputError):
    """No pipeline fits; `least` bytes per device would do."""

    def __init__(self, message: str, least: int) -> None:
        super().__init__(message)
        self.least = least


def _no_room(memory_bytes: int, least: int) -> NoReturn:
    raise NoRoom(
        f"no pipeline fits {memory_bytes} bytes per device; the smallest memory that would do is "
        f"{least} bytes", least,
    )  # fmt: skip


def _whole(levels: Sequence[Level], chunks: int) -> Level:
    """All devices in a row, which exchange no gradients; what they send is in the simulation."""
    return Level(math.prod(level.machines for level in levels) * chunks, _free, _free)


def _free(m: int) -> Floats:
    return np.zeros(())


def _candidate(
    pieces: Pieces, asked: Asked, microbatches: int, found: Partition, levels: Sequence[Level],
    holding: Holding,
) -> Candidate:  # fmt: skip
    stages, replicas = found.levels[-1], _replicas(found)
    schedule = scheduled(asked, replicas, microbatches)
    times = _times(pieces, asked, found, replicas, levels)
    simulated = simulate(schedule, times)
    nbytes = tuple(
        stage_bytes(pieces, holding, of.start, of.end, flying)
        for of, flying in zip(stages, simulated.by_stage, strict=True)
    )
    devices = len(schedule.programs)
    # of several chunks the most of each, which is not at one time: at most this
    fullest = max(nbytes) if asked.chunks == 1 else max(
        sum(nbytes[device::devices]) for device in range(devices)
    )  # fmt: skip
    return Candidate(pieces, found, microbatches, replicas, times, schedule, simulated, nbytes,
                     fullest, holding)  # fmt: skip


def scheduled(asked: Asked, replicas: Sequence[int], microbatches: int) -> Schedule:
    """The schedule of stages with so many replicas."""
    count = len(replicas)
    if asked.schedule == "pipedream":
        admitted = schedules.in_flight(replicas)[0] * replicas[0]
        rounds = min(MOST_SIMULATED, WAVES * max(admitted, math.lcm(*replicas) if count < 9 else 1))
        return schedules.pipedream(replicas, rounds, asked.recompute)
    if asked.schedule == "interleaved":
        return schedules.interleaved(count // asked.chunks, microbatches, asked.chunks,
                                     asked.recompute)  # fmt: skip
    make: Callable[[int, int, bool], Schedule] = (
        schedules.gpipe if asked.schedule == "gpipe" else schedules.one_forward_one_backward
    )
    return make(count, microbatches, asked.recompute)


def _replicas(found: Partition) -> tuple[int, ...]:
    """Devices of each innermost stage: its own replicas times those of the pieces around it."""
    return tuple(
        math.prod(of.replicas for level in found.levels for of in level
                  if of.start <= stage.start and stage.end <= of.end)
        for stage in found.levels[-1]
    )  # fmt: skip


def _times(
    pieces: Pieces, asked: Asked, found: Partition, replicas: Sequence[int],
    levels: Sequence[Level],
) -> StageTimes:  # fmt: skip
    """Seconds of a micro-batch, of messages by the border that they cross, of updates."""
    stages, states = found.levels[-1], pieces.states
    forward, backward, update, sent = [], [], [], []
    place = 0
    for number, (of, count) in enumerate(zip(stages, replicas, strict=True)):
        start, last = of.start, of.end - 1
        first = float(states.forward_s[last] - (states.forward_s[start - 1] if start else 0.0))
        whole = float(states.compute_s[last] - (states.compute_s[start - 1] if start else 0.0))
        forward.append(max(0.0, first))
        backward.append(max(0.0, whole - first))
        update.append(pieces.update(start, last) + _exchange(found, levels, start, of.end))
        place += count
        between_nodes = (
            place % asked.per_node == 0 if asked.chunks == 1
            else (number + 1) % asked.per_node == 0
        )  # fmt: skip
        sent.append(pieces.sent(last, between_nodes) if number + 1 < len(stages) else 0.0)
    return StageTimes(forward, backward, update, sent, [0.0, *sent[:-1]],
                      held=asked.schedule in ("gpipe", "1f1b"))  # fmt: skip


def _exchange(found: Partition, levels: Sequence[Level], start: int, end: int) -> float:
    """What a device takes for the gradients of one of its mini-batches, at every level."""
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
