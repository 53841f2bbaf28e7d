"""The trend of a history for programs: JSON and CSV, in SI units, accuracies from 0 to 1."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from calib.foundation.text import csv_row
from calib.reports.drift.records import Drift
from calib.reports.drift.trend import Trend, steps_at, strategies
from calib.reports.history.reading import MachineNights
from calib.reports.history.records import Past, PastPoint

COLUMNS = (
    "id",
    "run",
    "started",
    "nightly",
    "planned",
    "scored",
    "mean_of_strategy_means",
    "worst_accuracy",
    "worst_model",
    "worst_strategy",
    "worst_layout",
    "worst_p",
    "worst_batch_per_pe",
    "missing",
    "steps_begin",
    "steps_open",
)


def in_json(
    past: Past, nights: Sequence[Trend], drift: Drift, machines: Sequence[MachineNights]
) -> dict[str, Any]:
    """The nights that are shown, all steps, and which machines the history has besides."""
    newest = past.nights[-1]
    ids = [night.id for night in past.nights]
    steps = [
        {**asdict(step), "first": ids[step.first], "seen": ids[step.seen], "open": step.is_open}
        for step in drift.steps
    ]
    return {
        "machine": newest.machine,
        "cluster_name": newest.cluster_name,
        "nights": [_night(night, drift) for night in nights],
        "steps": steps,
        "words": list(drift.words),
        "accepted": [acceptance.model_dump() for acceptance in past.accepted],
        "machines": [each._asdict() for each in machines],
    }


def _night(night: Trend, drift: Drift) -> dict[str, Any]:
    of = night.of
    begin, still = steps_at(night.night, drift)
    return {
        "id": of.id,
        "run": of.run,
        "started": of.started,
        "nightly": of.nightly,
        "program_version": of.program_version,
        "parameters_id": of.parameters_id,
        "cluster_fingerprint": of.cluster_fingerprint,
        "planned": of.planned,
        "scored": night.scored,
        "strategy_means": night.strategy_means,
        "mean_of_strategy_means": night.mean_of_strategy_means,
        "worst": _worst(night.worst) if night.worst else None,
        "missing": [missing.model_dump() for missing in of.missing],
        "steps_begin": [step.series for step in begin],
        "steps_open": [step.series for step in still],
    }


def _worst(point: PastPoint) -> dict[str, Any]:
    return {
        "accuracy": point.accuracy,
        "model": point.model,
        "strategy": point.strategy,
        "layout": point.layout,
        "p": point.p,
        "batch_per_pe": point.batch_per_pe,
    }


def csv_text(nights: Sequence[Trend], drift: Drift) -> str:
    """One row a night: COLUMNS, then the mean accuracy of each strategy (empty where it has none).

    Names are no formulas for a spreadsheet (foundation/text.py).
    """
    names = strategies(nights)
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(csv_row([*COLUMNS, *(f"accuracy_{name}" for name in names)]))
    for night in nights:
        of, worst = night.of, night.worst
        begin, still = steps_at(night.night, drift)
        cells = [
            of.id,
            of.run,
            of.started,
            of.nightly,
            of.planned,
            night.scored,
            night.mean_of_strategy_means,
            *(
                (
                    worst.accuracy,
                    worst.model,
                    worst.strategy,
                    worst.layout,
                    worst.p,
                    worst.batch_per_pe,
                )
                if worst
                else (None,) * 6
            ),
            len(of.missing),
            len(begin),
            len(still),
            *(night.strategy_means.get(name) for name in names),
        ]
        writer.writerow(csv_row(cells))
    return stream.getvalue()
