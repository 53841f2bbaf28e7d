"""Calls that a rank makes by itself (layers, passes over tensors), timed on its device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from calib.microbench.control import Control
from calib.microbench.device import Device
from calib.microbench.timing.clock import Clock
from calib.microbench.timing.repeat import Repetitions, repeat
from calib.microbench.timing.stretches import Attempts, CallStretch, TimedCalls

TRIALS = 3
# a stream takes about 1,000 kernels before its host waits, and one call may run several
MOST_CALLS = 50


def measure_calls(
    control: Control,
    device: Device,
    label: str,
    stretches: Sequence[CallStretch],
    first_s: float,
    budget_s: float,
    target: float,
    cold: bool = False,
    clock: Clock | None = None,
) -> Repetitions:
    """Repetitions of calls, in seconds; `first_s`, which the very first ones took, is of the budget.

    On a GPU a timing holds several calls where its clock is too coarse for one, and one more run is
    profiled for the names of kernels. Collective. Raises MeasurementError on every rank where torch
    fails on any.
    """
    what = TimedCalls(control, label, stretches, cold=cold)
    calls = 1 if cold else _calls(control, device, what)
    if calls > 1:
        what = replace(what, stretches=[each.repeatable for each in stretches], calls=calls)
    result = repeat(control, device.timed(what), max(0.0, budget_s - first_s), target, calls, clock)
    result.first_s = first_s
    if device.events is not None:
        result.resolution_s = device.events.resolution_s / calls
        Attempts(label).run(lambda: result.kernels.update(_kernels(device, stretches)))
    return result


def _calls(control: Control, device: Device, what: TimedCalls) -> int:
    """Calls that one timing must hold: one on a CPU, where each is to be as in training."""
    if device.events is None:
        return 1
    trial = device.timed(what)(TRIALS).seconds.values()
    shortest = min(seconds for times in trial for seconds in times if seconds is not None)
    mine = min(device.events.calls_for(shortest), MOST_CALLS)
    return int(max(control.allgather_object(mine)))


def _kernels(device: Device, stretches: Sequence[CallStretch]) -> dict[str, list[str]]:
    """Operation -> names of the kernels that it ran, in one more run."""
    names: dict[str, list[str]] = {}
    for stretch in stretches:
        stretch.prepare()
        for name, call in stretch.calls.items():
            names[name] = device.kernels(call)
    return {name: found for name, found in names.items() if found}
