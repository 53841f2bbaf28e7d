"""How far laws of layers are off where it matters: from batch to batch, and over a whole model."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from calib.fitting.estimators.layers.price_law import Terms, seconds, solve, with_call
from calib.fitting.estimators.layers.roofline_choice import SEARCH_STEPS, corrections, places_of
from calib.fitting.parameters.file import WorkModel
from calib.fitting.parameters.work import Work, seconds_of
from calib.fitting.regression import CONFIDENCE, MIN_ROWS, bound_of
from calib.fitting.sections.work_rows import WorkKey, WorkRows
from calib.foundation.arrays import Floats
from calib.foundation.statistics import median

DEVIATES = float(ndtri(0.5 + 0.5 * CONFIDENCE))  # standard deviations in the log of an error factor


def with_errors(laws: Sequence[WorkModel], rows: Mapping[WorkKey, WorkRows]) -> list[WorkModel]:
    """The laws with `batch_factor` and `shared`, each of all kinds together: few have enough alone.

    Layers of models that were left out may be farther from a law than layers that were: then its
    `error_factor` is theirs.
    """
    batches: dict[WorkKey, list[float]] = defaultdict(list)
    totals: dict[WorkKey, list[tuple[float, float]]] = defaultdict(list)
    found = []
    for law in laws:
        key = WorkKey(law.kind, law.direction, law.execution, law.active_ranks)
        factor = law.error_factor
        if not key.is_of_kinds:
            batches[key._replace(kind="")] += _off_per_doubling(law, rows[key])
            models = list(_models_left_out(law, rows[key]))
            if sum(model.n for model in models) >= MIN_ROWS:
                off = np.abs(np.concatenate([model.off.ravel() for model in models]))
                factor = max(factor, math.exp(bound_of(off)))
            deviation = math.log(factor) / DEVIATES
            totals[key._replace(kind="")] += [
                (model.total_off / deviation, model.concentration)
                for model in models
                if model.n > 1 and deviation > 0
            ]
        found.append((key._replace(kind=""), law, factor))
    return [
        law.model_copy(
            update={
                "error_factor": factor,
                "batch_factor": _batch_factor(batches[key]),
                "shared": _shared(totals[key]),
            }
        )
        for key, law, factor in found
    ]


class LeftOut(NamedTuple):
    """The layers of a model by prices of the others' layers, in each launch, as a training is one.

    Seconds [launches, n], and log(seconds / law) of the same shape.
    """

    seconds: Floats
    off: Floats

    @property
    def n(self) -> int:
        """Layers."""
        return int(self.seconds.shape[1])

    @property
    def total_off(self) -> float:
        """Log error of their total, the root mean square over launches."""
        said = (self.seconds / np.exp(self.off)).sum(axis=1)
        return float(np.sqrt((np.log(self.seconds.sum(axis=1) / said) ** 2).mean()))

    @property
    def concentration(self) -> float:
        """The sum of their squared shares of the time, on average."""
        shares = self.seconds / self.seconds.sum(axis=1, keepdims=True)
        return float((shares**2).sum(axis=1).mean())


def _batch_factor(off: Sequence[float]) -> float:
    return math.exp(bound_of(np.array(off))) if off else 0.0


def _off_per_doubling(law: WorkModel, rows: WorkRows) -> list[float]:
    """Log error of what a law says of two batches of a layer, for each doubling between them."""
    logs: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for layer, batch, work, time in zip(
        rows.layers, rows.batches, rows.work, rows.seconds, strict=True
    ):
        if (said := seconds_of(law, work)) > 0:
            logs[layer][batch].append(math.log(time / said))
    found = []
    for of_layer in logs.values():
        residuals = [(batch, median(each)) for batch, each in sorted(of_layer.items())]
        for number, (larger, above) in enumerate(residuals):
            for smaller, below in residuals[:number]:
                found.append(abs(above - below) / math.log2(larger / smaller))
    return found


def _shared(totals: Sequence[tuple[float, float]]) -> float:
    """The share of the variance that is common, by moments: z^2 is c + (1 - c) h on average.

    `totals`: for each model z, the log error of its layers' total over the deviation of a layer, and
    h, the sum of their squared shares of the time.
    """
    if len(totals) < MIN_ROWS:
        return 1.0
    more = sum(min(z**2, DEVIATES**2) - h for z, h in totals)
    return min(1.0, max(0.0, more / sum(1.0 - h for _, h in totals)))


def _models_left_out(law: WorkModel, rows: WorkRows) -> Iterator[LeftOut]:
    """Each model whose layers the others' can price."""
    times: dict[tuple[str, str, Work], dict[int, float]] = defaultdict(dict)
    for model, layer, work, launch, time in zip(
        rows.models, rows.layers, rows.work, rows.launches, rows.seconds, strict=True
    ):
        times[model, layer, work][launch] = time
    models = np.array([model for model, _, _ in times])
    layers = np.array([layer for _, layer, _ in times])
    x = with_call(np.array([work for _, _, work in times], dtype=float))
    t = np.array([median([*of.values()]) for of in times.values()])
    launches = sorted({*rows.launches})
    each = np.array([[of.get(n, np.nan) for of in times.values()] for n in launches])
    terms = Terms(tuple(law.intervals), law.form)
    for model in sorted({*models.tolist()} - {""}):
        held, kept = models == model, models != model
        if len({*layers[kept].tolist()}) < MIN_ROWS:
            continue
        prices = solve(x[kept], t[kept], np.ones(kept.sum()), terms, steps=SEARCH_STEPS)
        said = seconds(x[held], prices, law.form)
        if law.neighbours:
            residuals = np.log(t[kept] / seconds(x[kept], prices, law.form))
            places = places_of(x[:, 1:])
            said *= np.exp(corrections(places[kept], residuals, places[held], law.reach))
        whole = each[np.isfinite(each[:, held]).all(axis=1)][:, held]
        mine = whole if len(whole) else t[held][None]
        if (said > 0).all():
            yield LeftOut(mine, np.log(mine / said))
