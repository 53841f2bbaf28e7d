"""Runs predicted from other runs of the same publication, each with an interval, and their scores."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calib.foundation.errors import InputError
from calib.reports.replay.forms import CandidateForm, PredictedRun, PublishedRun, candidates
from calib.reports.replay.published_tables import PublishedPoint
from calib.reports.replay.shapes import FIVE, Shapes
from calib.reports.replay.validation import COVERAGE, Calibration, calibrate, largest
from calib.reports.scoring.accuracy import score


@dataclass(frozen=True)
class Forecast:
    """A run, what was predicted of it, and the 90% interval; seconds in the row's unit."""

    run: PublishedRun
    predicted: PredictedRun
    low: float
    high: float

    @property
    def accuracy(self) -> float | None:
        """1 - |predicted - measured| / measured; None where nothing was measured."""
        measured = self.run.measured
        return None if measured is None else score(self.predicted.seconds, measured)

    @property
    def inside(self) -> bool | None:
        """Whether the interval holds the measured time."""
        return None if self.run.measured is None else self.low <= self.run.measured <= self.high


LeftOut = tuple[PublishedPoint, str]


@dataclass(frozen=True)
class Replay:
    """Forecasts of the second file, or of the largest p of the first."""

    calibration: Calibration
    forecasts: list[Forecast]
    left_out: list[LeftOut]

    def scores(self) -> dict[str, float]:
        """Strategy -> mean accuracy over its rows."""
        by: dict[str, list[float]] = defaultdict(list)
        for forecast in self.forecasts:
            if forecast.accuracy is not None:
                by[forecast.run.point.strategy].append(forecast.accuracy)
        return {strategy: float(np.mean(values)) for strategy, values in by.items()}

    def mean_of_five(self) -> float | None:
        """The mean over d, f, c, df, ds, of those that were scored."""
        scores = [value for strategy, value in self.scores().items() if strategy in FIVE]
        return float(np.mean(scores)) if scores else None

    def covered(self) -> float | None:
        """The share of scored rows whose interval holds the measured time."""
        inside = [f.inside for f in self.forecasts if f.inside is not None]
        return float(np.mean(inside)) if inside else None


def replay(
    shapes: Shapes, known: Sequence[PublishedPoint], wanted: Sequence[PublishedPoint] | None
) -> Replay:
    """Calibrate from some published points, and predict others.

    Parameters
    ----------
    shapes
        Of the models.
    known
        Points to calibrate from.
    wanted
        Points to predict; without them, the largest p of each series from the rest.

    Raises
    ------
    InputError
        Nothing can be predicted.
    """
    runs = [PublishedRun(point, shapes.of(point)) for point in known]
    left_out: list[LeftOut] = [
        (run.point, "it has no measured total") for run in runs if run.measured is None
    ]
    runs = [run for run in runs if run.measured is not None]
    if wanted is None:
        asked = largest(runs)
        held = {id(run) for run in asked}
        runs = [run for run in runs if id(run) not in held]
        several = {run.series for run in asked}
        left_out += [
            (run.point, "a series of one p has no largest to leave out")
            for run in runs
            if run.series not in several
        ]
    else:
        asked = [PublishedRun(point, shapes.of(point)) for point in wanted]
    if not runs:
        raise InputError("no row with a measured total to calibrate from")
    forms: list[CandidateForm] = candidates(published_alpha=bool(shapes.links))
    calibration = calibrate(forms, runs)
    forecasts = []
    for run in asked:
        predicted = calibration.predict(run)
        if predicted is None:
            left_out.append((run.point, _why(run, runs)))
        else:
            low, high = calibration.interval(run, predicted)
            forecasts.append(Forecast(run, predicted, low, high))
    if not forecasts:
        why = left_out[-1][1] if left_out else "there is none"
        raise InputError(f"no row can be predicted: {why}")
    return Replay(calibration, forecasts, left_out)


def _why(run: PublishedRun, runs: Sequence[PublishedRun]) -> str:
    """Why nothing is known of a run."""
    model, strategy = run.series
    if all(known.point.strategy != strategy for known in runs):
        return f"no run of strategy {strategy} to calibrate from"
    others = [known for known in runs if known.series == run.series]
    if run.shape.why and others:
        return run.shape.why
    if run.shape.why:
        return f"no run of {model} with {strategy} to calibrate from, and {run.shape.why}"
    return f"the runs of strategy {strategy} tell nothing of it"


def as_content(done: Replay) -> dict[str, Any]:
    """What --json prints; seconds in each row's unit."""
    of = done.calibration
    return {
        "form": {
            "name": of.fitted.form.name,
            "parameters": of.fitted.parameters,
            "growth": {str(k): v for k, v in of.fitted.growths.items()},
            "unscaled_compute_share": {_text(k): v for k, v in of.fitted.unscaled.items()},
            "compute_factor": {_text(k): v for k, v in of.fitted.factors.items()},
            "contention": {
                f"{_text(k)} {scope}": v for (k, scope), v in of.fitted.contention.items()
            },
            "total_factor": {_text(k): v for (k, _), v in of.fitted.whole.items()},
        },
        "candidates": [
            {
                "name": s.form.name,
                "parameters": s.parameters,
                "error": s.error,
                "behind_best": s.behind,
                "behind_standard_error": s.behind_standard_error,
                "left_out_runs": len(s.pairs),
            }
            for s in of.scored
        ],
        "interval": {
            "level": COVERAGE,
            "log_half_width_per_doubling": of.width.per_doubling,
            "log_half_width_of_other_models": of.width.stranger,
            "coverage_in_cross_validation": of.coverage,
            "also_holds": [fitted.form.name for fitted in of.near],
        },
        "rows": [_row(forecast) for forecast in done.forecasts],
        "scores": done.scores(),
        "mean_of_five": done.mean_of_five(),
        "covered": done.covered(),
        "left_out": [
            {"model": p.model, "strategy": p.strategy, "p": p.p, "why": why}
            for p, why in done.left_out
        ],
    }


def _text(key: object) -> str:
    return " ".join(map(str, key)) if isinstance(key, tuple) else str(key)


def _row(forecast: Forecast) -> dict[str, Any]:
    point, predicted = forecast.run.point, forecast.predicted
    return {
        "model": point.model,
        "strategy": point.strategy,
        "p": point.p,
        "b": point.b,
        "b_means": point.b_means,
        "unit": point.unit,
        "compute": predicted.compute,
        "communication": predicted.communication,
        "predicted": predicted.seconds,
        "low": forecast.low,
        "high": forecast.high,
        "known_p": predicted.known_p,
        "measured": forecast.run.measured,
        "accuracy": forecast.accuracy,
        "inside": forecast.inside,
        "authors": point.projected.get("total"),
        "notes": [*predicted.notes, *([point.note] if point.note else [])],
    }
