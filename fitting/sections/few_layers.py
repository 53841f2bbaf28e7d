"""Laws of kinds of which few layers were measured, from the law of all layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from calib.fitting.estimators.layers.price_law import PRICES
from calib.fitting.parameters.file import WorkModel
from calib.fitting.parameters.work import ANY_KIND, price_of
from calib.fitting.regression import MIN_ROWS, error_factor
from calib.fitting.sections.work_rows import WorkKey, WorkRows
from calib.foundation.arrays import Floats
from calib.foundation.statistics import median

FRESH_PRICE = "s_per_fresh_byte"


def laws_of_few(models: Sequence[WorkModel], rows: Mapping[WorkKey, WorkRows]) -> list[WorkModel]:
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
            if key._replace(kind=ANY_KIND) == every and not (key.is_of_kinds or key.is_of_kernel)
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


def _parts(law: WorkModel, rows: WorkRows) -> list[Parts]:
    return [
        Parts(layer, law.call_s, price_of(law, work).seconds - law.call_s, seconds)
        for layer, work, seconds in zip(rows.layers, rows.work, rows.seconds, strict=True)
    ]


def _off(rows: Sequence[Parts]) -> Floats:
    """[n, m]: log of what row m takes where it is dearer as row n is, over what was measured."""
    call_s, work_s, seconds = np.array([row[1:] for row in rows]).T
    dearer = np.array([row.dearer for row in rows])[:, np.newaxis]
    found: Floats = np.log((np.minimum(dearer, 1.0) * call_s + dearer * work_s) / seconds)
    return found


def _dearer(rows: Sequence[Parts]) -> float:
    """By what factor a kind is dearer: of those that its rows say, the one of least log errors."""
    return rows[int(np.abs(_off(rows)).sum(axis=1).argmin())].dearer


def _factor_within(kinds: Sequence[Sequence[Parts]]) -> float | None:
    """Within what factor a layer is known by the other layers of its kind; None: too few of them."""
    found = []
    for rows in kinds:
        off, layers = _off(rows), np.array([row.layer for row in rows])
        for layer in dict.fromkeys(layers):
            mine = layers == layer
            if not mine.all():
                by_others = off[~mine]
                nearest = np.abs(by_others[:, ~mine]).sum(axis=1).argmin()
                found.append(math.exp(median(by_others[nearest, mine].tolist())))
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
