"""Laws of layers that were not measured: of their kind, of a family of kinds, of all layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from calib.fitting.estimators.layers.roofline import Roofline
from calib.fitting.estimators.layers.roofline_choice import GAIN
from calib.fitting.parameters.file import LayerTime, WorkModel
from calib.fitting.parameters.work import ANY_KIND
from calib.fitting.regression import MIN_ROWS
from calib.fitting.sections.few_layers import FRESH_PRICE, laws_of_few
from calib.fitting.sections.work_errors import with_errors
from calib.fitting.sections.work_rows import Owners, WorkKey, WorkRows, work_rows
from calib.foundation.operators import KERNELS, family_of
from calib.microbench.cases import LayerCase
from calib.microbench.records.samples import NO_SAMPLES, Samples

# enough for the interval of a price; a file holds dozens of laws
BOOTSTRAPS = 100


def work_models(
    times: Sequence[LayerTime],
    cases: Mapping[str, LayerCase],
    samples: Samples = NO_SAMPLES,
    seed: int = 0,
    owners: Owners = MappingProxyType({}),
) -> list[WorkModel]:
    """The laws by kind, direction, execution and active ranks, sorted.

    By fitting/estimators/layers/roofline.py. A law is of all layers as its execution runs them: with
    channels last also of those that this changes nothing of (LayerShape.runs_as). `times` are
    `layer_times` of the `samples`; from these come how launches differ and the parts of the backward.

    A kind has a law of its own from MIN_ROWS distinct layers on, a family from MIN_ROWS kinds on, and
    all layers together have one ("any"). These two are checked on kinds that they were not fitted to
    (the law of fewer kinds on layers). A kind of fewer layers has the law of all, dearer or cheaper as
    its layers say. Kernels of a kind have their own where these say layers left out better.

    Where no layer of a kind wrote fresh pages, the price of these is that of the best checked kind that
    did: it is the system's, whatever is computed.
    """
    rows = work_rows(times, cases, samples, owners)
    models = [
        _work_model(key, of, seed) for key, of in sorted(rows.items()) if _has_law(key, of, rows)
    ]
    models = _with_better_kernels(models)
    models = with_errors([*models, *laws_of_few(models, rows)], rows)
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
    if key.is_of_kernel:
        return of.n_layers >= MIN_ROWS
    alone = family_of(key.kind) == "products" and (every is None or every.n_kinds < MIN_ROWS)
    return of.n_layers >= MIN_ROWS or alone


def _with_better_kernels(models: Sequence[WorkModel]) -> list[WorkModel]:
    """Without the laws of kernels that do not say layers left out better than that of their kind."""
    kept = list(models)
    for kind, kernels in KERNELS.items():
        for whole in (law for law in models if law.kind == kind):
            parts = [
                law
                for law in models
                if law.kind in kernels
                and (law.direction, law.execution, law.active_ranks)
                == (whole.direction, whole.execution, whole.active_ranks)
            ]
            squares = sum(law.n_layers * law.score**2 for law in parts)
            if squares >= (GAIN * whole.score) ** 2 * sum(law.n_layers for law in parts):
                kept = [law for law in kept if law not in parts]
    return kept


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
