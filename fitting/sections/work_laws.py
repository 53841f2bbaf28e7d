"""Laws of layers that were not measured: of their kind, of a family of kinds, of all layers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from calib.fitting.estimators.layers.price_law import PRICES
from calib.fitting.estimators.layers.roofline import Roofline
from calib.fitting.parameters.file import LayerTime, WorkModel
from calib.fitting.parameters.work import ANY_KIND, Work, price_of, work_of
from calib.fitting.regression import MIN_ROWS, error_factor
from calib.fitting.sections.compute import of_slowest_rank
from calib.foundation.execution import execution_of
from calib.foundation.operators import FAMILIES, family_of
from calib.foundation.statistics import median
from calib.microbench.cases import LayerCase
from calib.microbench.peaks import is_for_peaks
from calib.microbench.records.samples import NO_SAMPLES, Samples

WHOLE, PARTS = ("forward", "backward"), ("backward_data", "backward_weight")
# enough for the interval of a price; a file holds dozens of laws
BOOTSTRAPS = 100
FRESH_PRICE = "s_per_fresh_byte"


@dataclass
class WorkRows:
    """What one law is fitted on: work, seconds, launch, layer and kind of every row, in step."""

    work: list[Work] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    launches: list[int] = field(default_factory=list)
    layers: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)

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
            self.kinds.append(case.layer.name)

    @property
    def n_layers(self) -> int:
        """How many different layers, at whatever batch."""
        return len(set(self.layers))

    @property
    def n_kinds(self) -> int:
        """How many different kinds of layers."""
        return len(set(self.kinds))


class WorkKey(NamedTuple):
    """Whose law it is, a kind, a family or ANY_KIND; and of what."""

    kind: str
    direction: str
    execution: str
    active_ranks: int

    @property
    def is_of_kinds(self) -> bool:
        """Whether it is a law of several kinds."""
        return self.kind == ANY_KIND or self.kind in FAMILIES


Passes = dict[tuple[str, str, int], Samples]  # layer key, operation, active ranks


def work_models(
    times: Sequence[LayerTime],
    cases: Mapping[str, LayerCase],
    samples: Samples = NO_SAMPLES,
    seed: int = 0,
) -> list[WorkModel]:
    """The laws by kind, direction, execution and active ranks, sorted.

    By fitting/estimators/layers/roofline.py. A law is of all layers as its execution runs them: with
    channels last also of those that this changes nothing of (LayerShape.runs_as). `times` are
    `layer_times` of the `samples`; from these come how launches differ and the parts of the backward.

    A kind has a law of its own from MIN_ROWS distinct layers on, a family from MIN_ROWS kinds on, and
    all layers together have one ("any"). These two are checked on kinds that they were not fitted to
    (the law of fewer kinds on layers). A kind of fewer layers has the law of all, dearer or cheaper as
    its layers say.

    Where no layer of a kind wrote fresh pages, the price of these is that of the best checked kind that
    did: it is the system's, whatever is computed.
    """
    layers = samples.where(kind="layer")
    by_key = {case.key: case for case in cases.values() if not case.cold}
    executions = sorted({case.execution for case in by_key.values() if not is_for_peaks(case)})
    rows = _rows_of_times(times, by_key, _passes(layers, cases, WHOLE), executions)
    for (layer, operation, active_ranks), measured in _passes(layers, cases, PARTS).items():
        case = by_key[layer]
        launches = medians_of_launches(measured)
        for execution in runs_under(case, executions):
            key = WorkKey(case.layer.name, operation, execution, active_ranks)
            rows[key].add(case, operation, launches)
    models = [
        _work_model(key, of, seed) for key, of in sorted(rows.items()) if _has_law(key, of, rows)
    ]
    models += _laws_of_few(models, rows)
    models.sort(key=lambda law: (law.kind, law.direction, law.execution, law.active_ranks))
    return [_with_fresh_price(model, models) for model in models]


def _has_law(key: WorkKey, of: WorkRows, rows: Mapping[WorkKey, WorkRows]) -> bool:
    """Whether a law is fitted to these rows alone.

    Products are, where the law of all has too few kinds to say what an operation takes; a law of all
    that has one kind of product alone would be the same again.
    """
    if key.kind == ANY_KIND:
        return of.n_kinds > 1 or family_of(of.kinds[0]) != "products"
    if key.is_of_kinds:
        return of.n_kinds >= MIN_ROWS
    every = rows.get(key._replace(kind=ANY_KIND))
    alone = family_of(key.kind) == "products" and (every is None or every.n_kinds < MIN_ROWS)
    return of.n_layers >= MIN_ROWS or alone


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
    """Rows of whole passes by law: each counts under its kind, its family and all."""
    rows: dict[WorkKey, WorkRows] = defaultdict(WorkRows)
    for time in times:
        case = by_key[time.key]
        kinds = [kind for kind in (time.kind, family_of(time.kind), ANY_KIND) if kind]
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
                rows[key].add(case, direction, launches)
    return rows


def medians_of_launches(samples: Samples) -> dict[int, float]:
    """launch -> median seconds of the rank that is slowest over all."""
    launches: dict[int, list[float]] = defaultdict(list)
    for launch, seconds in of_slowest_rank(samples):
        launches[launch].append(seconds)
    return {launch: median(values) for launch, values in sorted(launches.items())}


def _work_model(key: WorkKey, rows: WorkRows, seed: int) -> WorkModel:
    kind, direction, execution, active_ranks = key
    names = rows.kinds if key.is_of_kinds and rows.n_kinds >= MIN_ROWS else rows.layers
    law = Roofline(seed=seed, bootstraps=BOOTSTRAPS).fit(
        rows.work, rows.seconds, groups=rows.launches, names=names
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
        n_kinds=rows.n_kinds,
        n=law.n_,
        score=law.score_,
        runner_up=law.runner_up_,
        runner_up_score=law.runner_up_score_,
        residual_quantiles=law.residual_quantiles_.tolist(),
        **law.coefficients_,
    )


def _laws_of_few(models: Sequence[WorkModel], rows: Mapping[WorkKey, WorkRows]) -> list[WorkModel]:
    """Laws of the kinds of too few layers: that of all, with dearer work, or cheaper altogether."""
    found = []
    have = {WorkKey(m.kind, m.direction, m.execution, m.active_ranks): m for m in models}
    for every, law in have.items():
        if every.kind != ANY_KIND or law.n_kinds < MIN_ROWS:
            continue
        plain = law.model_copy(update={"neighbours": []})
        kinds = {
            key: _parts(plain, of)
            for key, of in rows.items()
            if key._replace(kind=ANY_KIND) == every and not key.is_of_kinds
        }
        factor = _factor_within(list(kinds.values())) or law.error_factor
        found += [
            _of_kind(plain, key, rows[key], factor, _dearer(parts))
            for key, parts in kinds.items()
            if key not in have
        ]
    return found


class Parts(NamedTuple):
    """A row beside the law of all: what a call takes of it, its work, and what was measured."""

    layer: str
    call_s: float
    work_s: float
    seconds: float

    @property
    def dearer(self) -> float:
        """By what factor it is dearer: of more time the work is, of less the call as well."""
        more = self.seconds - self.call_s - self.work_s
        if more > 0 and self.work_s > 0:
            return 1.0 + more / self.work_s
        return self.seconds / (self.call_s + self.work_s)

    def off(self, dearer: float) -> float:
        """Log of what it takes where it is dearer by this, over what was measured."""
        return math.log((min(dearer, 1.0) * self.call_s + dearer * self.work_s) / self.seconds)


def _parts(law: WorkModel, rows: WorkRows) -> list[Parts]:
    return [
        Parts(layer, law.call_s, price_of(law, work).seconds - law.call_s, seconds)
        for layer, work, seconds in zip(rows.layers, rows.work, rows.seconds, strict=True)
    ]


def _dearer(rows: Sequence[Parts]) -> float:
    """By what factor a kind is dearer: of those that its rows say, the one of least log errors."""
    each = [row.dearer for row in rows]
    return min(each, key=lambda dearer: sum(abs(row.off(dearer)) for row in rows))


def _factor_within(kinds: Sequence[Sequence[Parts]]) -> float | None:
    """Within what factor a layer is known by the other layers of its kind; None: too few of them."""
    found = []
    for rows in kinds:
        for layer in dict.fromkeys(row.layer for row in rows):
            others = [row for row in rows if row.layer != layer]
            if others:
                dearer = _dearer(others)
                mine = [row.off(dearer) for row in rows if row.layer == layer]
                found.append(math.exp(median(mine)))
    return error_factor(found, [1.0] * len(found)) if len(found) >= MIN_ROWS else None


def _of_kind(
    law: WorkModel, key: WorkKey, rows: WorkRows, factor: float, dearer: float
) -> WorkModel:
    """The law of all as that of a kind which is dearer."""
    times = {name: dearer for name in PRICES} | {"call_s": min(dearer, 1.0), FRESH_PRICE: 1.0}
    return law.model_copy(
        update={
            **{name: times[name] * getattr(law, name) for name in PRICES},
            "intervals": {
                name: (times[name] * low, times[name] * high)
                for name, (low, high) in law.intervals.items()
            },
            "kind": key.kind,
            "error_factor": factor,
            "n_layers": rows.n_layers,
            "n": len(rows.seconds),
        }
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
    best = min(others, key=lambda o: (o.direction != whole, o.n_kinds > 1, o.error_factor, o.kind))
    price = {FRESH_PRICE: best.intervals[FRESH_PRICE]} if FRESH_PRICE in best.intervals else {}
    return model.model_copy(
        update={FRESH_PRICE: best.s_per_fresh_byte, "intervals": model.intervals | price}
    )
