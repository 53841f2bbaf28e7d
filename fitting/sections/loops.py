"""Passes over lists of tensors (update, pack, unpack, ...): seconds by their number and bytes."""

from __future__ import annotations

from collections import defaultdict

from calib.fitting.estimate import slowest_rank
from calib.fitting.estimators.affine import AffineInBytes
from calib.fitting.parameters.file import TensorLoop
from calib.fitting.sections.compute import of_slowest_rank
from calib.fitting.sections.memory import none_if_nan
from calib.foundation.records import Estimate
from calib.microbench.records.samples import Samples

COEFFICIENTS = ("call_s", "s_per_tensor", "s_per_byte")
# operation ("update" is momentum's, "update_adam" Adam's), device, execution, active ranks
Loop = tuple[str, str, str, int]


def tensor_loops(samples: Samples, seed: int = 0) -> list[TensorLoop]:
    """One TensorLoop for every (operation, device, execution, active ranks), with its lists, sorted.

    Shards (concat, split) count as tensors.
    """
    rows: dict[Loop, list[Samples]] = defaultdict(list)
    tensors = samples.where(kind="tensors").groups("case_id", "operation")
    for (_, operation), repetitions in sorted(tensors.items()):
        first = repetitions.first
        rows[operation, first.device, first.dtype, first.active_ranks].append(repetitions)
    return [_loop(key, values, seed) for key, values in sorted(rows.items())]


def _loop(key: Loop, lists: list[Samples], seed: int) -> TensorLoop:
    x, y, launches = [], [], []
    measured: dict[str, Estimate] = {}
    for repetitions in lists:
        first, times = repetitions.first, of_slowest_rank(repetitions)
        x += [[float(first.ntensors), float(first.nbytes)]] * len(times)
        y += [seconds for _, seconds in times]
        launches += [launch for launch, _ in times]
        measured[first.key] = slowest_rank(repetitions)
    law = AffineInBytes(seed=seed).fit(x, y, groups=launches)
    operation, device, execution, active_ranks = key
    ends = zip(law.low_.tolist(), law.high_.tolist(), strict=True)
    return TensorLoop(
        operation=operation,
        device=device,
        execution=execution,
        active_ranks=active_ranks,
        call_s=law.call_s_,
        s_per_tensor=law.s_per_tensor_,
        s_per_byte=law.s_per_byte_,
        intervals=dict(zip(COEFFICIENTS, ends, strict=True)),
        error_factor=law.error_factor_,
        mean_relative_error=law.error_,
        held_out_error=none_if_nan(law.held_out_error_),
        min_bytes=int(min(nbytes for _, nbytes in x)),
        max_bytes=int(max(nbytes for _, nbytes in x)),
        n=len(y),
        residual_quantiles=law.residual_quantiles_.tolist(),
        measured=dict(sorted(measured.items())),
    )
