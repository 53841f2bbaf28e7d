"""Schedules of pipelines as data: for every device its work in order.

A stage is a contiguous part of the model; an interleaved device has several (chunk c of device d is
stage c K + d). A replicated stage is on several devices, which take micro-batches round robin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from calib.foundation.errors import InputError

WorkKind = Literal["forward", "backward", "recompute", "update"]
MOST_WORK = 500_000


class DeviceWork(NamedTuple):
    """One thing that a device does; an update applies the gradients of its micro-batch."""

    kind: WorkKind
    stage: int
    microbatch: int


@dataclass(frozen=True)
class PipelineSchedule:
    """`programs` by device; `asynchronous`: weights change after every micro-batch (PipeDream)."""

    name: str
    stages: int
    microbatches: int
    programs: tuple[tuple[DeviceWork, ...], ...]
    asynchronous: bool = False


def gpipe(stages: int, microbatches: int, recompute: bool = False) -> PipelineSchedule:
    """All forwards, then all backwards (Huang et al., 2019); bubble (K-1)/(M+K-1).

    `recompute`: only the stage's input is kept, and its forward runs again before each backward.
    """
    _require(stages, microbatches)
    programs = []
    for stage in range(stages):
        slots = [DeviceWork("forward", stage, j) for j in range(microbatches)]
        for j in range(microbatches):
            slots += _backward(stage, j, recompute)
        programs.append((*slots, DeviceWork("update", stage, microbatches - 1)))
    return PipelineSchedule("gpipe", stages, microbatches, tuple(programs))


def one_forward_one_backward(
    stages: int, microbatches: int, recompute: bool = False
) -> PipelineSchedule:
    """1F1B with a flush: stage i of 0..K-1 begins with min(M, K-1-i) forwards, then alternates."""
    _require(stages, microbatches)
    programs = []
    for stage in range(stages):
        ahead = min(microbatches, stages - 1 - stage)
        own = _alternating(stage, range(microbatches), ahead, recompute)
        programs.append((*own, DeviceWork("update", stage, microbatches - 1)))
    return PipelineSchedule("1f1b", stages, microbatches, tuple(programs))


def interleaved(
    devices: int, microbatches: int, chunks: int, recompute: bool = False
) -> PipelineSchedule:
    """Interleaved 1F1B (Narayanan et al., 2021): v chunks per device; bubble (K-1)/(v M).

    Groups of K micro-batches go through a device's chunks in turn, so K has to divide M. Raises
    InputError where it does not.
    """
    _require(devices * chunks, microbatches)
    if microbatches % devices:
        raise InputError(
            f"interleaved 1F1B takes micro-batches in groups of the {devices} devices, which do not "
            f"divide {microbatches}"
        )
    turns = microbatches * chunks
    programs = []
    for device in range(devices):
        forwards, backwards = [], []
        for turn in range(turns):
            group, place = divmod(turn, devices * chunks)
            chunk, one = divmod(place, devices)
            batch = group * devices + one
            forwards.append(DeviceWork("forward", chunk * devices + device, batch))
            behind = (chunks - 1 - chunk) * devices + device
            backwards.append(_backward(behind, batch, recompute))
        ahead = min(turns, 2 * (devices - 1 - device) + (chunks - 1) * devices)
        slots = forwards[:ahead]
        for turn in range(ahead, turns):
            slots += [forwards[turn], *backwards[turn - ahead]]
        for turn in range(turns - ahead, turns):
            slots += backwards[turn]
        last = [
            DeviceWork("update", chunk * devices + device, microbatches - 1)
            for chunk in range(chunks)
        ]
        programs.append((*slots, *last))
    return PipelineSchedule("interleaved", devices * chunks, microbatches, tuple(programs))


def in_flight(replicas: Sequence[int]) -> list[int]:
    """Mini-batches in flight on a device of each stage: NOAM of the pipeline that begins there.

    NOAM = ceil(machines / machines of the input stage).
    """
    behind = [replicas[stage:] for stage in range(len(replicas))]
    return [math.ceil(sum(stages) / stages[0]) for stages in behind]


def pipedream(
    replicas: Sequence[int], microbatches: int, recompute: bool = False
) -> PipelineSchedule:
    """PipeDream's 1F1B without a flush: each device admits `in_flight`, then alternates.

    Replica b mod r of a stage takes mini-batch b; an update follows every backward.
    """
    if not replicas or min(replicas) < 1:
        raise InputError("every stage of a pipeline needs a device")
    _require(sum(replicas), microbatches)
    programs = []
    for stage, (count, ahead) in enumerate(zip(replicas, in_flight(replicas), strict=True)):
        for replica in range(count):
            own = range(replica, microbatches, count)
            programs.append(_alternating(stage, own, min(ahead - 1, len(own)), recompute, True))
    return PipelineSchedule(
        "pipedream", len(replicas), microbatches, tuple(programs), asynchronous=True
    )


def _alternating(
    stage: int, own: range, ahead: int, recompute: bool, updates: bool = False
) -> tuple[DeviceWork, ...]:
    """`ahead` forwards, then a forward and a backward in turn, then the remaining backwards."""
    slots = [DeviceWork("forward", stage, j) for j in own[:ahead]]
    for place, j in enumerate(own):
        if place + ahead < len(own):
            slots.append(DeviceWork("forward", stage, own[place + ahead]))
        slots += _backward(stage, j, recompute)
        if updates:
            slots.append(DeviceWork("update", stage, j))
    return tuple(slots)


def _backward(stage: int, microbatch: int, recompute: bool) -> list[DeviceWork]:
    again = [DeviceWork("recompute", stage, microbatch)] if recompute else []
    return [*again, DeviceWork("backward", stage, microbatch)]


def _require(stages: int, microbatches: int) -> None:
    if stages < 1 or microbatches < 1:
        raise InputError("a pipeline needs a stage and a micro-batch at least")
    if stages * microbatches > MOST_WORK:
        raise InputError(
            f"{microbatches} micro-batches on {stages} stages are more than can be simulated"
        )
