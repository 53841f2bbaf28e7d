"""Passes over lists of tensors (update, pack, unpack, ...): seconds by their number and bytes.

In an iteration a pass meets cold caches, and what the framework does around it: lists that a model's
iterations were timed with have that time, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from calib.fitting.estimate import slowest_rank
from calib.fitting.estimators.affine import AffineInBytes
from calib.fitting.launches import NO_OTHERS, Launches
from calib.fitting.parameters.file import TensorLoop
from calib.fitting.sections.compute import of_slowest_rank
from calib.fitting.sections.memory import none_if_nan
from calib.foundation.execution import execution_of
from calib.foundation.records import Estimate
from calib.microbench.cases import InPlaceCase
from calib.microbench.records.samples import Samples

IN_PLACE = ("update", "pack", "unpack")
COEFFICIENTS = ("call_s", "s_per_tensor", "s_per_byte")
# operation ("update" is momentum's, "update_adam" Adam's), device, execution, active ranks
Loop = tuple[str, str, str, int]


def tensor_loops(
    samples: Samples,
    seed: int = 0,
    cases: Mapping[str, InPlaceCase] | None = None,
    among: Launches = NO_OTHERS,
) -> list[TensorLoop]:
    """One TensorLoop for every (operation, device, execution, active ranks), with its lists, sorted.

    Shards (concat, split) count as tensors. `cases` are those of models in place, by case id.
    """
    rows: dict[Loop, list[Samples]] = defaultdict(list)
    tensors = samples.where(kind="tensors").groups("case_id", "operation")
    for (_, operation), repetitions in sorted(tensors.items()):
        first = repetitions.first
        rows[operation, first.device, first.dtype, first.active_ranks].append(repetitions)
    in_place = _in_place(samples, cases or {}, among)
    return [
        _loop(key, values, seed, among).model_copy(update={"in_place": in_place.get(key, {})})
        for key, values in sorted(rows.items())
    ]


def _loop(key: Loop, lists: list[Samples], seed: int, among: Launches) -> TensorLoop:
    x, y, launches = [], [], []
    measured: dict[str, Estimate] = {}
    for repetitions in lists:
        first, times = repetitions.first, of_slowest_rank(repetitions)
        x += [[float(first.ntensors), float(first.nbytes)]] * len(times)
        y += [seconds for _, seconds in times]
        launches += [launch for launch, _ in times]
        measured[first.key] = slowest_rank(repetitions, among)
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


def _in_place(
    samples: Samples, cases: Mapping[str, InPlaceCase], among: Launches
) -> dict[Loop, dict[str, Estimate]]:
    """The times of lists in the iterations of models.

    Of a list that several strategies have, that of one whose ranks have the whole model.
    """
    found: dict[Loop, dict[str, Estimate]] = defaultdict(dict)
    groups = samples.where(kind="in_place").groups("case_id", "operation")
    rows = {row: of for row, of in groups.items() if row[0] in cases and row[1] in IN_PLACE}
    whole_first = sorted(rows, key=lambda row: (not cases[row[0]].division.traits.whole, row))
    for case_id, phase in whole_first:
        case, of = cases[case_id], rows[case_id, phase]
        run = execution_of(case.execution)
        if case.is_overlap or case.layer_ranks or run.cuda_graph:
            continue
        other = phase == "update" and case.optimizer != "momentum"
        operation = f"update_{case.optimizer}" if other else phase
        loop = operation, case.device, run.kernels.name, of.first.active_ranks
        key, _, _ = case.passed(phase)
        found[loop].setdefault(key, slowest_rank(of, among))
    return {loop: dict(sorted(lists.items())) for loop, lists in found.items()}
