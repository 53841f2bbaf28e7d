"""Time one layer alone, at a rank's batch: whole passes, or the parts of the backward."""

from __future__ import annotations

import torch

from calib.microbench.cases import LayerCase
from calib.microbench.communicator import Control
from calib.microbench.layers.cuda import measure_on_cuda
from calib.microbench.layers.work import check_case, start_work
from calib.microbench.timing.caches import evict
from calib.microbench.timing.clock import Clock
from calib.microbench.timing.repeat import Repetitions, repeat
from calib.microbench.timing.stretches import host_block, nothing


def measure_layer(
    communicator: Control,
    case: LayerCase,
    seed: int,
    budget_s: float,
    target: float,
    device_index: int = 0,
    clock: Clock | None = None,
) -> Repetitions:
    """Repetitions of a layer's passes, in seconds; which, says LayerWork.stretches.

    All ranks start each repetition together, so that they disturb one another as in training. One
    timing holds one call: each backward needs a forward of its own, and gradients are dropped
    before each (`set_to_none`), as the training loop does. `cold` evicts the caches before each
    stretch; a backward behind its forward finds what that left. The very first call is part of the
    budget and kept as `first_s`, the maximum over ranks. `device_index` is the rank's CUDA device.

    Raises InputError for a case that cannot be, MeasurementError on every rank where torch fails on
    any (no such kernel for the dtype, out of memory), MachineError where CUDA is missing.
    """
    check_case(case)
    if case.device == "cuda":
        return measure_on_cuda(communicator, case, seed, budget_s, target, device_index, clock)
    work, first_s = start_work(communicator, case, seed, torch.device("cpu"), nothing)
    before = evict if case.cold else nothing
    block = host_block(communicator, case.label, work.stretches(case.passes), before)
    result = repeat(communicator, block, max(0.0, budget_s - first_s), target, clock=clock)
    result.first_s = first_s
    return result
