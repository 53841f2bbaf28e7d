"""Layer times: the table of measured ones, and work models for the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from types import MappingProxyType

import numpy as np

from calib.fitting.estimate import slowest_rank
from calib.fitting.estimators.layers.roofline import Roofline
from calib.fitting.parameters.file import LayerTime, WorkModel
from calib.fitting.parameters.work import ANY_KIND, Work, work_of
from calib.fitting.regression import MIN_ROWS
from calib.foundation.arrays import Floats
from calib.foundation.execution import execution_of
from calib.foundation.records import Estimate
from calib.foundation.statistics import median
from calib.microbench.cases import LayerCase
from calib.microbench.peaks import is_for_peaks
from calib.microbench.records.samples import NO_SAMPLES, Samples

ZERO = Estimate.exactly(0.0)
COMPUTE_BOUND = ("conv", "linear")
WHOLE, PARTS = ("forward", "backward"), ("backward_data", "backward_weight")
# enough for the interval of a price; a file holds dozens of laws
BOOTSTRAPS = 100


Kernels = Mapping[str, Mapping[str, list[str]]]  # case, operation, names
Workspace = Mapping[str, Mapping[str, int]]  # case, operation, bytes


def layer_times(
    samples: Samples,
    cases: Mapping[str, LayerCase],
    kernels: Kernels = MappingProxyType({}),
    workspace: Workspace = MappingProxyType({}),
) -> list[LayerTime]:
    """One LayerTime for every measured (layer key, active ranks), sorted."""
    groups = samples.where(kind="layer").groups("case_id", "operation")
    times = []
    for case_id in sorted({case_id for case_id, _ in groups}):
        case = cases[case_id]
        if not (case.passes == "whole" and not case.cold):
            continue
        forward = groups.get((case_id, "forward"))
        if not forward:
            continue
        backward = groups.get((case_id, "backward"))
        times.append(
            LayerTime(
                key=case.key,
                kind=case.layer.kind,
                batch=case.batch,
                active_ranks=forward.first.active_ranks,
                forward_s=slowest_rank(forward),
                backward_s=slowest_rank(backward) if backward else ZERO,
                n=len(forward),
                kernels=dict(kernels.get(case_id, {})),
                workspace_bytes=dict(workspace.get(case_id, {})),
            )
        )
    return sorted(times, key=lambda time: (time.active_ranks, time.key))


@dataclass
class WorkRows:
    """What one law is fitted on: work, seconds, launch and layer of every row, in step."""

    work: list[Work] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    launches: list[int] = field(default_factory=list)
    layers: list[str] = field(default_factory=list)

    def add(self, case: LayerCase, direction: str, launches: Mapping[int, float]) -> None:
        """The seconds of each launch of one pass; a layer is the same one at every batch."""
        items = execution_of(case.execution).items
        work = work_of(case.layer, case.batch, direction, case.needs_input_grad, items)
        if case.device != "cpu":  # PyTorch keeps a GPU's memory, and no page is fresh
            work = work._replace(fresh_bytes=0.0)
        for launch, seconds in launches.items():
            self.work.append(work)
            self.seconds.append(seconds)
            self.launches.append(launch)
            self.layers.append(case.layer.key(1))

    @property
    def n_layers(self) -> int:
        """How many different layers, at whatever batch."""
        return len(set(self.layers))


WorkKey = tuple[str, str, str, int]  # kind, direction, execution, active ranks
Passes = dict[tuple[str, str, int], Samples]  # layer key, operation, active ranks


def work_models(
    times: Sequence[LayerTime],
    cases: Mapping[str, LayerCase],
    samples: Samples = NO_SAMPLES,
    seed: int = 0,
) -> list[WorkModel]:
    """A law per kind, direction, execution and active ranks, sorted.

    By fitting/estimators/layers/roofline.py. A law is of all layers as its execution runs them: with
    channels last also of those that this changes nothing of (LayerShape.runs_as). `times` are
    `layer_times` of the `samples`; from these come how launches differ and the parts of the backward. A
    kind with under MIN_ROWS distinct layers is left to the law of all memory-bound kinds ("any"). Where
    no layer of a kind wrote fresh pages, the price of these is that of the best checked kind that did:
    it is the system's, whatever is computed.
    """
    layers = samples.where(kind="layer")
    by_key = {case.key: case for case in cases.values() if not case.cold}
    executions = sorted({case.execution for case in by_key.values() if not is_for_peaks(case)})
    rows = _rows_of_times(times, by_key, _passes(layers, cases, WHOLE), executions)
    for (layer, operation, active_ranks), measured in _passes(layers, cases, PARTS).items():
        case = by_key[layer]
        launches = medians_of_launches(measured)
        for execution in runs_under(case, executions):
            rows[case.layer.kind, operation, execution, active_ranks].add(case, operation, launches)
    models = [
        _work_model(key, values, seed)
        for key, values in sorted(rows.items())
        if key[0] in (ANY_KIND, *COMPUTE_BOUND) or values.n_layers >= MIN_ROWS
    ]
    return [_with_fresh_price(model, models) for model in models]


def runs_under(case: LayerCase, executions: Sequence[str]) -> list[str]:
    """Those under which the layer is the one that was measured."""
    return [name for name in executions if case.layer.runs_as(name) == case.execution]


def _passes(samples: Samples, cases: Mapping[str, LayerCase], operations: Sequence[str]) -> Passes:
    """The samples of these operations, of layers as training runs them, sorted."""
    keys = {case_id: case.key for case_id, case in cases.items() if not case.cold}
    found: Passes = {}
    for (case_id, operation, active), rows in samples.groups(
        "case_id", "operation", "active_ranks"
    ).items():
        if operation in operations and case_id in keys:
            key = keys[case_id], operation, active
            found[key] = found[key].joined([rows]) if key in found else rows
    return dict(sorted(found.items()))


def _rows_of_times(
    times: Sequence[LayerTime],
    by_key: Mapping[str, LayerCase],
    passes: Passes,
    executions: Sequence[str],
) -> dict[WorkKey, WorkRows]:
    """Rows of whole passes by law; memory-bound kinds count under "any", too."""
    rows: dict[WorkKey, WorkRows] = defaultdict(WorkRows)
    for time in times:
        case = by_key[time.key]
        kinds = [time.kind] if time.kind in COMPUTE_BOUND else [time.kind, ANY_KIND]
        for direction, estimate in zip(WHOLE, (time.forward_s, time.backward_s), strict=True):
            # no backward, or that of a first layer, which computes no dL/dx
            if estimate.value <= 0 or not (direction == "forward" or case.needs_input_grad):
                continue
            measured = passes.get((time.key, direction, time.active_ranks))
            launches = (measured and medians_of_launches(measured)) or {0: estimate.value}
            for kind, execution in product(kinds, runs_under(case, executions)):
                rows[kind, direction, execution, time.active_ranks].add(case, direction, launches)
    return rows


def of_slowest_rank(samples: Samples) -> list[tuple[int, float]]:
    """(launch, seconds) of every repetition of the rank that is slowest over all (`slowest_rank`)."""
    times = samples.rank_seconds
    medians = [median(seconds) for seconds in np.sort(times, axis=0).T.tolist()]
    return taking_time(samples, times[:, medians.index(max(medians))])


def taking_time(samples: Samples, seconds: Floats) -> list[tuple[int, float]]:
    """(launch, seconds) of every row whose clock saw any time pass."""
    pairs = zip(samples["launch"].tolist(), seconds.tolist(), strict=True)
    return [(launch, seconds) for launch, seconds in pairs if seconds > 0]


def medians_of_launches(samples: Samples) -> dict[int, float]:
    """launch -> median seconds of the rank that is slowest over all."""
    launches: dict[int, list[float]] = defaultdict(list)
    for launch, seconds in of_slowest_rank(samples):
        launches[launch].append(seconds)
    return {launch: median(values) for launch, values in sorted(launches.items())}


def _work_model(key: WorkKey, rows: WorkRows, seed: int) -> WorkModel:
    kind, direction, execution, active_ranks = key
    law = Roofline(seed=seed, bootstraps=BOOTSTRAPS).fit(
        rows.work, rows.seconds, groups=rows.launches, names=rows.layers
    )
    low, high = law.range_.tolist()
    return WorkModel(
        kind=kind,
        execution=execution,
        direction=direction,
        active_ranks=active_ranks,
        form=law.form_,
        intervals=law.intervals_,
        neighbours=[tuple(row) for row in law.neighbours_.tolist()],
        reach=law.reach_,
        error_factor=law.error_factor_,
        growth_per_decade=law.growth_per_decade_,
        min_flops=low[0],
        max_flops=high[0],
        min_bytes=low[1],
        max_bytes=high[1],
        max_fresh_bytes=high[4],
        n_layers=rows.n_layers,
        n=law.n_,
        score=law.score_,
        runner_up=law.runner_up_,
        runner_up_score=law.runner_up_score_,
        residual_quantiles=law.residual_quantiles_.tolist(),
        **law.coefficients_,
    )


def _with_fresh_price(model: WorkModel, models: Sequence[WorkModel]) -> WorkModel:
    """The model, with the price of fresh pages where it saw none and another kind did."""
    if model.max_fresh_bytes > 0:
        return model
    whole = "forward" if model.direction == "forward" else "backward"
    others = [
        other
        for other in models
        if other.s_per_fresh_byte > 0
        and (other.execution, other.active_ranks) == (model.execution, model.active_ranks)
    ]
    if not others:
        return model
    best = min(others, key=lambda o: (o.direction != whole, o.error_factor, o.kind))
    name = "s_per_fresh_byte"
    price = {name: best.intervals[name]} if name in best.intervals else {}
    return model.model_copy(
        update={name: best.s_per_fresh_byte, "intervals": model.intervals | price}
    )
