"""Repetitions of one collective case. A wrong result has no time."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from time import perf_counter

from calib.foundation.errors import InputError, MeasurementError
from calib.microbench.cases import CollectiveCase
from calib.microbench.collectives.operations import EXERCISES, Exercise
from calib.microbench.collectives.pool import CommunicatorPool
from calib.microbench.collectives.timing import Start, exercise_block, idle_block
from calib.microbench.collectives.told import estimate_s, telling
from calib.microbench.control import Control
from calib.microbench.device import CPU, Device
from calib.microbench.groups import layout
from calib.microbench.machine.nccl_log import NcclLog, log_file
from calib.microbench.machine.placement import Placement
from calib.microbench.timing.clock import Clock
from calib.microbench.timing.repeat import Repetitions, TimedBlock, Timings, merge_ranks, repeat
from calib.microbench.timing.timer import Timer
from calib.microbench.timing.watchdog import idle

TRIALS = 5
LONG_CALL_S = 1e-3
# GPUs leave their meeting up to some us apart: a timing that is queued is as long as 20 calls of 100 us
LEAST_QUEUED_S = 2e-3
MOST_QUEUED = 200  # a stream takes about 1,000 kernels before its host waits
# a window is set ahead by twice what its announcement and the clocks' error take
LEAD_FACTOR = 2.0
SHORTEST_LEAD_S = 50e-6


@dataclass(frozen=True)
class CollectiveSetting:
    """What a session gives its collective cases; `timer` is of `device`."""

    control: Control
    pool: CommunicatorPool
    placement: Placement
    timer: Timer
    clock: Clock | None = None
    device: Device = CPU


def measure_collective(
    setting: CollectiveSetting, case: CollectiveCase, budget_s: float, target: float
) -> Repetitions:
    """All repetitions of one case, after its result was checked on every rank.

    Raises MeasurementError when a rank holds a wrong result, InputError when the launch has no such
    groups, MachineError when the library is missing, and Unavailable when it lacks what the case tells
    it; all ranks raise together.
    """
    control = setting.control
    exercise, members = exercise_of(setting, case)
    together = setting.pool.control(members)
    log = NcclLog(log_file(os.environ))
    expected_s = estimate_s(control, case, exercise)
    if case.mode == "graph":
        capture(control, case, exercise, 1)
    first_s = check(control, case, exercise)
    start = _start(setting, case, together)
    calls = _calls(setting, case, exercise, start)
    if case.mode == "graph":
        capture(control, case, exercise, calls)
    block = _block(case, exercise, start, 1 if case.mode == "graph" else calls)
    if len(members) < control.size:
        block = _apart(block, control, is_idle=together is None)
    result = repeat(control, block, budget_s, target, calls, setting.clock)
    result.first_s, result.estimate_s = first_s, expected_s
    if exercise is not None and exercise.comm.queues:
        result.channels = log.channels(case.operation)
    everyone = control.allgather_object(result.channels)  # of a group its first rank knows
    result.channels = next(filter(None, everyone), {})
    if setting.device.events is not None and case.library != "mpi":  # which hosts time
        result.resolution_s = setting.timer.resolution_s / calls
    if exercise is not None:
        exercise.close()
    return result


def exercise_of(
    setting: CollectiveSetting, case: CollectiveCase
) -> tuple[Exercise | None, list[int]]:
    """What this rank does in a case, None for a rank in no group; and the ranks that are in one."""
    groups = layout(setting.placement, case.group_size, case.stride, case.groups)
    comm = setting.pool.group(case.library, setting.device, groups)
    mine = telling(setting.control, case, comm)
    exercise = EXERCISES[case.operation](case, mine) if mine is not None else None
    return exercise, sorted(rank for group in groups for rank in group)


def check(control: Control, case: CollectiveCase, exercise: Exercise | None) -> float:
    """Seconds of the first call, whose result every rank has compared with the closed form."""
    right, seconds = (True, 0.0) if exercise is None else exercise.check()
    found = control.allgather_object([right, seconds])
    wrong = [rank for rank, (good, _) in enumerate(found) if not good]
    if wrong:
        raise MeasurementError(
            f"{case.label}: wrong result on rank {wrong[0]}; this communicator cannot be trusted, "
            "so it has no time"
        )
    return float(max(each[1] for each in found))


def capture(control: Control, case: CollectiveCase, exercise: Exercise | None, number: int) -> None:
    """Let the case's call be a CUDA graph of so many; collective.

    Raises MeasurementError on all ranks where one cannot capture it.
    """
    problem = ""
    try:
        if exercise is not None:
            exercise.capture(number)
    except Exception as error:  # of PyTorch, or of NCCL
        problem = next(iter(str(error).splitlines()), type(error).__name__)
    problems = [text for text in control.allgather_object(problem) if text]
    if problems:
        raise MeasurementError(f"{case.label}: no CUDA graph of it: {problems[0]}")


def _start(
    setting: CollectiveSetting, case: CollectiveCase, together: Control | None
) -> Start | None:
    """How this rank's group begins; None for a rank in none."""
    if case.start == "barrier":
        return None if together is None else Start(together)
    if setting.clock is None:
        raise InputError(f"{case.label}: no clock was synchronised")
    if together is None:
        return None
    begin = perf_counter()
    for _ in range(TRIALS):
        together.broadcast_object(0.0)
        together.barrier()  # the first rank tells and is gone: all must have heard
    mine = [(perf_counter() - begin) / TRIALS, setting.clock.error_s(perf_counter())]
    told_s, error_s = map(max, zip(*together.allgather_object(mine), strict=True))
    lead_s = LEAD_FACTOR * (told_s + error_s) + SHORTEST_LEAD_S
    return Start(together, setting.clock, lead_s)


def _block(
    case: CollectiveCase, exercise: Exercise | None, start: Start | None, calls: int
) -> TimedBlock:
    if exercise is None or start is None:
        return idle_block(case.operation)
    return exercise_block(case.label, exercise, start, calls, case.cold)


def _calls(
    setting: CollectiveSetting, case: CollectiveCase, exercise: Exercise | None, start: Start | None
) -> int:
    """Calls that one timing must hold; one where each call must begin cold."""
    if case.cold:
        return 1
    control = setting.control
    once = _block(case, exercise, start, 1)
    seconds = math.inf
    for n in (1, TRIALS):  # one call is enough to see that a call is long
        timings = once(n)
        trial = merge_ranks(control.allgather_object(dict(timings.seconds)))
        seconds = min(seconds, *(max(row) for row in trial[case.operation]))
        if seconds > LONG_CALL_S:
            break
    mine = setting.timer.calls_for(seconds)
    if exercise is not None and exercise.comm.queues:
        mine = max(mine, min(MOST_QUEUED, math.ceil(LEAST_QUEUED_S / seconds)))
    return int(max(control.allgather_object(mine)))


def _apart(block: TimedBlock, control: Control, is_idle: bool) -> TimedBlock:
    """A block of some ranks, while the others sleep until it is over."""

    def quietly(n: int) -> Timings:
        timings = block(n)
        if is_idle:
            with idle():
                control.quiet_barrier()
        else:
            control.quiet_barrier()
        return timings

    return quietly
