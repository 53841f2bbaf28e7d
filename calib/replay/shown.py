"""Output of `calib replay`: predicted runs, and the authors' own projections."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from calib.reports.replay.paper_form import Replayed
from calib.reports.replay.predictions import Forecast, Replay
from calib.reports.replay.published_tables import PublishedPoint
from calib.reports.replay.training_times import Expected
from calib.terminal.printing import say, table

Row = dict[str, str]  # heading -> cell
SHOWN_FORMS = 6
INSIDE = {None: "-", True: "yes", False: "NO"}
CAUSE = "communication with the cause"
TREATMENT = (
    "validation, input and compute are what the one-node time holds beside its exchange, and shrink "
    "with the nodes; start-up and ends of epochs are not told apart",
    "exchange: fp32 gradients, a message per tensor, none of it hidden; the interval is from all hidden "
    "to the laws' upper end in training",
)


def show(done: Replay) -> None:
    """A row for every run, the scores, and how the form was chosen."""
    rows = [_row(forecast) for forecast in done.forecasts]
    least = (["authors"], ["unit"], ["known p"], ["in it"])
    _table("Published runs, predicted from smaller or other runs", rows, least)
    for strategy, value in done.scores().items():
        say(f"{strategy}: accuracy {value:.1%}")
    mean, covered = done.mean_of_five(), done.covered()
    if mean is not None:
        say(f"mean of d, f, c, df, ds (those that were scored): {mean:.1%}")
    if covered is not None:
        say(f"90% intervals hold {covered:.0%} of the measured times")
    of = done.calibration
    say(
        f"form: {of.fitted.form.name}, {of.fitted.parameters} parameters"
        + "".join(f"; growth of {pool} {g:.3g}" for pool, g in of.fitted.growths.items())
    )
    for scored in of.scored[:SHOWN_FORMS]:
        say(
            f"  left-out error {scored.error:.1%}, {scored.behind:+.1%} +- "
            f"{scored.behind_standard_error:.1%} from the best: {scored.form.name}, "
            f"{scored.parameters} parameters"
        )
    if len(of.scored) > SHOWN_FORMS:
        say(f"  and {len(of.scored) - SHOWN_FORMS} more (--json)")
    if of.width.per_doubling is not None:
        held = "" if of.coverage is None else f"; in cross-validation they hold {of.coverage:.0%}"
        say(
            f"intervals: a factor e^({of.width.per_doubling:.3f} sqrt(doublings of p)) around all "
            f"forms within two standard errors of the best{held}"
        )
    else:
        say("intervals: a factor 2; no run could be left out to see the error")
    for point, why in done.left_out:
        say(f"left out: {point.model} {point.strategy} p={point.p}: {why}")


def _table(title: str, rows: Sequence[Row], least: Sequence[Sequence[str]] | None = None) -> None:
    """A table whose headings are the keys of its rows (at least one)."""
    table(title, list(rows[0]), [list(row.values()) for row in rows], least)


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _row(forecast: Forecast) -> Row:
    point = forecast.run.point
    return {
        "model": point.model,
        "strategy": point.strategy,
        "p": str(point.p),
        "unit": point.unit,
        "known p": str(forecast.predicted.known_p),
        "predicted": f"{forecast.predicted.seconds:.4g}",
        "90% interval": f"{forecast.low:.4g} to {forecast.high:.4g}",
        "measured": _or_dash(forecast.run.measured, ".4g"),
        "accuracy": _or_dash(forecast.accuracy, ".1%"),
        "in it": INSIDE[forecast.inside],
        "authors": _or_dash(point.projected.get("total"), ".4g"),
        "note": "; ".join(filter(None, [*forecast.predicted.notes, point.note])),
    }


def trainings_content(found: Sequence[Expected], model: str, samples: int) -> dict[str, Any]:
    """What --json prints."""
    accurate = [row.accuracy for row in found if row.accuracy is not None]
    inside = [row.inside for row in found if row.inside is not None]
    return {
        "model": model,
        "samples": samples,
        "treatment": list(TREATMENT),
        "rows": [
            {
                "nodes": row.trained.nodes,
                "gpus": row.trained.gpus,
                "batch_per_gpu": row.trained.batch_per_gpu,
                "epochs": row.trained.epochs,
                "iterations": row.trained.iterations(samples),
                "predicted": row.seconds.value,
                "low": row.seconds.low,
                "high": row.seconds.high,
                "exchange_per_iteration": row.exchange.value,
                "basis": row.exchange.basis,
                "measured": row.trained.seconds,
                "accuracy": row.accuracy,
                "inside": row.inside,
            }
            for row in found
        ],
        "mean": sum(accurate) / len(accurate) if accurate else None,
        "covered": sum(inside) / len(inside) if inside else None,
    }


def show_trainings(found: Sequence[Expected], model: str) -> None:
    """A row for every training, and the mean."""
    rows = [
        {
            "nodes": str(row.trained.nodes),
            "GPUs": str(row.trained.gpus),
            "batch per GPU": str(row.trained.batch_per_gpu),
            "exchange ms": f"{row.exchange.value * 1e3:.1f}",
            "basis": row.exchange.basis,
            "predicted s": f"{row.seconds.value:.0f}",
            "interval s": f"{row.seconds.low:.0f} to {row.seconds.high:.0f}",
            "measured s": _or_dash(row.trained.seconds, ".0f"),
            "accuracy": _or_dash(row.accuracy, ".1%"),
            "in it": INSIDE[row.inside],
        }
        for row in found
    ]
    _table(f"{model}: {found[0].trained.epochs} epochs, from the one-node time and the logs", rows)
    accurate = [row.accuracy for row in found if row.accuracy is not None]
    inside = [row.inside for row in found if row.inside is not None]
    if accurate:
        say(
            f"mean accuracy {sum(accurate) / len(accurate):.1%}; "
            f"{sum(inside)} of {len(inside)} in their interval"
        )
    for line in TREATMENT:
        say(line)


def authors_content(
    done: Sequence[Replayed], left_out: Sequence[tuple[PublishedPoint, str]]
) -> dict[str, Any]:
    """What --json prints; seconds in each row's unit."""
    return {
        "rows": [
            {
                "model": r.point.model,
                "strategy": r.strategy,
                "p": r.point.p,
                "batch": r.batch,
                "unit": r.point.unit,
                "compute": r.compute,
                "communication": r.communication,
                "total": r.seconds,
                "authors": r.point.projected,
                "measured": r.point.measured,
                "difference": r.difference,
                "note": r.point.note,
                "cause": r.cause.what if r.cause else None,
                "communication_with_cause": r.cause.with_cause if r.cause else None,
            }
            for r in done
        ],
        "left_out": [
            {"model": point.model, "strategy": point.strategy, "p": point.p, "why": why}
            for point, why in left_out
        ],
    }


