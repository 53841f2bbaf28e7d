"""How long each collective takes, before any is measured: a few calls of growing size.

On a slow network the largest message takes as long at its fewest repetitions as a whole launch should.
So the sizes of a plan are climbed with single calls, until one is long: what is between and beyond them
is on a line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from time import perf_counter

from calib.foundation.errors import CalibError
from calib.microbench.budget import FEWEST_CALLS, FIRST_OVERHEAD_S
from calib.microbench.cases import CollectiveCase, law_of
from calib.microbench.collectives.measure import CollectiveSetting, check, exercise_of
from calib.microbench.timing.watchdog import beat

# what does not change the time of a call much, beside its size: one call of them all is timed
HOW = ("cold", "mode", "start", "algorithm", "protocol")
# below the first of these bytes the start-up takes most of the time; above, each size is so many times
# the one before
LEAST_BYTES, FACTOR = 32768, 4
# a longer case says enough: links let some ms of data pass at the speed of memory
LONG_S = 0.5
# a single call finds a link that has rested; calls one behind another take longer
MARGIN = 1.25

CaseTimer = Callable[[CollectiveCase], float]


def needed_s(setting: CollectiveSetting, case: CollectiveCase) -> float:
    """Seconds of a case at its fewest repetitions, by one checked call of it; collective.

    Raises as measure_collective.
    """
    control, begin = setting.control, perf_counter()
    exercise, _ = exercise_of(setting, case)
    control.barrier()
    seconds = check(control, case, exercise)
    if exercise is not None:
        exercise.close()
    beat()
    beside = perf_counter() - begin - seconds  # buffers are filled, and compared
    calls_s = MARGIN * FEWEST_CALLS * seconds
    return float(control.broadcast_object(calls_s + max(beside, FIRST_OVERHEAD_S)))


def expected_s(
    timer: CaseTimer,
    cases: Sequence[CollectiveCase],
    time_s: float,
    begin: Callable[[CollectiveCase], None] = lambda case: None,
) -> dict[str, float]:
    """Case -> s of its fewest repetitions; without cases whose library or groups are missing.

    `timer` says them of a case, the same on all ranks, by one call; all these take about `time_s` s.
    `begin` is told before its calls of the largest case they are for: the likeliest to end the ranks.
    """
    calls: dict[tuple[object, ...], list[CollectiveCase]] = {}
    for case in cases:
        calls.setdefault(law_of(case, *HOW), []).append(case)
    long_s = min(LONG_S, FEWEST_CALLS / 2 * time_s / max(len(calls), 1))
    found: dict[str, float] = {}
    for of_call in calls.values():
        begin(max(of_call, key=lambda case: case.nbytes))
        try:
            line = climbed(timer, of_call, long_s)
        except CalibError:  # on all ranks; the case will say it when it is measured
            continue
        found |= {case.id: at(line, case.nbytes) for case in of_call}
    return found


def climbed(
    timer: CaseTimer, of_call: Sequence[CollectiveCase], long_s: float
) -> list[tuple[int, float]]:
    """(bytes, seconds) at growing sizes, from the smallest case on, to the largest at most.

    The first call connects the ranks, and one that takes much longer than the one before let expect was
    perhaps disturbed: these are made twice.
    """
    plain = {name: CollectiveCase.model_fields[name].default for name in HOW}
    smallest, largest = (f(case.nbytes for case in of_call) for f in (min, max))
    line: list[tuple[int, float]] = []
    nbytes = smallest
    while True:
        case = of_call[0].model_copy(update={**plain, "nbytes": nbytes})
        seconds = timer(case)
        if not line or seconds > 2 * line[-1][1] * nbytes / max(line[-1][0], LEAST_BYTES):
            seconds = min(seconds, timer(case))
        line.append((nbytes, seconds))
        if nbytes == largest or (seconds > long_s and len(line) > 1):
            return line
        nbytes = min(largest, max(LEAST_BYTES, FACTOR * nbytes))


def at(line: Sequence[tuple[int, float]], nbytes: int) -> float:
    """Seconds of so many bytes: on the line through the two measured sizes around or before them."""
    if len(line) == 1:
        return line[0][1]
    (few, short), (many, long) = next(
        (pair for pair in pairwise(line) if nbytes <= pair[1][0]), (line[-2], line[-1])
    )
    slope = max(0.0, long - short) / (many - few)
    return max(0.0, short + slope * (nbytes - few))
