"""Rows that laws of layers are fitted to: by kind, by family of kinds, and of all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from types import MappingProxyType
from typing import NamedTuple

from calib.fitting.parameters.file import LayerTime
from calib.fitting.parameters.work import ANY_KIND, Work, work_of
from calib.fitting.sections.compute import of_slowest_rank
from calib.foundation.execution import execution_of
from calib.foundation.layer_keys import but_batch
from calib.foundation.operators import FAMILIES, KERNELS, family_of
from calib.foundation.statistics import median
from calib.microbench.cases import InPlaceCase, LayerCase
from calib.microbench.peaks import is_for_peaks
from calib.microbench.records.samples import Samples

WHOLE, PARTS = ("forward", "backward"), ("backward_data", "backward_weight")


Owners = Mapping[tuple[str, str], str]  # layer without its batch -> the one model that has it


def owners_of(cases: Iterable[InPlaceCase]) -> Owners:
    """Whose the layers of the models in place are; not those that several have."""
    found: dict[tuple[str, str], str] = {}
    for case in cases:
        for layer in map(but_batch, case.layer_keys):
            found[layer] = case.model if found.get(layer, case.model) == case.model else ""
    return found


@dataclass
class WorkRows:
    """What one law is fitted on: work, seconds, launch, layer, batch, kind and model of every row.

    The model is the one that alone has the layer, "" where there are several or none.
    """

    work: list[Work] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    launches: list[int] = field(default_factory=list)
    layers: list[str] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    models: list[str] = field(default_factory=list)

    def add(
        self, case: LayerCase, direction: str, launches: Mapping[int, float], owners: Owners
    ) -> None:
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
            self.batches.append(case.batch)
            self.kinds.append(case.layer.name)
            self.models.append(owners.get(but_batch(case.key), ""))

    @property
    def n_layers(self) -> int:
        """How many different layers, at whatever batch."""
        return len(set(self.layers))

    @property
    def n_kinds(self) -> int:
        """How many different kinds of layers."""
        return len(set(self.kinds))


class WorkKey(NamedTuple):
    """Whose law it is, a kind, one of its kernels, a family or ANY_KIND; and of what."""

    kind: str
    direction: str
    execution: str
    active_ranks: int

    @property
    def is_of_kernel(self) -> bool:
        """Whether it is a law of a part of a kind."""
        return any(self.kind in kernels for kernels in KERNELS.values())

    @property
    def is_of_kinds(self) -> bool:
        """Whether it is a law of several kinds."""
        return self.kind == ANY_KIND or self.kind in FAMILIES


Passes = dict[tuple[str, str, int], Samples]  # layer key, operation, active ranks


def work_rows(
    times: Sequence[LayerTime],
    cases: Mapping[str, LayerCase],
    samples: Samples,
    owners: Owners = MappingProxyType({}),
) -> dict[WorkKey, WorkRows]:
    """The rows of every law that there could be: whole passes, and parts of the backward by kind."""
    layers = samples.where(kind="layer")
    by_key = {case.key: case for case in cases.values() if not case.cold}
    executions = sorted({case.execution for case in by_key.values() if not is_for_peaks(case)})
    rows = _rows_of_times(times, by_key, _passes(layers, cases, WHOLE), executions, owners)
    for (layer, operation, active_ranks), measured in _passes(layers, cases, PARTS).items():
        case = by_key[layer]
        launches = medians_of_launches(measured)
        for execution in runs_under(case, executions):
            key = WorkKey(case.layer.name, operation, execution, active_ranks)
            rows[key].add(case, operation, launches, owners)
    return rows


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
    owners: Owners,
) -> dict[WorkKey, WorkRows]:
    """Rows of whole passes by law: each counts under its kernel, kind, family and all."""
    rows: dict[WorkKey, WorkRows] = defaultdict(WorkRows)
    for time in times:
        case = by_key[time.key]
        of = (case.layer.kernel, time.kind, family_of(time.kind), ANY_KIND)
        kinds = dict.fromkeys(filter(None, of))
        for direction, estimate in zip(WHOLE, (time.forward_s, time.backward_s), strict=True):
            # no backward, or that of a first layer, which computes no dL/dx
            if estimate.value <= 0 or not (direction == "forward" or case.needs_input_grad):
                continue
            if direction == "forward" and case.layer.is_view:  # no kernel: a call alone
                continue
            measured = passes.get((time.key, direction, time.active_ranks))
            launches = (measured and medians_of_launches(measured)) or {0: estimate.value}
            for kind, execution in product(kinds, runs_under(case, executions)):
                key = WorkKey(kind, direction, execution, time.active_ranks)
                rows[key].add(case, direction, launches, owners)
    return rows


def medians_of_launches(samples: Samples) -> dict[int, float]:
    """launch -> median seconds of the rank that is slowest over all."""
    launches: dict[int, list[float]] = defaultdict(list)
    for launch, seconds in of_slowest_rank(samples):
        launches[launch].append(seconds)
    return {launch: median(values) for launch, values in sorted(launches.items())}
