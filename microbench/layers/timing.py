"""Time one layer alone, at a rank's batch: whole passes, or the parts of the backward."""

from __future__ import annotations

from calib.foundation.errors import InputError
from calib.foundation.execution import execution_of
from calib.microbench.calls import measure_calls
from calib.microbench.cases import LayerCase
from calib.microbench.control import Control
from calib.microbench.device import CPU, Device
from calib.microbench.layers.work import check_case, start_work
from calib.microbench.timing.clock import Clock
from calib.microbench.timing.repeat import Repetitions
from calib.microbench.timing.stretches import Attempts, CallStretch


def measure_layer(
    communicator: Control,
    case: LayerCase,
    seed: int,
    budget_s: float,
    target: float,
    clock: Clock | None = None,
    device: Device = CPU,
) -> Repetitions:
    """Repetitions of a layer's passes, in seconds; RunnableLayer.stretches says which.

    All ranks start each repetition together, so that they disturb one another as in training. On a CPU
    one timing holds one call: each backward needs a forward of its own, and gradients are dropped
    before each (`set_to_none`), as the training loop does. On a GPU it holds as many as its clock
    needs (calls.py). `cold` evicts the caches before each stretch; a backward behind its forward finds
    what that left. The very first call is part of the budget and kept as `first_s`, the maximum over
    ranks.

    On a GPU `ranks` are the device's seconds, `host` the host's, and one more run each is made for the
    kernels' names and their workspace (none where that fails).

    Raises InputError for a case that cannot be, MeasurementError on every rank where torch fails on
    any (no such kernel for the dtype, out of memory).
    """
    check_case(case)
    if case.device != device.kind:
        raise InputError(f"{case.label}: this rank measures on {device.kind}")
    with device.arithmetic(execution_of(case.execution).dtype):
        work, first_s = start_work(communicator, case, seed, device)
        attempts = Attempts(case.label)
        stretches: list[CallStretch] = []
        attempts.run(lambda: stretches.extend(work.stretches(case.passes)))
        attempts.agree(communicator)
        result = measure_calls(
            communicator, device, case.label, stretches, first_s, budget_s, target, case.cold, clock
        )
        if device.events is not None:
            Attempts(case.label).run(
                lambda: result.workspace.update(work.workspace(case.passes, device))
            )
        return result