def show_authors(done: Sequence[Replayed], left_out: Sequence[tuple[PublishedPoint, str]]) -> None:
    """A row for every point, and the mean difference of every strategy."""

    def pair(ours: float, theirs: float | None) -> str:
        return f"{ours:.4g} / {_or_dash(theirs, '.4g')}"

    def with_cause(r: Replayed) -> str:
        found = None if r.cause is None else r.cause.with_cause
        return "" if found is None else pair(found, r.point.projected.get("comm"))

    rows = [
        {
            "model": r.point.model,
            "strategy": r.strategy,
            "p": str(r.point.p),
            "B": str(r.batch),
            "unit": r.point.unit,
            "compute": pair(r.compute, r.point.projected.get("comp")),
            "communication": pair(r.communication, r.point.projected.get("comm")),
            "total": pair(r.seconds, r.point.projected.get("total")),
            "difference": _or_dash(r.difference, "+.1%"),
            "measured": _or_dash(r.point.measured.get("total"), ".4g"),
            CAUSE: with_cause(r),
        }
        for r in done
    ]
    least = (["compute"], ["communication"], [CAUSE], ["unit"], ["measured"])
    _table("Published runs: our paper form / the authors' projection", rows, least)
    differences: dict[str, list[float]] = defaultdict(list)
    for r in done:
        if r.difference is not None:
            differences[r.strategy].append(r.difference)
    for strategy, values in differences.items():
        worst = max(values, key=abs)
        mean = sum(map(abs, values)) / len(values)
        say(f"{strategy}: off by {mean:.1%} in the mean of {len(values)}, {worst:+.1%} at most")
    causes: dict[str, list[str]] = defaultdict(list)
    for r in done:
        if r.cause:
            causes[r.cause.what].append(f"{r.point.model} {r.strategy}")
    for what, where in causes.items():
        say(f"cause, {', '.join(dict.fromkeys(where))}: {what}")
    for point, why in left_out:
        say(f"left out: {point.model} {point.strategy} p={point.p}: {why}")
